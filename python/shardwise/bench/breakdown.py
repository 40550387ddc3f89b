"""Where a step's time on the GPU goes, read from a trace in Chrome's format.

Torch's profiler and ``shardwise.trace`` of the configuration write such traces.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# A kernel is of the first kind whose pattern its name has; what fits none is "other": torch's own
# elementwise kernels, compiled ones, and those of peers.
KINDS = {
    "attention": r"sdpa|flash|fmha|attention",
    "products": r"gemm|nvjet|cutlass|xmma|splitKreduce",
    "ours": r"shardwise",
    "communication": r"nccl",
    "copies": r"^Mem(cpy|set)|copy_kernel|CatArray",
}
OTHER = "other"
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of the trace
LONGEST = 30


class Work(NamedTuple):
    """Something that the device did, in microseconds."""

    name: str
    kind: str
    begin: float
    end: float


def kind_of(name: str) -> str:
    found = (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(found, OTHER)


def device_work(trace: Path) -> list[Work]:
    events = json.loads(trace.read_text(), strict=False)["traceEvents"]
    return [
        Work(event["name"], kind_of(event["name"]), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in DEVICE_WORK and "dur" in event
    ]


def covered(works: Iterable[Work]) -> float:
    """Microseconds in which at least one of them runs."""
    total, reached = 0.0, float("-inf")
    for work in sorted(works, key=lambda work: work.begin):
        total += max(0.0, work.end - max(work.begin, reached))
        reached = max(reached, work.end)
    return total


def breakdown(trace: Path, steps: int) -> dict[str, Any]:
    """Of a step, from a trace of ``steps`` of them.

    ``ms``: from the first kernel's begin to the last one's end; ``busy``: the share in which the
    device does something; ``kinds``: milliseconds of kernels, which may run side by side;
    ``exposed_communication``: milliseconds in which nothing but communication runs, waiting for
    other ranks included; ``kernels``: the longest as [name, milliseconds, launches].
    """
    works = device_work(trace)
    if not works:
        raise RuntimeError("the trace has no work of a GPU")
    window = max(work.end for work in works) - min(work.begin for work in works)
    kinds: Counter[str] = Counter(dict.fromkeys((*KINDS, OTHER), 0.0))
    times: Counter[str] = Counter()
    launches = Counter(work.name for work in works)
    for work in works:
        length = (work.end - work.begin) / steps / 1e3
        kinds[work.kind] += length
        times[work.name] += length
    busy = covered(works)
    hidden = covered(work for work in works if work.kind != "communication")
    return {
        "ms": window / steps / 1e3,
        "busy": busy / window,
        "kinds": dict(kinds),
        "exposed_communication": (busy - hidden) / steps / 1e3,
        "kernels": [[name, ms, launches[name] / steps] for name, ms in times.most_common(LONGEST)],
    }


def table(parts: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One line for each named breakdown."""
    kinds = (*KINDS, OTHER)
    width = max(map(len, parts))
    heads = [f"{kind:>{max(9, len(kind))}s}" for kind in kinds]
    yield f"{'kernels, ms a step':{width}s}  {'  '.join(heads)}   busy  exposed communication"
    for name, part in parts.items():
        cells = [
            f"{part['kinds'][kind]:{len(head)}.1f}" for kind, head in zip(kinds, heads, strict=True)
        ]
        exposed = part["exposed_communication"]
        yield f"{name:{width}s}  {'  '.join(cells)}  {part['busy']:5.3f}  {exposed:21.1f}"


def longest(part: dict[str, Any]) -> Iterator[str]:
    for name, ms, launches in part["kernels"]:
        yield f"{ms:9.2f} ms  {launches:7.1f} x  {name[:110]}"
