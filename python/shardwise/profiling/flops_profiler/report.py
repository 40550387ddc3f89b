"""The text of a FLOPs profile."""

from dataclasses import dataclass

from shardwise.profiling.flops_profiler.counter import Counter

UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


@dataclass
class Totals:
    """What a profile says about one model.

    ``seconds`` of ``what`` ("a step", "forward"), 0 where nothing was timed; ``peak`` FLOPs a
    second of the device, None where unknown.
    """

    parameters: int
    forward: int
    backward: int
    recomputed: int
    seconds: float = 0.0
    what: str = "a step"
    peak: float | None = None

    @property
    def model_flops(self) -> int:
        """Forward and backward, without what was recomputed."""
        return self.forward + self.backward

    @property
    def mfu(self) -> float | None:
        """Model FLOPs ÷ time ÷ peak."""
        if not self.seconds or not self.peak:
            return None
        return self.model_flops / self.seconds / self.peak


def with_unit(value: float, unit: str) -> str:
    for size, prefix in UNITS:
        if value >= size:
            return f"{value / size:.2f} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def summary(totals: Totals, title: str) -> list[str]:
    lines = [
        f"FLOPs profile: {title}",
        f"  parameters          {with_unit(totals.parameters, '')}",
        f"  forward             {with_unit(totals.forward, 'FLOPs')}",
        f"  backward            {with_unit(totals.backward, 'FLOPs')}",
        f"  recomputed          {with_unit(totals.recomputed, 'FLOPs')} (not in model FLOPs)",
        f"  model FLOPs         {with_unit(totals.model_flops, 'FLOPs')} = forward + backward",
    ]
    if not totals.seconds:
        return lines
    rate = totals.model_flops / totals.seconds
    lines += [
        f"  time of {totals.what:<11} {1e3 * totals.seconds:.3f} ms",
        f"  speed               {with_unit(rate, 'FLOPs/s')} = model FLOPs / time",
    ]
    if totals.mfu is None:
        return [*lines, "  MFU                 unknown: no peak is known for device and dtype"]
    peak = with_unit(totals.peak, "FLOPs/s")
    return [
        *lines,
        f"  MFU                 {100 * totals.mfu:.2f}% = model FLOPs / time / peak of {peak}",
    ]


def table(counter: Counter, parameters: dict[str, int], depth: int) -> list[str]:
    """A line a module, ``depth`` names deep (-1: all); modules without FLOPs are left out."""
    total = max(counter.total("forward") + counter.total("backward"), 1)
    seconds = counter.mod_tracker.forward_seconds()
    lines = [
        f"  {'module':<40} {'parameters':>12} {'forward':>16} {'backward':>16} {'share':>7} "
        f"{'forward time':>13}"
    ]
    for name in counter.mod_tracker.names.values():
        forward, backward = (counter.flops[p].get(name, 0) for p in ("forward", "backward"))
        level = 0 if name == counter.mod_tracker.root else name.count(".") + 1
        if forward + backward == 0 or 0 <= depth < level:
            continue
        label = "  " * level + name
        lines.append(
            f"  {label:<40} {with_unit(parameters[name], ''):>12} "
            f"{with_unit(forward, 'FLOPs'):>16} {with_unit(backward, 'FLOPs'):>16} "
            f"{100 * (forward + backward) / total:>6.1f}% {1e3 * seconds.get(name, 0):>10.3f} ms"
        )
    return lines


def top_modules(counter: Counter, count: int) -> list[str]:
    """The module classes with most FLOPs at each depth."""
    levels: dict[int, dict[str, int]] = {}
    for module, name in counter.mod_tracker.names.items():
        flops = sum(counter.flops[p].get(name, 0) for p in ("forward", "backward"))
        level = 0 if name == counter.mod_tracker.root else name.count(".") + 1
        classes = levels.setdefault(level, {})
        kind = type(module).__name__
        classes[kind] = classes.get(kind, 0) + flops
    lines = ["  most FLOPs by depth"]
    for level, classes in sorted(levels.items()):
        best = sorted(classes.items(), key=lambda item: -item[1])[:count]
        shown = ", ".join(f"{kind} {with_unit(flops, 'FLOPs')}" for kind, flops in best if flops)
        if shown:
            lines.append(f"  depth {level}: {shown}")
    return lines
