#!/usr/bin/env python3
"""Checks every text file for words that must not be in the project: unfinished-work marks, hosts of
package registries, and paths of a single machine. Patterns are assembled from parts, so that this
file passes its own check."""

import re
import sys
import tempfile
from pathlib import Path

from project import Finding, expect, project_files, run_checker, write_tree

MARKS = ("TO" + "DO", "FIX" + "ME", "X" * 3)
HOSTS = (
    ("py" + "pi", "org"),
    ("python" + "hosted", "org"),
    ("deb." + "debian", "org"),
    ("archive." + "ubuntu", "com"),
    ("registry." + "npmjs", "org"),
    ("download." + "pytorch", "org"),
)
PATHS = ("/wo" + "rk/", "/tmp/" + "sw", "/root" + "/", "issues" + " show")
BANNED = re.compile(
    "|".join(
        [rf"\b(?:{'|'.join(MARKS)})\b"]
        + [re.escape(f"{name}.{domain}") for name, domain in HOSTS]
        + [rf"(?<![\w.$}}*]){re.escape(path)}" for path in PATHS]
    )
)
NOT_TEXT = (".png", ".so", ".gz", ".bin", ".pt", ".safetensors")


def check(root: Path) -> list[Finding]:
    findings = []
    for path in project_files(root):
        if path.endswith(NOT_TEXT):
            continue
        lines = (root / path).read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            match = BANNED.search(line)
            if match:
                findings.append(
                    Finding(path, number, f"{match.group(0)!r} may not be in the project")
                )
    return findings


def self_test() -> list[str]:
    files = {
        "a.cpp": f"// {MARKS[0]}: later\n",
        "b.md": "see https://" + ".".join(HOSTS[0]) + "/project\n",
        "c.py": f'path = "{PATHS[0]}main"\n',
        "d.sh": f"# {MARKS[2]}\n",
        "good.md": "The TODOS of a list, homework/x and network/y are fine, and so is XXXL.\n",
    }
    wanted = [(name, "may not be") for name in ("a.cpp", "b.md", "c.py", "d.sh")]
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), files)
        return expect(check(Path(folder)), wanted)


if __name__ == "__main__":
    sys.exit(run_checker("check_words", check, self_test))
