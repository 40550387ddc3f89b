"""Reads C++ with tree-sitter: includes, functions, classes. CUDA launches are blanked first, since
the C++ grammar does not know them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tree_sitter
import tree_sitter_cpp

LAUNCH = re.compile(rb"<<<(.*?)>>>", re.DOTALL)
FUNCTION_SCOPES = ("function_definition", "lambda_expression")
CLASSES = ("class_specifier", "struct_specifier")


def _blank_launch(match: re.Match[bytes]) -> bytes:
    return re.sub(rb"[^\n]", b" ", match.group(0))


@dataclass(frozen=True)
class Source:
    """One parsed file."""

    path: str
    text: bytes
    root: tree_sitter.Node

    @classmethod
    def parse(cls, root: Path, name: str) -> "Source":
        text = (root / name).read_bytes()
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))
        return cls(name, text, parser.parse(LAUNCH.sub(_blank_launch, text)).root_node)

    def line_count(self) -> int:
        return self.text.count(b"\n") + (not self.text.endswith(b"\n") and bool(self.text))

    def launches(self) -> Iterator[int]:
        """Lines of kernel launches outside comments and strings."""
        for match in LAUNCH.finditer(self.text):
            node = self.root.descendant_for_byte_range(match.start(), match.start())
            if node is None or node.type not in ("comment", "string_content", "raw_string_content"):
                yield self.text.count(b"\n", 0, match.start()) + 1


def walk(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """All nodes below and including `node`, in source order."""
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack.extend(reversed(at.children))


def text_of(node: tree_sitter.Node | None) -> str:
    return "" if node is None else node.text.decode(errors="replace")


def line_of(node: tree_sitter.Node) -> int:
    return node.start_point[0] + 1


def lines_in(node: tree_sitter.Node) -> int:
    return node.end_point[0] - node.start_point[0] + 1


def includes(source: Source) -> Iterator[tuple[int, str]]:
    """(line, path with its quotes or angle brackets) of each #include."""
    for node in walk(source.root):
        if node.type == "preproc_include":
            yield line_of(node), text_of(node.child_by_field_name("path"))


def function_declarator(node: tree_sitter.Node | None) -> tree_sitter.Node | None:
    """The function_declarator under pointers, references and the like; None if there is none."""
    while node is not None and node.type != "function_declarator":
        inner = node.child_by_field_name("declarator")
        if inner is None:
            inner = next((c for c in node.children if c.type.endswith("declarator")), None)
        node = inner
    return node


def function_name(node: tree_sitter.Node) -> str:
    declarator = function_declarator(node.child_by_field_name("declarator"))
    if declarator is None:
        return text_of(node.child_by_field_name("declarator"))
    return text_of(declarator.child_by_field_name("declarator"))


def parameter_count(node: tree_sitter.Node) -> int:
    declarator = function_declarator(node.child_by_field_name("declarator"))
    parameters = declarator.child_by_field_name("parameters") if declarator is not None else None
    if parameters is None:
        return 0
    return sum(child.type.endswith("parameter_declaration") for child in parameters.children)


@dataclass(frozen=True)
class ClassShape:
    """What the size rules ask of a class."""

    name: str
    line: int
    public_functions: int
    virtual_functions: int
    pure: bool
    fields: int
    constructor_parameters: int


def _is_special(name: str, class_name: str) -> bool:
    return name == class_name or name.startswith(("~", "operator"))


def _member_kind(member: tree_sitter.Node) -> str:
    """function, field or other."""
    if member.type == "template_declaration":
        inner = [c for c in member.children if c.type in ("function_definition", "declaration")]
        return "function" if inner else "other"
    if member.type == "function_definition":
        return "function"
    if member.type not in ("field_declaration", "declaration"):
        return "other"
    if function_declarator(member.child_by_field_name("declarator")) is not None:
        return "function"
    words = {text_of(c) for c in member.children if c.type in ("storage_class_specifier", "friend")}
    is_constant = "static" in words
    return "other" if is_constant or member.type == "declaration" else "field"


def _field_names(member: tree_sitter.Node) -> int:
    """None for a nested type, which is a declaration without a name of its own."""
    names = len(member.children_by_field_name("declarator"))
    kind = member.child_by_field_name("type")
    return names if kind is not None and kind.type in CLASSES else max(1, names)


def class_shape(node: tree_sitter.Node) -> ClassShape | None:
    body = node.child_by_field_name("body")
    name = text_of(node.child_by_field_name("name"))
    if body is None:
        return None
    access = "public" if node.type == "struct_specifier" else "private"
    public = virtual = pure = fields = parameters = 0
    functions = 0
    for member in body.children:
        if member.type == "access_specifier":
            access = text_of(member).rstrip(":").strip()
            continue
        kind = _member_kind(member)
        if kind == "field":
            fields += _field_names(member)
        if kind != "function":
            continue
        inner = member
        if member.type == "template_declaration":
            inner = next(
                c for c in member.children if c.type in ("function_definition", "declaration")
            )
        member_name = function_name(inner)
        if member_name == name:
            parameters = max(parameters, parameter_count(inner))
        if _is_special(member_name, name):
            continue
        functions += 1
        public += access == "public"
        is_virtual = any(text_of(c) == "virtual" for c in inner.children)
        virtual += is_virtual
        pure += is_virtual and text_of(inner).replace(" ", "").endswith("=0;")
    is_interface = pure > 0 and pure == functions and fields == 0
    return ClassShape(name, line_of(node), public, virtual, is_interface, fields, parameters)


def classes(source: Source) -> Iterator[ClassShape]:
    for node in walk(source.root):
        if node.type in CLASSES:
            shape = class_shape(node)
            if shape is not None:
                yield shape


def functions(source: Source) -> Iterator[tuple[str, int, int, bool]]:
    """(name, line, number of lines, is a CUDA kernel) of each function with a body."""
    for node in walk(source.root):
        if node.type == "function_definition" and node.child_by_field_name("body") is not None:
            # Attributes such as __launch_bounds__ can make the grammar begin behind __global__.
            begin = source.text.rfind(b"\n", 0, node.start_byte) + 1
            head = source.text[begin : node.child_by_field_name("body").start_byte]
            yield function_name(node), line_of(node), lines_in(node), b"__global__" in head
