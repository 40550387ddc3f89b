#!/usr/bin/env python3
"""Checks rules of form in C++: where kernel launches, NCCL, the environment and process exits may
appear, that headers have no `using namespace`, that call sites have no feature #ifdef, and that no
file or class has a name that says nothing."""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cpp_syntax import CLASSES, Source, includes, line_of, text_of, walk
from project import CPP_SUFFIXES, Finding, expect, project_files, run_checker, write_tree

EMPTY_NAME = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)($|_)")
# DeepSpeed has modules of such names; the compatible names forward to ours.
NAME_EXEMPT = ("python/",)
EXITS = frozenset(
    {"abort", "exit", "_exit", "quick_exit", "std::abort", "std::exit", "std::quick_exit"}
)
EXIT_ALLOWED = ("src/shardwise/apps/", "src/shardwise/launcher/")
ENVIRONMENT = frozenset({"getenv", "std::getenv", "secure_getenv", "::getenv"})
ENVIRONMENT_FILE = "src/shardwise/config/env.cpp"
FEATURES = re.compile(r"\b(SW_WITH_\w+|USE_C10D_\w+|__CUDACC__)\b")


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def check_name(path: str) -> Iterator[Finding]:
    stem = Path(path).stem
    if EMPTY_NAME.search(snake(stem)) and not path.startswith(NAME_EXEMPT):
        yield Finding(path, 1, f"file name {stem} does not say what is in the file")


def check_calls(path: str, source: Source) -> Iterator[Finding]:
    test = path.endswith(("_test.cpp", "_test.cu"))
    for node in walk(source.root):
        if node.type == "call_expression":
            name = text_of(node.child_by_field_name("function"))
            if name in EXITS and not test and not path.startswith(EXIT_ALLOWED):
                yield Finding(path, line_of(node), f"{name}() in a library: throw an error")
            if name in ENVIRONMENT and not test and path != ENVIRONMENT_FILE:
                yield Finding(path, line_of(node), f"{name}(): only {ENVIRONMENT_FILE} reads it")
        elif node.type == "using_declaration" and path.endswith((".h", ".cuh")):
            if text_of(node).startswith("using namespace"):
                yield Finding(path, line_of(node), "using namespace in a header")
        elif node.type in CLASSES and node.child_by_field_name("body") is not None:
            name = text_of(node.child_by_field_name("name"))
            if EMPTY_NAME.search(snake(name)):
                yield Finding(path, line_of(node), f"class name {name} says nothing")


def check_features(path: str, source: Source) -> Iterator[Finding]:
    """Features differ by file (folders cuda/, no_cuda/, ...), not by #ifdef."""
    for node in walk(source.root):
        if node.type in ("preproc_ifdef", "preproc_if"):
            head = source.text[node.start_byte : node.end_byte].split(b"\n", 1)[0].decode()
            found = FEATURES.search(head)
            defines = [c for c in node.named_children if c.type != "identifier"]
            if found and [c.type for c in defines] == ["preproc_def"]:
                continue  # gives the macro its value, decides nothing
            if found and not (found.group(0) == "__CUDACC__" and "/kernels/" in path):
                yield Finding(
                    path, line_of(node), f"#if of {found.group(0)}: make a null twin instead"
                )


def check_places(path: str, source: Source) -> Iterator[Finding]:
    if path.startswith("src/") and not path.startswith("src/shardwise/kernels/"):
        for line in source.launches():
            yield Finding(path, line, "kernel launches belong under src/shardwise/kernels/")
    if not path.startswith("src/shardwise/comm/nccl/"):
        for line, quoted in includes(source):
            if re.search(r"nccl", quoted, re.IGNORECASE) and not quoted.startswith('"shardwise/'):
                yield Finding(path, line, f"{quoted}: NCCL belongs under src/shardwise/comm/nccl/")


def check(root: Path) -> list[Finding]:
    findings: list[Finding] = []
    for path in project_files(root, *CPP_SUFFIXES, ".py"):
        findings.extend(check_name(path))
    for path in project_files(root, *CPP_SUFFIXES):
        source = Source.parse(root, path)
        findings.extend(check_calls(path, source))
        findings.extend(check_features(path, source))
        findings.extend(check_places(path, source))
    return findings


def self_test() -> list[str]:
    files = {
        "src/shardwise/a/utils.cpp": "int x;\n",
        "src/shardwise/a/name.cpp": "class StreamManager {\n  int x_;\n};\n",
        "src/shardwise/a/exit.cpp": "void f() {\n  std::abort();\n}\n",
        "src/shardwise/a/env.cpp": 'auto* f() { return std::getenv("HOME"); }\n',
        "src/shardwise/a/using.h": "using namespace std;\n",
        "src/shardwise/a/feature.cpp": "#ifdef SW_WITH_CUDA\nint x;\n#endif\n",
        "src/shardwise/a/launch.cu": "void f() { k<<<1, 2>>>(); }\n",
        "bench/launch.cu": "void f() { k<<<1, 2>>>(); }\n",
        "src/shardwise/kernels/launch.cu": "void f() { k<<<1, 2>>>(); }\n",
        "src/shardwise/a/nccl.cpp": "#include <nccl.h>\n",
        "src/shardwise/a/define.cpp": "#ifndef SW_WITH_CUDA\n#define SW_WITH_CUDA 1\n#endif\n",
        "src/shardwise/a/good.cpp": "// std::abort(); k<<<1, 2>>>()\n"
        'const char* s = "getenv(x) <<< >>>";\nusing std::string;\n',
    }
    wanted = [
        ("src/shardwise/a/utils.cpp", "file name"),
        ("src/shardwise/a/name.cpp", "StreamManager"),
        ("src/shardwise/a/exit.cpp", "std::abort"),
        ("src/shardwise/a/env.cpp", "std::getenv"),
        ("src/shardwise/a/using.h", "using namespace"),
        ("src/shardwise/a/feature.cpp", "null twin"),
        ("src/shardwise/a/launch.cu", "kernel launches"),
        ("src/shardwise/a/nccl.cpp", "NCCL belongs"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), files)
        return expect(check(Path(folder)), wanted)


if __name__ == "__main__":
    sys.exit(run_checker("check_form", check, self_test))
