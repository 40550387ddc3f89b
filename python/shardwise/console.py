"""Lines for people."""

import sys
from typing import Any

import torch.distributed as dist


def log(message: str) -> None:
    """One line on standard error of rank 0."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"[shardwise] {message}", file=sys.stderr, flush=True)


def log_step(engine: Any) -> None:
    """Every ``steps_per_print`` steps: step, learning rate, norm, loss scale."""
    every = engine.steps_per_print()
    if not isinstance(every, int) or every <= 0 or engine.global_steps % every:
        return
    rates = ", ".join(f"{rate:.3e}" for rate in engine.get_lr())
    parts = [
        f"step {engine.global_steps}",
        f"lr {rates}",
        f"gradient norm {engine.get_global_grad_norm():.4f}",
        f"skipped {engine.skipped_steps}",
    ]
    if engine.fp16_enabled():
        parts.append(f"loss scale {engine.loss_scale:g}")
    log(", ".join(parts))
