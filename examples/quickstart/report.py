"""What a run shows and leaves behind: progress, a JSONL log and an SVG of the loss."""

import json
import os
import sys
import time
from pathlib import Path


class Progress:
    """One line that rewrites itself on a terminal; elsewhere a line for every 5 % of the steps."""

    WIDTH = 24

    def __init__(self, steps: int, tokens_per_step: int, out=sys.stdout):
        self.steps, self.tokens_per_step, self.out = steps, tokens_per_step, out
        # Under a launcher ranks write to a pipe; it says when a terminal is at the other end.
        self.terminal = out.isatty() or os.environ.get("SHARDWISE_TERMINAL") == "1"
        self.start = time.monotonic()
        self.smoothed = None

    def update(self, step: int, loss: float):
        """Call after step number `step`, counted from 1. Shows the loss smoothed over ~20 steps."""
        self.smoothed = loss if self.smoothed is None else 0.95 * self.smoothed + 0.05 * loss
        if self.terminal or step % max(self.steps // 20, 1) == 0 or step == self.steps:
            end = "" if self.terminal and step < self.steps else "\n"
            start = "\r" if self.terminal else ""
            print(start + self.line(step), end=end, file=self.out, flush=True)

    def line(self, step: int) -> str:
        done = self.WIDTH * step // self.steps
        bar = "#" * done + "." * (self.WIDTH - done)
        left = int((time.monotonic() - self.start) * (self.steps - step) / step)
        return (
            f"[{bar}] {step}/{self.steps}  loss {self.smoothed:.3f}  "
            f"{self.speed(step):,.0f} tokens/s  ETA {left // 60}:{left % 60:02d} "
        )

    def speed(self, step: int) -> float:
        return step * self.tokens_per_step / (time.monotonic() - self.start)


class Log:
    """One JSON object a line; lines reach the file as they are written."""

    def __init__(self, path: Path):
        self.file = path.open("w", buffering=1)

    def write(self, **values):
        self.file.write(json.dumps(values) + "\n")

    def close(self):
        self.file.close()


def loss_curve(losses: list[float], held_out: float | None, path: Path):
    """Draws the loss of every step, and the final held-out loss as a dashed line."""
    width, height, margin = 720, 360, 48
    top = max(losses)
    low = min(losses if held_out is None else [*losses, held_out])
    span = max(top - low, 1e-9)

    def x(step):
        return margin + (width - 2 * margin) * step / max(len(losses) - 1, 1)

    def y(loss):
        return margin + (height - 2 * margin) * (top - loss) / span

    points = " ".join(f"{x(i):.1f},{y(loss):.1f}" for i, loss in enumerate(losses))
    ticks = [low + span * i / 4 for i in range(5)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="24" text-anchor="middle">loss, nats per byte</text>',
        f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">'
        f"step (1 to {len(losses)})</text>",
    ]
    for tick in ticks:
        parts.append(
            f'<path d="M{margin} {y(tick):.1f}H{width - margin}" stroke="#ddd"/>'
            f'<text x="{margin - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.2f}</text>'
        )
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1769aa" stroke-width="1.5"/>')
    if held_out is not None:
        parts.append(
            f'<path d="M{margin} {y(held_out):.1f}H{width - margin}" stroke="#c2410c" '
            'stroke-dasharray="6 4"/>'
            f'<text x="{width - margin}" y="{margin - 8}" text-anchor="end" fill="#c2410c">'
            f"held-out at the end: {held_out:.3f}</text>"
        )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
