"""Shows a training run in TensorBoard: turns the log of numbers that a run writes (JSON lines, see
``src/shardwise/monitor/monitor.h``) into TensorBoard's event files.

    python -m shardwise.tensorboard output/log.jsonl [--logdir DIR] [--follow]

With ``--follow`` it goes on reading while the run writes, and ends with the run. Event files of an
earlier conversion into the same directory are superseded, not doubled.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 0.5
MISSING = """TensorBoard is not installed for this Python. Install it with
  {python} -m pip install tensorboard"""

# Keys of a step and their names in TensorBoard.
STEP_SCALARS = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "loss_scale": "train/loss_scale",
    "tokens_per_second": "train/tokens_per_second",
    "peak_memory": "train/peak_memory",
}


class LogError(Exception):
    """The file is no log of numbers."""


def make_writer(logdir: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise LogError(MISSING.format(python=sys.executable)) from error
    # purge_step: readers forget what earlier event files in this directory say.
    return SummaryWriter(str(logdir), purge_step=0)


def replaced(path: Path, file: Any) -> bool:
    """Whether another file has the name now: a new run began and renamed this one."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(file.fileno())
    return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino)


def whole_lines(path: Path, follow: bool) -> Iterator[bytes]:
    """Lines with their end; what stands behind the last line feed may be half a line."""
    with path.open("rb") as file:
        pending = b""
        while True:
            last_look = not follow or replaced(path, file)
            while chunk := file.readline():
                pending += chunk
                if pending.endswith(b"\n"):
                    yield pending
                    pending = b""
            if last_look:
                return
            yield b""
            time.sleep(PAUSE_SECONDS)


def parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise LogError(f"{path}: line {number}: is no JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise LogError(f'{path}: line {number}: is no object with "kind"; is this a log of a run?')
    return record


class Converter:
    """Writes records as events."""

    def __init__(self, writer: Any):
        self.writer = writer
        self.began = 0.0
        self.now = 0.0
        self.steps = 0

    def add(self, record: dict[str, Any]) -> None:
        # Kinds of later versions are passed over.
        handler = getattr(self, f"add_{record['kind']}", None)
        if handler is not None:
            handler(record)

    def add_run(self, record: dict[str, Any]) -> None:
        self.began = self.now = float(record["unix_time"])
        config = json.dumps(record["config"], indent=2)
        text = f"{record['title']}\n\n{as_code(config)}"
        self.writer.add_text("run", text, 0, walltime=self.now)

    def add_step(self, record: dict[str, Any]) -> None:
        self.now = self.began + float(record["seconds"])
        for key, tag in STEP_SCALARS.items():
            # float() reads "NaN" and "Infinity", too.
            self.writer.add_scalar(tag, float(record[key]), record["step"], walltime=self.now)
        self.steps += 1

    def add_evaluation(self, record: dict[str, Any]) -> None:
        self.writer.add_scalar(
            "eval/loss", float(record["loss"]), record["step"], walltime=self.now
        )

    def add_sample(self, record: dict[str, Any]) -> None:
        text = as_code(record["prompt"] + record["text"])
        self.writer.add_text("sample", text, record["step"], walltime=self.now)


def as_code(text: str) -> str:
    """Markdown that shows the text as it is."""
    return "\n".join("    " + line for line in text.split("\n"))


def convert(path: Path, logdir: Path, follow: bool) -> int:
    """Returns the number of steps. A new run under the same name is followed, too."""
    steps = 0
    while True:
        with closing(make_writer(logdir)) as writer:
            converter = Converter(writer)
            ended = convert_run(path, converter, follow)
            steps += converter.steps
        if ended or not follow:
            return steps


def convert_run(path: Path, converter: Converter, follow: bool) -> bool:
    """Whether the run's end was seen."""
    number = 0
    for line in whole_lines(path, follow):
        if not line:
            converter.writer.flush()
            continue
        number += 1
        record = parse(path, number, line)
        try:
            converter.add(record)
        except (KeyError, TypeError, ValueError) as error:
            raise LogError(
                f'{path}: line {number}: "{record["kind"]}" has a missing or wrong field: {error}'
            ) from error
        if record["kind"] == "end":
            return True
    return False


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m shardwise.tensorboard",
        description="Turns the log of numbers of a training run into TensorBoard's event files.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.jsonl", help="the log of numbers")
    parser.add_argument(
        "--logdir", type=Path, help="for the event files (default: tensorboard/ beside the log)"
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on while the run writes, until it ends"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logdir = options.logdir or options.run.parent / "tensorboard"
    try:
        if not options.run.is_file():
            raise LogError(f"{options.run}: there is no such file")
        steps = convert(options.run, logdir, options.follow)
    except (LogError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{steps} steps written; to look at them: tensorboard --logdir {logdir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
