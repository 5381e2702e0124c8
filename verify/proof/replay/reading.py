"""Reads the TTIR of a certificate."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
TYPE = re.compile(r"(?:tensor<((?:\d+x)*))?(!tt\.ptr|bf16|f\d+|i\d+)")
ASSEMBLY = re.compile(r'inline_asm "((?:[^"\\]|\\.)*)"')


class Rejected(Exception):  # noqa: N818
    """What a certificate claims and a replay does not find."""


class Operation(NamedTuple):
    """One operation: shape and element are of its result; scf.for defines `targets`, and `blocks` are its regions."""

    results: list[str]
    name: str
    operands: list[str]
    text: str
    shape: tuple[int, ...] = ()
    element: str = ""
    targets: Sequence[str] = ()
    blocks: Sequence[list["Operation"]] = ()

    def number(self, word: str) -> int:
        """Return an attribute, 0 where there is none."""
        return int((re.findall(rf"{word} = (\d+)", self.text) or [0])[0])


def assembly(text: str) -> set[str]:
    """Return the assembly in a text of TTIR."""
    return {" ".join(one.replace("\\0A", " ").split()) for one in ASSEMBLY.findall(text)}


def widest(ttir: str) -> int:
    """Return the number of elements of a kernel's largest tensor."""
    sizes = (sizes for sizes, _ in TYPE.findall(ttir) if sizes)
    return max((math.prod(map(int, one[:-1].split("x"))) for one in sizes), default=1)


@lru_cache
def read(ttir: str) -> tuple[list[str], list[Operation]]:
    """Return the parameters of a kernel, and its operations."""
    lines = [re.sub(r"\s+loc\([^\"]*\)$", "", line).strip() for line in ttir.splitlines()]
    head = next(i for i, line in enumerate(lines) if line.startswith("tt.func"))
    return re.findall(r"(%[\w$.-]+): ", lines[head]), _operations(lines[head + 1 :])


def _operations(rest: list[str]) -> list[Operation]:
    """Return the operations up to the closing brace, which is left in front of the rest."""
    found = []
    while rest and not rest[0].startswith("}"):
        line, blocks = rest.pop(0), []
        while line.endswith("{"):
            blocks.append(_operations(rest))
            line = line[:-1] + rest.pop(0).lstrip("}")
        found.append(_operation(line, blocks))
    return found


def _operation(line: str, blocks: list[list[Operation]]) -> Operation:
    """Return one operation, or as "^" the arguments of a block."""
    if line.startswith("^"):
        return Operation([], "^", [], "", targets=NAME.findall(line))
    left, _, right = line.partition(" = ") if re.match(r"%[^(]* = ", line) else ("", "", line)
    name, counted = re.findall(r'^"?([\w.]+)', right)[0], re.match(r"(%[\w$.-]+):(\d+)$", left)
    results = [f"{counted[1]}#{i}" for i in range(int(counted[2]))] if counted else NAME.findall(left)
    bare = re.sub(r"<?\{[^{}]*\}>?", "", re.sub(r'"(?:[^"\\]|\\.)*"', "", right, count=2)).split(" : ")[0]
    targets = re.findall(r"(%[\w$.-]+) = ", bare)
    operands = [one for one in NAME.findall(bare) if one not in targets]
    kinds = TYPE.findall(right.split(" : ")[-1].rpartition("->")[2].rpartition(" to ")[2]) or [("", "")]
    sizes, element = kinds[-1] if name == "arith.select" else kinds[0]
    shape = tuple(int(size) for size in sizes.split("x") if size)
    return Operation(results, name, operands, right, shape, element, targets, blocks)
