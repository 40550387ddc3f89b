"""``shardwise bench train``: this library and its peers on the same work, in one table.

The first row is the limit: the matrix products and the attention of a step alone, measured there
and then. Each other row runs in processes of its own, one after the other. Peers that are not
installed are left out, rows that fail say why.
"""

import argparse
import importlib.util
import json
import os
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shardwise.bench import breakdown
from shardwise.bench.results import (
    device_name,
    positive,
    present_device,
    program,
    results_of,
    write_json,
)
from shardwise.bench.shapes import SHAPES, Shape
from shardwise.profiling.flops_profiler.peak import peak_flops

TIMEOUT_SECONDS = 600  # of a row; compilation of a large model takes minutes
DEFAULTS = {"stage": 0, "force": False, "keep": False, "compile": False, "fp8": "off"}


@dataclass
class Row:
    """A line of the table: which function of rows.py, and with which options."""

    key: str  # for --rows
    name: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)
    needs: str = ""  # a package


ROWS = (
    Row("limit", "limit: products and attention", "limit"),
    Row("native", "native", "native"),
    Row("forced", "native, stage 3, copies forced", "native", {"stage": 3, "force": True}),
    Row("kept", "native, weights kept until backward", "native", {"stage": 3, "keep": True}),
    Row("fp8-tensorwise", "native, fp8 tensorwise", "native", {"fp8": "tensorwise"}),
    Row("fp8-rowwise", "native, fp8 rowwise", "native", {"fp8": "rowwise"}),
    Row("engine", "Hugging Face through initialize()", "engine"),
    Row("fsdp2", "FSDP2", "fsdp2"),
    Row("fsdp2-compiled", "FSDP2, compiled", "fsdp2", {"compile": True}),
    Row("zero1", "DeepSpeed ZeRO-1", "deepspeed", {"stage": 1}, "deepspeed"),
    Row("zero3", "DeepSpeed ZeRO-3", "deepspeed", {"stage": 3}, "deepspeed"),
    Row("plain", "Hugging Face, bf16 weights, no masters", "compiled"),
    Row("compiled", "the same, torch.compile", "compiled", {"compile": True}),
)
GPU_ONLY = ("limit", "fsdp2", "deepspeed")
ONE_PROCESS = ("limit", "native", "compiled")  # native starts its ranks itself


def rows_for(keys: list[str], gpus: int) -> list[Row]:
    rows = [row for row in ROWS if not keys or row.key in keys]
    if gpus > 1:
        rows = [row for row in rows if row.key != "forced" and row.function != "compiled"]
        rows = [
            replace(row, options={**row.options, "stage": 3})
            if row.function in ("native", "engine")
            else row
            for row in rows
        ]
    else:
        rows = [row for row in rows if row.key != "kept"]
    if not torch.cuda.is_available():
        rows = [row for row in rows if row.function not in GPU_ONLY]
    return rows


