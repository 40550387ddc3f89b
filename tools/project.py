"""What the checkers share: the project's files, the layer table, and how findings are reported."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = frozenset({"build", "dist", "runs", "__pycache__"})


@dataclass(frozen=True)
class Finding:
    """One broken rule at one place; `path` is relative to the root that was checked."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Module:
    """One row of tools/layers.toml."""

    name: str
    level: int
    torch: bool
    may_include: tuple[str, ...] = field(default=())

    def allows(self, other: str) -> bool:
        return other == self.name or other in self.may_include or "*" in self.may_include


def read_layers(path: Path) -> dict[str, Module]:
    table = tomllib.loads(path.read_text())
    return {
        name: Module(name, row["level"], row["torch"], tuple(row["may_include"]))
        for name, row in table.items()
    }


def _git_files(root: Path) -> list[str] | None:
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode != 0 or not (root / ".git").exists():
        return None
    return [name for name in result.stdout.decode().split("\0") if name]


def _walked_files(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".venv") or part == ".git" for part in parts)
        if path.is_file() and not hidden and not SKIPPED_FOLDERS.intersection(parts):
            yield str(path.relative_to(root))


def project_files(root: Path, *suffixes: str) -> list[str]:
    """Tracked and not ignored files below `root` that end in one of `suffixes` (all when none)."""
    names = _git_files(root)
    if names is None:
        names = list(_walked_files(root))
    return sorted(
        name
        for name in set(names)
        if (not suffixes or name.endswith(suffixes)) and (root / name).is_file()
    )


CPP_SUFFIXES = (".h", ".cpp", ".cu", ".cuh")


def write_tree(root: Path, files: dict[str, str]) -> None:
    """Writes a small tree for a self-test."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def expect(findings: list[Finding], wanted: list[tuple[str, str]]) -> list[str]:
    """Compares a self-test's findings with pairs (path, part of the text); returns complaints."""
    complaints = []
    for path, part in wanted:
        if not any(f.path == path and part in f.text for f in findings):
            complaints.append(f"not found: {path}: ...{part}...")
    for f in findings:
        if not any(f.path == path and part in f.text for path, part in wanted):
            complaints.append(f"found, but right: {f}")
    return complaints


def run_checker(
    name: str, check: Callable[[Path], list[Finding]], self_test: Callable[[], list[str]]
) -> int:
    """The main function of a checker: `--self-test`, or the check of the project."""
    if sys.argv[1:] == ["--self-test"]:
        complaints = self_test()
        for complaint in complaints:
            print(f"{name} self-test: {complaint}", file=sys.stderr)
        return 1 if complaints else 0
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    findings = check(root)
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0
