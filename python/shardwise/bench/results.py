"""What all benchmarks share: how a table says what it was measured on, and its JSON."""

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import shardwise

RESULT = "bench result "  # begins a line of a measuring process, JSON follows
MEASURES = ("ms", "microseconds")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


def present_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def program() -> str:
    """The program of this environment."""
    beside = Path(sys.executable).with_name("shardwise")
    found = str(beside) if beside.exists() else shutil.which("shardwise")
    if not found:
        sys.exit(f"bench: the program shardwise is neither at {beside} nor on PATH; build it first")
    return found


def print_result(result: dict[str, Any]) -> None:
    print(RESULT + json.dumps(result), flush=True)


def results_of(
    command: list[str], environment: dict[str, str], timeout_seconds: float
) -> tuple[list[dict[str, Any]], str]:
    """What the processes of a command measured, and what went wrong or "".

    None of them is left where it takes too long or an exception, as that of Ctrl-C, ends it.
    """
    try:
        done = _run_group(
            command, {**os.environ, "PYTHONUNBUFFERED": "1", **environment}, timeout_seconds
        )
    except subprocess.TimeoutExpired:
        return [], f"took more than {timeout_seconds:g} s"
    lines = [line for line in done.stdout.splitlines() if RESULT in line]
    results = [json.loads(line[line.index(RESULT) + len(RESULT) :]) for line in lines]
    if done.returncode == 0 and results:
        return results, ""
    if done.returncode == -signal.SIGKILL:
        return results, "killed, most likely because the memory of the machine ran out"
    said = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in said if re.search(r"\w(Error|Exception): ", line)]  # warnings follow
    cause = (errors or said or [f"exit status {done.returncode}"])[-1]
    return results, cause[-200:]


def _run_group(
    command: list[str], environment: dict[str, str], timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run``, but ends what the command has started, too: ranks hold GPUs."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def write_json(path: str | None, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The table's rows, and what they were measured with; nothing without a path."""
    if not path:
        return
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "version": shardwise.__version__,
        "torch": torch.__version__,
        **about,
    }
    Path(path).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of at least 1")
    return int(word)


def existing_device(word: str) -> torch.device:
    if word == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("torch finds no GPU here")
    return torch.device(word)


def measure_of(row: dict[str, Any]) -> float | None:
    return next((row[name] for name in MEASURES if row.get(name)), None)


def compared(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    """One line for each row that both tables have a figure of."""
    before = {row["name"]: measure_of(row) for row in first["rows"]}
    width = max(map(len, before), default=0)
    for row in second["rows"]:
        a, b = before.get(row["name"]), measure_of(row)
        if a and b:
            yield f"{row['name']:{width}s}  {a:12.2f}  {b:12.2f}  {b / a:7.3f}"


def compare(arguments: argparse.Namespace) -> int:
    first, second = (json.loads(Path(name).read_text()) for name in arguments.tables)
    for name in ("device", "torch", "shape", "gpus"):
        if first.get(name) != second.get(name):
            print(f"{name} differs: {first.get(name)}, {second.get(name)}")
    lines = list(compared(first, second))
    print("\n".join(lines) or "the two tables have no row in common")
    return 0 if lines else 1
