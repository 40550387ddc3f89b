#!/usr/bin/env python3
"""Checks the sizes of files, functions and classes in C++ and Python, and that Python modules have
no mutable state. Exempt: structs of the configuration, made from its field list (fields only), and
the compatibility package `deepspeed`."""

import ast
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cpp_syntax import ClassShape, Source, classes, functions
from project import CPP_SUFFIXES, Finding, expect, project_files, run_checker, write_tree

FILE_LINES = 800
FUNCTION_LINES = 80
KERNEL_LINES = 150
PUBLIC_FUNCTIONS = 25
FIELDS = 15
CONSTRUCTOR_PARAMETERS = 6
INTERFACE_VIRTUALS = 12

EXEMPT = ("python/deepspeed/",)
# DeepSpeed's engine has this many names that users call; ours forward.
WIDE_FACADES = (("python/shardwise/engine.py", "Engine"),)
FIELD_LIST_STRUCTS = ("src/shardwise/config/",)
MUTABLE_CALLS = frozenset(
    {"list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque"}
)
MUTATING_METHODS = frozenset(
    {"append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault", "add",
     "discard", "sort", "reverse", "popitem"}
)  # fmt: skip


def too_many(path: str, line: int, what: str, count: int, limit: int) -> Iterator[Finding]:
    if count > limit:
        yield Finding(path, line, f"{what}: {count}, at most {limit}")


def check_class(path: str, shape: ClassShape) -> Iterator[Finding]:
    name = shape.name or "unnamed class"
    at = (path, shape.line)
    yield from too_many(
        *at, f"public functions of {name}", shape.public_functions, PUBLIC_FUNCTIONS
    )
    if not path.startswith(FIELD_LIST_STRUCTS):
        yield from too_many(*at, f"fields of {name}", shape.fields, FIELDS)
    yield from too_many(
        *at,
        f"constructor parameters of {name}",
        shape.constructor_parameters,
        CONSTRUCTOR_PARAMETERS,
    )
    if shape.pure:
        yield from too_many(
            *at,
            f"virtual functions of interface {name}",
            shape.virtual_functions,
            INTERFACE_VIRTUALS,
        )


def check_cpp(root: Path, path: str) -> Iterator[Finding]:
    source = Source.parse(root, path)
    yield from too_many(path, 1, "lines of the file", source.line_count(), FILE_LINES)
    for name, line, lines, kernel in functions(source):
        limit = KERNEL_LINES if kernel else FUNCTION_LINES
        yield from too_many(path, line, f"lines of {name}", lines, limit)
    for shape in classes(source):
        yield from check_class(path, shape)


def self_fields(function: ast.FunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def check_python_class(path: str, node: ast.ClassDef) -> Iterator[Finding]:
    methods = [m for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))]
    public = sum(not m.name.startswith("_") for m in methods)
    if (path, node.name) not in WIDE_FACADES:
        yield from too_many(
            path, node.lineno, f"public functions of {node.name}", public, PUBLIC_FUNCTIONS
        )
    fields = {
        m.target.id
        for m in node.body
        if isinstance(m, ast.AnnAssign) and isinstance(m.target, ast.Name)
    }
    for method in methods:
        fields |= self_fields(method)
        if method.name == "__init__":
            arguments = method.args
            count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
            yield from too_many(
                path,
                method.lineno,
                f"constructor parameters of {node.name}",
                count,
                CONSTRUCTOR_PARAMETERS,
            )
    yield from too_many(path, node.lineno, f"fields of {node.name}", len(fields), FIELDS)


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)):
        return True
    if isinstance(value, ast.Call):
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in MUTABLE_CALLS
    return False


def module_assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None, int]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value, node.lineno


def mutated_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names that code in the file changes in place: x[...] = , del x[...], x.append(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            if isinstance(node.value, ast.Name):
                yield node.value.id, node.lineno
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATING_METHODS
            and isinstance(node.func.value, ast.Name)
        ):
            yield node.func.value.id, node.lineno


