#!/usr/bin/env python3
"""Compiles the modules that must do without torch (torch = false in tools/layers.toml) with no
include path but src/: all headers of a module in one go, the sources through the preprocessor."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from project import Finding, expect, project_files, read_layers, run_checker, write_tree

TABLE = "tools/layers.toml"
# Sources of CUDA need the toolkit's headers, which a machine may lack; the build compiles them.
CUDA_FOLDERS = ("/cuda/", "/nccl/")


def compiler() -> list[str]:
    return [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++20"]


def compile_error(arguments: list[str], text: str | None = None) -> str | None:
    """The first error line of the compiler; None when it succeeds."""
    command = [*compiler(), *arguments]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    lines = result.stderr.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "failed")


def check_module(root: Path, name: str) -> list[Finding]:
    folder = f"src/shardwise/{name}/"
    paths = [p for p in project_files(root, ".h", ".cpp") if p.startswith(folder)]
    paths = [p for p in paths if not any(part in p for part in CUDA_FOLDERS)]
    findings = []
    include = ["-I", str(root / "src")]
    headers = "".join(f'#include "{p.removeprefix("src/")}"\n' for p in paths if p.endswith(".h"))
    if headers:
        error = compile_error([*include, "-fsyntax-only", "-x", "c++", "-"], headers)
        if error:
            findings.append(Finding(folder, 1, f"headers do not compile without torch: {error}"))
    sources = [str(root / p) for p in paths if p.endswith(".cpp")]
    if sources:
        error = compile_error([*include, "-M", *sources])
        if error:
            findings.append(Finding(folder, 1, f"sources do not compile without torch: {error}"))
    return findings


def check(root: Path) -> list[Finding]:
    layers = read_layers(root / TABLE)
    names = [name for name, module in layers.items() if not module.torch]
    return [found for name in names for found in check_module(root, name)]


def self_test() -> list[str]:
    table = "".join(
        f"[{name}]\nlevel = 0\ntorch = false\nmay_include = []\n"
        for name in ("base", "io", "config")
    )
    files = {
        TABLE: table,
        "src/shardwise/base/good.h": "#pragma once\n#include <vector>\nstd::vector<int> f();\n",
        "src/shardwise/base/good.cpp": '#include "shardwise/base/good.h"\n',
        "src/shardwise/io/bad.h": "#include <ATen/core/Tensor.h>\n",
        "src/shardwise/config/bad.cpp": "#include <c10/core/Device.h>\n",
    }
    wanted = [("src/shardwise/io/", "headers"), ("src/shardwise/config/", "sources")]
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), files)
        return expect(check(Path(folder)), wanted)


if __name__ == "__main__":
    sys.exit(run_checker("check_torch_free", check, self_test))