def run(row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row's result, or {"error": ...}."""
    if row.needs and importlib.util.find_spec(row.needs) is None:
        return {"error": f"{row.needs} is not installed"}
    options = {**DEFAULTS, **row.options, "program": program()}
    for name in ("gpus", "steps", "repeats", "warmup", "recompute", "breakdown"):
        options[name] = getattr(arguments, name)
    words = ["-m", "shardwise.bench.rows", row.function, arguments.shape, json.dumps(options)]
    command = [sys.executable, *words]
    if row.function not in ONE_PROCESS:
        command = [program(), "launch", "-n", str(arguments.gpus), *words]
    results, error = results_of(command, environment(), TIMEOUT_SECONDS)
    return results[0] if results else {"error": error}


def environment() -> dict[str, str]:
    """What rows get beside the present environment."""
    wanted = {}
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        wanted["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if torch.cuda.is_available():  # DeepSpeed compiles for these, and cannot read "9.0a"
        major, minor = torch.cuda.get_device_capability()
        wanted["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}"
    return wanted


def parameter_count(shape: Shape) -> int:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape.config())
    return sum(parameter.numel() for parameter in model.parameters())


def line(row: dict[str, Any], width: int) -> str:
    head = f"{row['name']:{width}s}"
    if "error" in row:
        return f"{head}  {row['error']}"

    def cell(key: str, form: str) -> str:
        value = row.get(key)
        return f"{value:{form}}" if value else f"{'-':>{form.split('.')[0].strip(',')}s}"

    cells = [cell("ms", "9.1f"), cell("tokens_per_second", "12,.0f"), cell("of_limit", "9.3f")]
    return "  ".join([head, *cells, cell("mfu", "6.3f"), cell("peak_gib", "8.1f")])


def add_options(command: argparse.ArgumentParser) -> None:
    keys = [row.key for row in ROWS]
    command.add_argument(
        "--shape", choices=SHAPES, help="default: llama-1b, or tiny where torch finds no GPU"
    )
    command.add_argument(
        "--gpus", type=positive, default=1, help="of this machine; processes without a GPU"
    )
    command.add_argument(
        "--rows",
        type=lambda words: words.split(","),
        default=[],
        help=f"only these, separated by commas: {', '.join(keys)}",
    )
    command.add_argument(
        "--steps", type=positive, default=5, help="timed in a row, as one measurement"
    )
    command.add_argument(
        "--repeats", type=positive, default=3, help="measurements of a row; their median counts"
    )
    command.add_argument("--warmup", type=positive, default=4)
    command.add_argument(
        "--recompute",
        action="store_true",
        help="checkpoint all activations; limit and MFU count nothing that is computed again",
    )
    command.add_argument(
        "--breakdown",
        action="store_true",
        help="also trace three more steps of each row: time of kernels by kind, how busy the GPU "
        "is, and communication that nothing hides. The longest kernels go to the JSON",
    )
    command.add_argument("--json", metavar="FILE", help="the table, for bench compare")


def check(arguments: argparse.Namespace) -> None:
    unknown = sorted(set(arguments.rows) - {row.key for row in ROWS})
    if unknown:
        sys.exit(f"bench train: --rows: there is no row {', '.join(unknown)}; see --help")
    if arguments.breakdown and not torch.cuda.is_available():
        sys.exit("bench train: --breakdown needs a GPU, whose kernels it traces; torch finds none")
    if importlib.util.find_spec("transformers") is None:
        sys.exit(f"bench: needs transformers: {sys.executable} -m pip install transformers")


def train(arguments: argparse.Namespace) -> int:
    check(arguments)
    arguments.shape = arguments.shape or ("llama-1b" if torch.cuda.is_available() else "tiny")
    shape = SHAPES[arguments.shape]
    chosen = rows_for(arguments.rows, arguments.gpus)
    flops = shape.flops_per_token(parameter_count(shape))
    device = present_device()
    peak = peak_flops(device, torch.bfloat16)
    width = max((len(row.name) for row in chosen), default=0)
    print(
        f"{arguments.shape}, {shape.sequences} x {shape.length} tokens a GPU, bf16, "
        f"{arguments.gpus} x {device_name(device)}, torch {torch.__version__}\n"
        f"MFU: (6 parameters + 6 layers x hidden x length) FLOP a token"
        f"{f' of {peak / 1e12:.0f} TFLOP/s' if peak else ''}\n"
        f"{'':{width}s}  {'ms/step':>9s}  {'tokens/s/GPU':>12s}  {'of limit':>9s}  {'MFU':>6s}  "
        f"{'peak GiB':>8s}",
        flush=True,
    )
    done: list[dict[str, Any]] = []
    limit = None
    for row in chosen:
        result = {"name": row.name, **run(row, arguments)}
        if "ms" in result:
            limit = result["ms"] if row.function == "limit" else limit
            speed = shape.tokens / result["ms"] * 1e3
            result["tokens_per_second"] = speed
            result["of_limit"] = limit / result["ms"] if limit else None
            result["mfu"] = flops * speed / peak if peak else None
        done.append(result)
        print(line(result, width), flush=True)
    parts = {row["name"]: row["breakdown"] for row in done if "breakdown" in row}
    if parts:
        print("\n" + "\n".join(breakdown.table(parts)))
    about = {"device": device_name(device), "shape": arguments.shape, "gpus": arguments.gpus}
    write_json(arguments.json, about, done)
    return 1 if any("error" in row and "not installed" not in row["error"] for row in done) else 0
