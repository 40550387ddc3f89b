#!/usr/bin/env python3
"""All static checks, each with its time; with --fix, formats C++ and Python in place instead."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from project import CPP_SUFFIXES, ROOT, project_files

CHECKERS = ("check_layers", "check_sizes", "check_form", "check_words", "check_torch_free")
BIN = Path(sys.executable).parent


def run(*command: str) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def clang_format(*arguments: str) -> bool:
    files = project_files(ROOT, *CPP_SUFFIXES)
    return not files or run(str(BIN / "clang-format"), *arguments, *files)


def ruff(*arguments: str) -> bool:
    return run(str(BIN / "ruff"), *arguments, "--quiet")


def checker(name: str) -> bool:
    path = str(ROOT / "tools" / f"{name}.py")
    if not run(sys.executable, path, "--self-test"):
        print(f"{name}: its self-test failed", file=sys.stderr)
        return False
    return run(sys.executable, path)


def fix() -> int:
    formatted = clang_format("-i")
    fixed = ruff("check", "--fix")
    return 0 if ruff("format") and fixed and formatted else 1


@dataclass(frozen=True)
class Step:
    name: str
    passes: Callable[[], bool]


def steps() -> list[Step]:
    checkers = [Step(name, lambda name=name: checker(name)) for name in CHECKERS]
    return [
        Step("clang-format", lambda: clang_format("--dry-run", "--Werror")),
        Step("ruff format", lambda: ruff("format", "--check")),
        Step("ruff check", lambda: ruff("check")),
        *checkers,
    ]


def lint() -> int:
    failed = []
    for step in steps():
        start = time.monotonic()
        passed = step.passes()
        seconds = time.monotonic() - start
        print(
            f"lint: {step.name:<16} {'ok' if passed else 'FAILED':<6} {seconds:5.1f} s", flush=True
        )
        if not passed:
            failed.append(step.name)
    if failed:
        print(
            f"lint: failed: {', '.join(failed)}; `make format` repairs formatting", file=sys.stderr
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(fix() if sys.argv[1:] == ["--fix"] else lint())
