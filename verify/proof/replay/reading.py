"""Reads the TTIR of a certificate."""

import re
from collections import namedtuple
from typing import Any

NAME, TEXT = re.compile(r"%[\w$.-]+(?:#\d+)?"), re.compile(r'"((?:[^"\\]|\\.)*)"')
TYPE = re.compile(r"(?:tensor<((?:\d+x)*))?(!tt\.ptr<\w+|bf16|f\d+|i\d+)")
ASSEMBLY = """widen.bf16 shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;
widen.bf16 prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;
widen.f16 { .reg .b16 low, high; .reg .b32 turned; prmt.b32 turned, $2, $2, 0x1032; mov.b32 {high, low}, turned; \
cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }
wait griddepcontrol.wait; // dummy $0
nothing griddepcontrol.launch_dependents; // dummy $0
nothing { .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; \
@first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }"""  # that is known, behind the operation that it is
KNOWN = {text: name for name, text in (line.split(" ", 1) for line in ASSEMBLY.splitlines())}
# `word` stands behind the name; the last of `elements`, and `shape`, are the result's; scf.for defines `targets`
Operation = namedtuple("Operation", "results name word operands targets numbers shape elements blocks")


class Rejected(Exception):  # noqa: N818
    """What a certificate claims and a replay does not find."""


def read(ttir: str) -> tuple[list[str], list[Operation]]:
    """Return the parameters of a kernel, and its operations; raises KeyError for assembly that is not known."""
    head, *lines = (re.sub(r"\s+loc\([^\"]*\)$", "", one).strip() for one in ttir.split("tt.func")[1].splitlines())
    return re.findall(r"(%[\w$.-]+): ", head), _operations(lines)


def _operations(rest: list[str]) -> list[Operation]:
    """Return the operations up to the closing brace, which is left in front of the rest.

    The arguments of a block are the operands of an operation that has no meaning.
    """
    found = []
    while rest and not rest[0].startswith("}"):
        line, blocks = rest.pop(0), list[Any]()
        while line.endswith("{"):
            blocks.append(_operations(rest))
            line = line[:-1] + rest.pop(0).lstrip("}")
        result, count, right = re.findall(r"^(?:(%[\w$.-]+)(?::(\d+))? = )?(.*)", line)[0]
        name, word = re.findall(r'^[\^"]?([\w.]+)"?\s*(?:dense<)?([^\s,>]*)', right)[0]
        if name == "tt.extern_elementwise":
            name = re.findall(r'symbol = "(\w+)"', right)[0]
        if name == "tt.elementwise_inline_asm":
            name = KNOWN[" ".join(TEXT.findall(right)[0].replace("\\0A", " ").split())]
        results = [f"{result}#{i}" for i in range(int(count))] if count else [result]
        bare = re.sub(r"<?\{[^{}]*\}>?", "", TEXT.sub("", right)).split(" : ")[0]
        targets = re.findall(r"(%[\w$.-]+) = ", bare)
        operands = [one for one in NAME.findall(bare) if one not in targets]
        numbers = {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", right)}
        sizes, elements = zip(*TYPE.findall(right.split(" : ")[-1]) or [("", "")], strict=True)
        shape = tuple(int(size) for size in sizes[-1].split("x") if size)
        found.append(Operation(results, name, word, operands, targets, numbers, shape, list(elements), blocks))
    return found