def check_module_state(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Mutable values at module level are allowed as CONSTANTS that nobody changes."""
    constants = set()
    for name, value, line in module_assignments(tree):
        if not is_mutable(value) or (name.startswith("__") and name.endswith("__")):
            continue
        if name.isupper():
            constants.add(name)
        else:
            yield Finding(path, line, f"{name}: mutable state at module level")
    for name, line in mutated_names(tree):
        if name in constants:
            yield Finding(path, line, f"{name}: a module's constant is changed")
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield Finding(path, node.lineno, f"global {', '.join(node.names)}: module-level state")


def check_python(root: Path, path: str) -> Iterator[Finding]:
    text = (root / path).read_text()
    tree = ast.parse(text, path)
    yield from too_many(path, 1, "lines of the file", len(text.splitlines()), FILE_LINES)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield from too_many(path, node.lineno, f"lines of {node.name}", lines, FUNCTION_LINES)
        elif isinstance(node, ast.ClassDef):
            yield from check_python_class(path, node)
    yield from check_module_state(path, tree)


def check(root: Path) -> list[Finding]:
    findings: list[Finding] = []
    for path in project_files(root, *CPP_SUFFIXES):
        findings.extend(check_cpp(root, path))
    for path in project_files(root, ".py"):
        if not path.startswith(EXEMPT):
            findings.extend(check_python(root, path))
    return findings


def bad_tree() -> dict[str, str]:
    statements = "  x += 1;\n" * 90
    class_body = "".join(f"  int f{i}();\n" for i in range(26))
    fields = "".join(f"  int f{i}_ = 0;\n" for i in range(16))
    nested = "".join(f"  class N{i};\n  struct M{i} {{ int i; }};\n" for i in range(9))
    virtuals = "".join(f"  virtual void v{i}() = 0;\n" for i in range(13))
    wide = ", ".join(f"int p{i}" for i in range(7))
    python_body = "    x += 1\n" * 80
    return {
        "src/shardwise/a/long.cpp": "int x;\n" * 801,
        "src/shardwise/a/function.cpp": "void f() {\n" + statements + "}\n",
        "src/shardwise/a/kernel.cu": "__global__ void k() {\n" + statements + "}\n"
        "void launch() { k<<<1, 2>>>(); }\n",
        "src/shardwise/a/kernel_bounds.cu": "template <typename T>\n"
        "__global__ __launch_bounds__(kMost) void b(const L l,\n    const A a) {\n"
        + statements
        + "}\n",
        "src/shardwise/a/kernel_long.cu": "__global__ void k() {\n" + statements * 2 + "}\n",
        "src/shardwise/a/public.h": "class A {\n public:\n" + class_body + "};\n",
        "src/shardwise/a/hidden.h": "class A {\n private:\n" + class_body + "};\n",
        "src/shardwise/a/fields.h": "struct A {\n" + fields + "};\n",
        "src/shardwise/a/nested.h": "struct A {\n" + nested + "};\n",
        "src/shardwise/config/fields.h": "struct A {\n" + fields + "};\n",
        "src/shardwise/a/interface.h": "class I {\n public:\n" + virtuals + "};\n",
        "src/shardwise/a/constructor.h": f"class C {{\n public:\n  C({wide});\n}};\n",
        "python/p/function.py": "def f(x):\n" + python_body + "    return x\n",
        "python/p/state.py": "cache = {}\nLIMITS = {1: 2}\n__all__ = ['a']\n",
        "python/p/changed.py": "TABLE = {}\n\n\ndef f():\n    TABLE[1] = 2\n",
        "python/p/constructor.py": "class C:\n"
        "    def __init__(self, a, b, c, d, e, f, g):\n        pass\n",
        "python/deepspeed/state.py": "cache = {}\n",
    }


def self_test() -> list[str]:
    wanted = [
        ("src/shardwise/a/long.cpp", "lines of the file: 801"),
        ("src/shardwise/a/function.cpp", "lines of f: 92"),
        ("src/shardwise/a/kernel_long.cu", "lines of k: 182"),
        ("src/shardwise/a/public.h", "public functions of A: 26"),
        ("src/shardwise/a/fields.h", "fields of A: 16"),
        ("src/shardwise/a/interface.h", "interface I: 13"),
        ("src/shardwise/a/constructor.h", "constructor parameters of C: 7"),
        ("python/p/function.py", "lines of f: 82"),
        ("python/p/state.py", "cache: mutable"),
        ("python/p/changed.py", "TABLE: a module's constant"),
        ("python/p/constructor.py", "constructor parameters of C: 7"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), bad_tree())
        return expect(check(Path(folder)), wanted)


if __name__ == "__main__":
    sys.exit(run_checker("check_sizes", check, self_test))
