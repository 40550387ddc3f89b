"""Where the device's time goes in a training step of a Hugging Face model through initialize().

    python bench/kernel_breakdown.py [SHAPE] [STEPS]

Prints the share of the time in which the device was busy, kernel time by kind, and the longest
kernels, in milliseconds a step, from torch's profiler. SHAPE is one of `shardwise bench train`.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable

import torch
from shardwise.bench.rows import engine_config, make_model, make_tokens
from shardwise.bench.shapes import SHAPES
from torch.profiler import ProfilerActivity, profile

import shardwise

KINDS = {
    "attention": r"sdpa|flash|fmha|attention",
    "matrix products": r"gemm|nvjet|cutlass|xmma|splitKreduce",
    "our kernels": r"shardwise",
    "communication": r"nccl",
    "copies": r"^Mem(cpy|set)|copy_kernel|CatArray",
}
LONGEST = 30


def kind_of(name: str) -> str:
    found = (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(found, "torch's kernels")


def training_step(shape_name: str) -> Callable[[], None]:
    shape = SHAPES[shape_name]
    options = {"stage": 0, "force": False, "recompute": False}
    model = make_model(shape, options, torch.bfloat16)
    config = engine_config(shape, options)
    config["shardwise"]["fused_layers"] = True
    engine = shardwise.initialize(model=model, config=config)[0]
    tokens = make_tokens(shape)

    def step() -> None:
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()

    return step


def busy_microseconds(spans: list[tuple[float, float]]) -> float:
    """The length of the union of (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def main() -> None:
    shape = sys.argv[1] if len(sys.argv) > 1 else "llama-1b"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    step = training_step(shape)
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    on_device = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = [(e.time_range.start, e.time_range.end) for e in on_device]
    window = max(end for _, end in spans) - min(begin for begin, _ in spans)
    print(f"{shape}, {steps} steps: busy {busy_microseconds(spans) / window:.3f}, ", end="")
    print(f"{window / steps / 1e3:.1f} ms a step under the profiler")
    times, counts, kinds = Counter(), Counter(), Counter()
    for event in on_device:
        length = event.time_range.elapsed_us() / steps / 1e3
        times[event.name] += length
        counts[event.name] += 1
        kinds[kind_of(event.name)] += length
    for kind, length in kinds.most_common():
        print(f"{length:9.2f} ms  {kind}")
    for name, length in times.most_common(LONGEST):
        print(f"{length:9.2f} ms  {counts[name] // steps:5d} x  {name[:110]}")


if __name__ == "__main__":
    main()
