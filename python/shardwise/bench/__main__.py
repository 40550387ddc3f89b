"""``shardwise bench train``: this library and its peers on the same work, in one table.

The first row is the limit: the matrix products and the attention of a step alone, measured there
and then. Each other row runs in processes of its own, one after the other. Peers that are not
installed are left out, rows that fail say why.
"""

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import shardwise
from shardwise.bench.rows import RESULT
from shardwise.bench.shapes import SHAPES, Shape
from shardwise.profiling.flops_profiler.peak import peak_flops

TIMEOUT_SECONDS = 600  # of a row; compilation of a large model takes minutes
DEFAULTS = {"stage": 0, "force": False, "compile": False, "recompute": False}


@dataclass
class Row:
    """A line of the table: which function of rows.py, and with which options."""

    name: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)
    needs: str = ""  # a package


def rows_for(shape: Shape, gpus: int) -> list[Row]:
    sharded = {"stage": 3} if gpus > 1 else {}
    rows = [
        Row("limit: products and attention", "limit"),
        Row("native", "native", sharded),
        Row("native, stage 3, copies forced", "native", {"stage": 3, "force": True}),
        Row("Hugging Face through initialize()", "engine", sharded),
        Row("FSDP2", "fsdp2"),
        Row("FSDP2, compiled", "fsdp2", {"compile": True}),
        Row("DeepSpeed ZeRO-1", "deepspeed", {"stage": 1}, "deepspeed"),
        Row("DeepSpeed ZeRO-3", "deepspeed", {"stage": 3}, "deepspeed"),
    ]
    if gpus == 1:
        rows += [
            Row("Hugging Face, bf16 weights, no masters", "compiled"),
            Row("the same, torch.compile", "compiled", {"compile": True}),
        ]
    else:
        rows = [row for row in rows if not row.options.get("force")]
    if not torch.cuda.is_available():
        rows = [row for row in rows if row.function not in ("limit", "fsdp2", "deepspeed")]
    return rows


def program() -> str:
    beside = Path(sys.executable).with_name("shardwise")
    found = str(beside) if beside.exists() else shutil.which("shardwise")
    if not found:
        sys.exit(f"bench: the program shardwise is neither at {beside} nor on PATH; build it first")
    return found


def run(row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row's result, or {"error": ...}."""
    if row.needs and importlib.util.find_spec(row.needs) is None:
        return {"error": f"{row.needs} is not installed"}
    options = {**DEFAULTS, **row.options, "gpus": arguments.gpus, "program": program()}
    options |= {name: getattr(arguments, name) for name in ("steps", "repeats", "warmup")}
    options["recompute"] = arguments.recompute
    words = ["-m", "shardwise.bench.rows", row.function, arguments.shape, json.dumps(options)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    command = [sys.executable, *words]
    if row.function not in ("limit", "native", "compiled"):
        command = [program(), "launch", "-n", str(arguments.gpus), *words]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT_SECONDS} s"}
    for line in done.stdout.splitlines():
        if RESULT in line:
            return json.loads(line[line.index(RESULT) + len(RESULT) :])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": lines[-1][-200:] if lines else f"exit status {done.returncode}"}


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


def train(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("transformers") is None:
        sys.exit(f"bench: needs transformers: {sys.executable} -m pip install transformers")
    shape = SHAPES[arguments.shape]
    wanted = arguments.rows.split(",") if arguments.rows else None
    chosen = rows_for(shape, arguments.gpus)
    if wanted:
        chosen = [row for row in chosen if row.function in wanted]
    flops = shape.flops_per_token(parameter_count(shape))
    on_gpu = torch.cuda.is_available()
    peak = peak_flops(torch.device("cuda"), torch.bfloat16) if on_gpu else None
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    width = max(len(row.name) for row in chosen)
    print(
        f"{arguments.shape}, {shape.sequences} x {shape.length} tokens a GPU, bf16, "
        f"{arguments.gpus} x {device}, torch {torch.__version__}\n"
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
    if arguments.json:
        about = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "version": shardwise.__version__,
            "device": device,
            "torch": torch.__version__,
            "shape": arguments.shape,
            "gpus": arguments.gpus,
        }
        Path(arguments.json).write_text(json.dumps({**about, "rows": done}, indent=1) + "\n")
    return 1 if any("error" in row and "not installed" not in row["error"] for row in done) else 0


def positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of at least 1")
    return int(word)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="shardwise bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("train", help="training steps against peers and the limit")
    command.add_argument("--shape", choices=SHAPES, default="llama-1b")
    command.add_argument("--gpus", type=positive, default=1)
    command.add_argument("--rows", help="functions of rows.py, for example limit,native,engine")
    command.add_argument("--steps", type=positive, default=5, help="timed in a row")
    command.add_argument("--repeats", type=positive, default=3, help="of these; the median counts")
    command.add_argument("--warmup", type=positive, default=4)
    command.add_argument("--recompute", action="store_true", help="checkpoint all activations")
    command.add_argument("--json", help="a file for the table, so that two runs can be compared")
    return train(parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
