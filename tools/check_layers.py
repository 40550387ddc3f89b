#!/usr/bin/env python3
"""Checks who includes whom against tools/layers.toml: every edge is in the table, the table has no
cycle, torch stays out of the modules without torch, every module has a README of 10 to 30 lines."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cpp_syntax import Source, includes
from project import (
    CPP_SUFFIXES,
    Finding,
    Module,
    expect,
    project_files,
    read_layers,
    run_checker,
    write_tree,
)

SOURCES = "src/shardwise"
TABLE = "tools/layers.toml"
TORCH_HEADERS = ("ATen/", "torch/", "c10/", "caffe2/", "pybind11/")
README_LINES = range(10, 31)


def module_of(path: str) -> str | None:
    """src/shardwise/comm/gloo/x.cpp -> comm; None for files directly under src/shardwise."""
    parts = path.split("/")
    return parts[2] if path.startswith(SOURCES + "/") and len(parts) > 3 else None


def check_table(layers: dict[str, Module]) -> Iterator[Finding]:
    """Each edge goes to a known module of a lower level, which also rules out cycles."""
    for module in layers.values():
        for other in module.may_include:
            if other == "*":
                continue
            if other not in layers:
                yield Finding(TABLE, 1, f"{module.name} may include {other}, which is not listed")
            elif layers[other].level >= module.level:
                yield Finding(
                    TABLE,
                    1,
                    f"{module.name} (level {module.level}) may include {other} (level "
                    f"{layers[other].level}): only lower levels, or a cycle becomes possible",
                )
            elif not module.torch and layers[other].torch:
                yield Finding(TABLE, 1, f"{module.name} is without torch and may include {other}")


def check_include(root: Path, module: Module, path: str, line: int, quoted: str) -> Finding | None:
    target = quoted.strip('"<>')
    if target.startswith(TORCH_HEADERS) and not module.torch:
        return Finding(path, line, f"{module.name} is without torch and includes {quoted}")
    if not quoted.startswith('"'):
        return None
    if not target.startswith("shardwise/"):
        return Finding(path, line, f'{quoted}: write includes from the root, "shardwise/..."')
    if not (root / "src" / target).is_file():
        return Finding(path, line, f"{quoted} does not exist")
    other = module_of("src/" + target)
    if other is not None and not module.allows(other):
        return Finding(path, line, f"{module.name} may not include {other} ({TABLE})")
    return None


def check_readme(root: Path, name: str) -> Finding | None:
    readme = f"{SOURCES}/{name}/README.md"
    if not (root / readme).is_file():
        return Finding(readme, 1, f"module {name} has no README.md")
    lines = len((root / readme).read_text().splitlines())
    if lines not in README_LINES:
        return Finding(readme, 1, f"{lines} lines; a module's README has 10 to 30")
    return None


def check(root: Path) -> list[Finding]:
    layers = read_layers(root / TABLE)
    findings = list(check_table(layers))
    seen: set[str] = set()
    for path in project_files(root, *CPP_SUFFIXES):
        name = module_of(path)
        if name is None:
            continue
        seen.add(name)
        if name not in layers:
            findings.append(Finding(path, 1, f"module {name} is not in {TABLE}"))
            continue
        for line, quoted in includes(Source.parse(root, path)):
            found = check_include(root, layers[name], path, line, quoted)
            if found is not None:
                findings.append(found)
    readmes = (check_readme(root, name) for name in sorted(seen))
    return findings + [found for found in readmes if found is not None]


def self_test() -> list[str]:
    table = (
        "[base]\nlevel = 0\ntorch = false\nmay_include = []\n"
        '[config]\nlevel = 1\ntorch = false\nmay_include = ["base"]\n'
        '[comm]\nlevel = 2\ntorch = true\nmay_include = ["base", "zero"]\n'
        '[zero]\nlevel = 3\ntorch = true\nmay_include = ["comm"]\n'
    )
    good_readme = "line\n" * 12
    files = {
        TABLE: table,
        "src/shardwise/base/README.md": good_readme,
        "src/shardwise/base/a.h": "#pragma once\n#include <vector>\n",
        "src/shardwise/base/up.h": '#include "shardwise/config/c.h"\n',
        "src/shardwise/config/README.md": "too short\n",
        "src/shardwise/config/c.h": '#include "shardwise/base/a.h"\n#include <ATen/ATen.h>\n',
        "src/shardwise/config/relative.cpp": '#include "c.h"\n',
        "src/shardwise/config/missing.cpp": '#include "shardwise/base/none.h"\n',
        "src/shardwise/config/quiet.cpp": '// #include "shardwise/zero/z.h"\nconst char* s = '
        'R"(\n#include "shardwise/zero/z.h"\n)";\n',
        "src/shardwise/new/n.h": "#pragma once\n",
    }
    wanted = [
        (TABLE, "only lower levels"),
        ("src/shardwise/base/up.h", "base may not include config"),
        ("src/shardwise/config/README.md", "1 lines"),
        ("src/shardwise/config/c.h", "without torch"),
        ("src/shardwise/config/relative.cpp", "from the root"),
        ("src/shardwise/config/missing.cpp", "does not exist"),
        ("src/shardwise/new/n.h", "not in"),
        ("src/shardwise/new/README.md", "no README"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), files)
        return expect(check(Path(folder)), wanted)


if __name__ == "__main__":
    sys.exit(run_checker("check_layers", check, self_test))
