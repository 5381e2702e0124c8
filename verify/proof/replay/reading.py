"""Reads the TTIR of a certificate."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
TYPE = re.compile(r"(?:tensor<((?:\d+x)*))?(!tt\.ptr|bf16|f\d+|i\d+)")


class Rejected(Exception):  # noqa: N818
    """What a certificate claims and a replay does not find."""


class Operation(NamedTuple):
    """One operation; `targets` are the names that scf.for defines, and `blocks` its regions."""

    results: list[str]
    name: str
    operands: list[str]
    text: str
    targets: list[str]
    blocks: list[list["Operation"]]

    def type(self) -> tuple[tuple[int, ...], str]:
        """Return the shape and the element of the result."""
        kinds = TYPE.findall(self.text.split(" : ")[-1].rpartition("->")[2].rpartition(" to ")[2]) or [("", "")]
        shape, element = kinds[-1] if self.name == "arith.select" else kinds[0]
        return tuple(int(size) for size in shape.split("x") if size), element

    def number(self, word: str) -> int:
        """Return an attribute, 0 where there is none."""
        return int((re.findall(rf"{word} = (\d+)", self.text) or [0])[0])


def assembly(text: str) -> set[str]:
    """Return the assembly in a text of TTIR."""
    return {" ".join(one.replace("\\0A", " ").split()) for one in re.findall(r'inline_asm "((?:[^"\\]|\\.)*)"', text)}


@lru_cache
def read(ttir: str) -> tuple[list[str], list[Operation]]:
    """Return the parameters of a kernel, and its operations."""
    lines = [re.sub(r"\s+loc\([^\"]*\)$", "", line).strip() for line in ttir.splitlines()]
    head = next(i for i, line in enumerate(lines) if line.startswith("tt.func"))
    return re.findall(r"(%[\w$.-]+): ", lines[head]), _operations(lines[head + 1 :])


def _operations(rest: list[str]) -> list[Operation]:
    """Return the operations up to the closing brace, which is left in front of the rest."""
    found: list[Any] = []
    while rest and not rest[0].startswith("}"):
        line, blocks = rest.pop(0), []
        if line.startswith("^"):
            found.append(Operation([], "^", [], "", NAME.findall(line), []))
            continue
        opened = line.endswith("{")
        while opened:
            blocks.append(_operations(rest))
            closing = rest.pop(0)
            opened = closing.endswith("{")
            line += closing.lstrip("}") if not opened else ""
        left, _, right = line.partition(" = ") if re.match(r"%[^(]* = ", line) else ("", "", line)
        name, counted = re.match(r'"?([\w.]+)', right), re.match(r"(%[\w$.-]+):(\d+)$", left)
        results = [f"{counted[1]}#{i}" for i in range(int(counted[2]))] if counted else NAME.findall(left)
        bare = re.sub(r"<?\{[^{}]*\}>?", "", re.sub(r'"(?:[^"\\]|\\.)*"', "", right, count=2)).split(" : ")[0]
        targets = re.findall(r"(%[\w$.-]+) = ", bare)
        operands = [one for one in NAME.findall(bare) if one not in targets]
        found.append(Operation(results, name[1] if name else "", operands, right, targets, blocks))
    return found
