"""``shardwise bench kernels``: our kernels one by one, beside a copy measured there and then."""

import argparse
from typing import Any

import torch

from shardwise import _C
from shardwise.bench.results import (
    device_name,
    existing_device,
    positive,
    present_device,
    write_json,
)

# Tokens, vocabulary and Mi elements. A GPU gets those of a training step of Llama-3.2-1B, the CPU
# less, but more than its caches hold.
SIZES = {"cuda": (16384, 128256, 256), "cpu": (4096, 32000, 32)}


def add_options(command: argparse.ArgumentParser) -> None:
    levels = _C.cpu_levels()
    on_gpu, on_cpu = SIZES["cuda"], SIZES["cpu"]
    command.add_argument(
        "--device", type=existing_device, help="cuda or cpu; without it a GPU where there is one"
    )
    for index, (option, meaning) in enumerate(
        (
            ("--tokens", "rows of the layers' kernels"),
            ("--vocabulary", "of the embedding and the loss"),
            ("--elements", "Mi of them in copies and at the end of a step"),
        )
    ):
        default = f"{on_gpu[index]} on a GPU, {on_cpu[index]} on the CPU"
        command.add_argument(option, type=positive, help=f"{meaning}; default {default}")
    command.add_argument(
        "--cpu-level",
        choices=levels,
        default=levels[-1],
        help="instruction set of the CPU kernels; they take OMP_NUM_THREADS threads",
    )
    command.add_argument("--json", metavar="FILE", help="the table, for bench compare")


def row_of(timed: _C.KernelTime) -> dict[str, Any]:
    return {
        "name": timed.name,
        "microseconds": timed.microseconds,
        "gigabytes_per_second": timed.bytes / timed.microseconds / 1e3,
        "of_copy": timed.of_copy,
    }


def line(row: dict[str, Any], width: int) -> str:
    text = f"{row['name']:{width}s}  {row['microseconds']:10.1f}"
    if row["gigabytes_per_second"]:
        text += f"  {row['gigabytes_per_second']:8.1f}  {100 * row['of_copy']:7.1f}"
    return text


def kernels(arguments: argparse.Namespace) -> int:
    device = arguments.device or present_device()
    given = (arguments.tokens, arguments.vocabulary, arguments.elements)
    tokens, vocabulary, elements = (a or b for a, b in zip(given, SIZES[device.type], strict=True))
    timed = _C.time_kernels(device, tokens, vocabulary, elements << 20, arguments.cpu_level)
    rows = [row_of(one) for one in timed]
    width = max(len(row["name"]) for row in rows)
    threads = f", {arguments.cpu_level}, {torch.get_num_threads()} thread(s)"
    print(
        f"{device_name(device)}{threads if device.type == 'cpu' else ''}: bf16, {tokens} tokens, "
        f"width 2048, inner 8192, vocabulary {vocabulary}; {elements} Mi elements\n"
        f"{'':{width}s}  {'µs':>10s}  {'GB/s':>8s}  {'% copy':>7s}"
    )
    print("\n".join(line(row, width) for row in rows))
    sizes = {"tokens": tokens, "vocabulary": vocabulary, "elements": elements << 20}
    write_json(arguments.json, {"device": device_name(device), **sizes}, rows)
    return 0
