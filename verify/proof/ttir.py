"""Reads TTIR, the text of MLIR that Triton's frontend makes of a kernel, into operations with their source lines."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
HEAD = re.compile(r'^(?:(?P<results>%[\w$.:,# %-]+?) = )?"?(?P<name>[a-z]\w*\.[\w.]+)"?(?P<rest>.*)$')
AT = re.compile(r"\s+loc\((#loc\d*|unknown|.*)\)$")
DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")


class Unreadable(Exception):  # noqa: N818  (a reason, not a fault)
    """TTIR that this reader does not know."""


class Line(NamedTuple):
    """A line of source: of the user's code, not of Triton's library."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else "an unknown line"


class Type(NamedTuple):
    """The type of a value: its shape, () of a scalar, and that of an element: "f32", "i64", "i1" or "ptr"."""

    shape: tuple[int, ...]
    element: str


@dataclass(slots=True)
class Operation:
    """One operation: `text` is what follows its name, without strings and locations; `type` is that of a result."""

    name: str
    results: list[str]
    operands: list[str]
    text: str
    type: Type
    asm: str
    at: Line
    regions: list["Block"] = field(default_factory=list)


@dataclass(slots=True)
class Block:
    """Operations in order, and the names of the block's arguments."""

    arguments: list[str]
    operations: list[Operation] = field(default_factory=list)


class Program(NamedTuple):
    """A kernel: its parameters with their types, and its body."""

    name: str
    parameters: list[tuple[str, Type]]
    body: Block


def read(text: str) -> Program:
    """Return the kernel of a module of TTIR; raises Unreadable."""
    lines, locations = [], {}
    for raw in text.splitlines():
        if found := DEFINED.match(raw.strip()):
            locations[found[1]] = found[2]
        elif raw.strip() and raw.strip() not in ("module {", "}"):
            lines.append(raw.strip())
    heads = [i for i, line in enumerate(lines) if line.startswith("tt.func")]
    if len(heads) != 1 or heads[0] != next((i for i, line in enumerate(lines) if not line.startswith("module")), -1):
        raise Unreadable(f"expected a module of one function, got {len(heads)}")
    head = lines[heads[0]]
    name = re.search(r"@([\w$.]+)\(", head)
    parameters = re.findall(r"(%[\w$.-]+): (!tt\.ptr<[^>]*>|\w+)", head)
    body, rest = _block(lines[heads[0] + 1 :], locations, [])
    if name is None or any(not line.startswith("}") for line in rest):
        raise Unreadable(f"expected the end of the function, got {rest[0]}")
    return Program(name[1], [(one, type_of(kind)) for one, kind in parameters], body)


def _block(lines: list[str], locations: dict[str, str], arguments: list[str]) -> tuple[Block, list[str]]:
    """Return the operations up to the brace that ends the block, and the lines from that brace on."""
    block, i = Block(arguments), 0
    while i < len(lines) and not lines[i].startswith("}"):
        line = lines[i]
        if line.startswith("^"):
            if block.operations or block.arguments:
                raise Unreadable(f"branches between blocks: {line[:40]}")
            block.arguments = NAME.findall(line)
            i += 1
            continue
        regions: list[Block] = []
        rest = lines[i + 1 :]
        opened = line.rstrip().endswith("{")
        while opened:
            inner, rest = _block(rest, locations, _carried(line) if not regions else [])
            regions.append(inner)
            closing, rest = rest[0], rest[1:]
            opened = closing.endswith("{")
            line = line if opened else f"{line.removesuffix('{')} {closing.lstrip('}')}"
        block.operations.append(_operation(line, regions, locations))
        i = len(lines) - len(rest)
    return block, lines[i:]


def _carried(line: str) -> list[str]:
    """Return the arguments of the body of scf.for: its counter, and what it carries."""
    found = re.search(r"scf\.for (?:unsigned )?(%[\w$.-]+) = ", line)
    if found is None:
        return []
    carried = re.search(r"iter_args\((.*?)\)", line)
    pairs = re.findall(r"(%[\w$.-]+) = ", carried[1]) if carried else []
    return [found[1], *pairs]


