"""``shardwise bench comm``: bus bandwidth of the collectives that training uses.

Each is measured twice: through the channels of the engine (NCCL, or Gloo with sums in the order of
the ranks), and as torch.distributed carries it out.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import shardwise
from shardwise import _C
from shardwise.bench.results import (
    device_name,
    existing_device,
    positive,
    present_device,
    print_result,
    program,
    results_of,
    write_json,
)

TIMEOUT_SECONDS = 600
SIZES = {"cuda": [1, 4, 16, 64, 256, 1024], "cpu": [1, 4, 16]}  # MiB
CALLS = {"cuda": 20, "cpu": 3}
# Bytes that pass a rank's link, as a multiple of (n - 1) / n of the tensor's.
FACTORS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--gpus", type=positive, help="ranks; default all GPUs, or two processes on the CPU"
    )
    command.add_argument(
        "--device", type=existing_device, help="cuda or cpu; without it GPUs where there are any"
    )
    command.add_argument(
        "--sizes",
        type=lambda words: [positive(word) for word in words.split(",")],
        help="MiB of the whole tensor, separated by commas; default "
        + ", on the CPU ".join(",".join(map(str, sizes)) for sizes in SIZES.values()),
    )
    command.add_argument("--json", metavar="FILE", help="the table, for bench compare")


# ---- in each rank


def milliseconds(collective: Callable[[], Any], device: torch.device) -> float:
    """The mean of several in a row, after two."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(2):
        collective()
    wait()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(CALLS[device.type]):
        collective()
    wait()
    return (time.perf_counter() - begin) / CALLS[device.type] * 1e3


def measure(mib: int, channel: _C.Channel, device: torch.device) -> None:
    """Prints, on rank 0, the times of tensors of this size."""
    ranks = dist.get_world_size()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    part = torch.zeros((mib << 20) // dtype.itemsize // ranks, dtype=dtype, device=device)
    whole = torch.zeros(part.numel() * ranks, dtype=dtype, device=device)
    ours = {
        "all-gather": lambda: channel.all_gather(whole, part),
        "reduce-scatter": lambda: channel.reduce_scatter(part, whole),
        "all-reduce": lambda: channel.all_reduce(whole),
    }
    torchs = {
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all-reduce": lambda: dist.all_reduce(whole),
    }
    for kind, factor in FACTORS.items():
        traffic = whole.nbytes * factor * (ranks - 1) / ranks
        row: dict[str, Any] = {"name": f"{kind}, {mib} MiB", "transport": channel.transport}
        for prefix, collectives in (("", ours), ("torch_", torchs)):
            ms = milliseconds(collectives[kind], device)
            row[f"{prefix}ms"] = ms
            row[f"{prefix}bus_gigabytes_per_second"] = traffic / ms / 1e6
        if dist.get_rank() == 0:
            print_result(row)


def main(words: list[str]) -> int:
    shardwise.init_distributed()
    name, sizes = words
    device = (
        torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    )
    channel = _C.Channel(dist.group.WORLD, device, TIMEOUT_SECONDS)
    for mib in json.loads(sizes):
        measure(mib, channel, device)
    return 0


# ---- the table


def line(row: dict[str, Any], width: int) -> str:
    cells = [
        f"{row[f'{prefix}ms']:10.3f}  {row[f'{prefix}bus_gigabytes_per_second']:8.2f}"
        for prefix in ("", "torch_")
    ]
    return "  ".join([f"{row['name']:{width}s}", *cells])


def comm(arguments: argparse.Namespace) -> int:
    device = arguments.device or present_device()
    ranks = arguments.gpus or (torch.cuda.device_count() if device.type == "cuda" else 2)
    if ranks < 2:
        sys.exit(
            "bench comm: one rank communicates with nobody: it needs two GPUs, or --device cpu "
            "for two processes"
        )
    sizes = arguments.sizes or SIZES[device.type]
    command = [program(), "launch", "-n", str(ranks), "-m", "shardwise.bench.comm"]
    command += [device.type, json.dumps(sizes)]
    rows, error = results_of(command, {"DS_ACCELERATOR": device.type}, TIMEOUT_SECONDS)
    if error:
        sys.exit(f"bench comm: {error}")
    width = max(len(row["name"]) for row in rows)
    print(
        f"{ranks} x {device_name(device)}, {rows[0]['transport']}; bus bandwidth: bytes / time x "
        f"(n - 1) / n, of an all-reduce twice that\n"
        f"{'':{width}s}  {'ours, ms':>10s}  {'GB/s':>8s}  {'torch, ms':>10s}  {'GB/s':>8s}"
    )
    print("\n".join(line(row, width) for row in rows))
    write_json(arguments.json, {"device": device_name(device), "gpus": ranks}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