def _operation(line: str, regions: list[Block], locations: dict[str, str]) -> Operation:
    asm = re.search(r'inline_asm "((?:[^"\\]|\\.)*)"', line)
    line = re.sub(r'(inline_asm) "(?:[^"\\]|\\.)*"', r"\1", line)
    at = AT.search(line)
    line = line[: at.start()] if at else line
    found = HEAD.match(line)
    if found is None:
        raise Unreadable(f"cannot read {line[:80]!r}")
    results: list[str] = []
    for one in (found["results"] or "").split(","):
        name, _, count = one.strip().partition(":")
        results += [f"{name}#{k}" for k in range(int(count))] if count else [name] if name else []
    name, rest = found["name"], found["rest"]
    plain = re.sub(r"<?\{[^{}]*\}>?", "", _without_targets(rest) if name == "scf.for" else rest)
    operands = NAME.findall(plain.split(" : ")[0])
    text = " ".join(asm[1].replace("\\0A", " ").split()) if asm else ""
    return Operation(name, results, operands, rest, _result_type(name, rest), text, _line(at, locations), regions)


def _without_targets(rest: str) -> str:
    """Return the text of scf.for without the names that it defines."""
    return re.sub(r"%[\w$.-]+ = ", "", rest)


def _result_type(name: str, rest: str) -> Type:
    if name.startswith("scf.") or " : " not in rest:
        return Type((), "")
    kinds = rest.split(" : ")[-1]
    if name in ("tt.load", "tt.atomic_rmw", "tt.atomic_cas"):
        pointer = type_of(kinds)
        inner = re.search(r"!tt\.ptr<([^>]*)>", kinds)
        return Type(pointer.shape, inner[1] if inner else "")
    for mark in (" to ", " -> "):
        if mark in kinds:
            return type_of(kinds.rpartition(mark)[2])
    found = re.findall(r"tensor<[^ ]*>|!tt\.ptr<[^>]*>|\bf\d+\b|\bbf16\b|\bi\d+\b|\bindex\b", kinds)
    if not found:
        return Type((), "")
    return type_of(found[-1] if name == "arith.select" else found[0])


def type_of(text: str) -> Type:
    """Return a type from its text.

    >>> type_of("tensor<2x1024x!tt.ptr<bf16>>"), type_of("f32")
    (Type(shape=(2, 1024), element='ptr'), Type(shape=(), element='f32'))
    """
    text = text.strip(" ()")
    found = re.match(r"tensor<((?:\d+x)*)(.*)>$", text.split(">,")[0] + (">" if ">," in text else ""))
    shape = tuple(int(size) for size in found[1].split("x") if size) if found else ()
    element = found[2] if found else text
    return Type(shape, "ptr" if element.startswith("!tt.ptr") else element.strip())


def _line(at: re.Match[str] | None, locations: dict[str, str]) -> Line:
    """Return the innermost line that is not of Triton's own library."""
    frames = list(_frames(at[1] if at else "", locations, 0))
    own = [one for one in frames if "/triton/language/" not in one.file]
    found = (own or frames or [Line("", 0)])[0]
    return Line("/".join(found.file.split("/")[-2:]), found.line)


def _frames(text: str, locations: dict[str, str], depth: int) -> list[Line]:
    if depth > 64:
        raise Unreadable("locations that refer to each other")
    if found := re.fullmatch(r'"(.*)":(\d+):\d+', text):
        return [Line(found[1], int(found[2]))]
    if found := re.fullmatch(r"callsite\((#loc\d*) at (#loc\d*)\)", text):
        return [line for one in found.groups() for line in _frames(one, locations, depth + 1)]
    if text.startswith("#loc"):
        return _frames(locations.get(text, ""), locations, depth + 1)
    return [line for one in re.findall(r"#loc\d*", text) for line in _frames(one, locations, depth + 1)]
