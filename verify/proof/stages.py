"""The rules by which a value's meaning and roundings follow from those of its operands.

A stage names what a value is in the derivation of `verify_norm.reference.rounding`: X, the sum of X, MEAN, XC = x − μ,
the sum of its squares, VAR, …. A rule says which operation of which stages makes which stage; what no rule makes is
UNKNOWN, and no output may be. Each rule is a step of that derivation, so that its roundings are counted there; what
depends on the kernel is the depth of sums, which a stage carries. Rules do not look at values: that a MEAN is the mean
of its row, and not of another, is what the identity test shows.
"""

import math
from typing import Literal, NamedTuple

from verify_norm.proof.ttir import Line

Operator = Literal["add", "sub", "mul", "div", "sqrt", "rsqrt"]
QUOTIENTS = {"MEAN": "mean", "VAR": "variance", "C1": "c1", "C2": "c2"}  # a sum meets 1/N: compared with the truth


class Stage(NamedTuple):
    """What a value is: its depth of additions, and the type it was rounded to last.

    `words` are those of the contract that roundings on the way need, such as "xhat=bf16". `why` says why it is UNKNOWN,
    and `at` in which line. `degree` is that of the polynomial in the data, `roots` how often the reciprocal root is a
    factor. Each further turn of a loop over tiles adds `turns` to the depth, of one over lines of programs `folds`.
    """

    kind: str
    depth: int = 0
    narrow: str = ""
    words: frozenset[str] = frozenset()
    why: str = ""
    at: Line = Line("", 0)
    degree: int = 0
    roots: int = 0
    turns: int = 0
    folds: int = 0


class Rule(NamedTuple):
    """What an operation makes of two stages; `sums` adds 1 to the larger depth, else the depth is `depth`."""

    operator: Operator
    left: str
    right: str
    result: str
    sums: bool = False
    depth: int = 0
    same: bool = False  # both operands have to be equal: a square
    keeps: bool = False  # the depth is that of the operands


def _symmetric(*rules: Rule) -> tuple[Rule, ...]:
    turned = (r._replace(left=r.right, right=r.left) for r in rules if r.operator in ("add", "mul"))
    return (*rules, *turned)


RULES = _symmetric(
    Rule("add", "X0", "RESIDUAL", "X"),
    Rule("add", "X", "X", "ΣX", sums=True),
    Rule("add", "ΣX", "X", "ΣX", sums=True),
    Rule("add", "ΣX", "ΣX", "ΣX", sums=True),
    Rule("div", "1", "N", "1/N"),
    Rule("div", "ΣX", "N", "MEAN", keeps=True),
    Rule("mul", "ΣX", "1/N", "MEAN", keeps=True),
    Rule("sub", "X", "MEAN", "XC"),
    Rule("mul", "XC", "XC", "ΣXC²", depth=1, same=True),
    Rule("add", "ΣXC²", "ΣXC²", "ΣXC²", sums=True),
    Rule("div", "ΣXC²", "N", "VAR", keeps=True),
    Rule("mul", "ΣXC²", "1/N", "VAR", keeps=True),
    Rule("add", "VAR", "EPS", "VAR+EPS", keeps=True),
    Rule("sqrt", "VAR+EPS", "", "STD"),
    Rule("div", "1", "STD", "RSTD"),
    Rule("rsqrt", "VAR+EPS", "", "RSTD"),
    Rule("mul", "XC", "RSTD", "XHAT"),
    Rule("div", "XC", "STD", "XHAT"),
    Rule("add", "W", "OFFSET", "W+"),
    Rule("add", "W", "1", "W+"),
    *(
        rule
        for w in ("W", "W+")
        for rule in (Rule("mul", "XHAT", w, "W·XHAT"), Rule("mul", w, "RSTD", "W·RSTD"), Rule("mul", "DY", w, "G"))
    ),
    Rule("mul", "XC", "W·RSTD", "W·XHAT"),
    Rule("add", "W·XHAT", "B", "Y"),
    Rule("mul", "G", "XHAT", "ΣGX", depth=1),
    Rule("add", "ΣGX", "ΣGX", "ΣGX", sums=True),
    Rule("div", "ΣGX", "N", "C1", keeps=True),
    Rule("mul", "ΣGX", "1/N", "C1", keeps=True),
    Rule("add", "G", "G", "ΣG", sums=True),
    Rule("add", "ΣG", "G", "ΣG", sums=True),
    Rule("add", "ΣG", "ΣG", "ΣG", sums=True),
    Rule("div", "ΣG", "N", "C2", keeps=True),
    Rule("mul", "ΣG", "1/N", "C2", keeps=True),
    Rule("mul", "XHAT", "C1", "X·C1"),
    Rule("add", "X·C1", "C2", "C2+X·C1"),
    Rule("sub", "G", "C2+X·C1", "G−C2−X·C1"),
    Rule("sub", "G", "C2", "G−C2"),
    Rule("sub", "G−C2", "X·C1", "G−C2−X·C1"),
    Rule("sub", "G", "X·C1", "G−X·C1"),
    Rule("sub", "G−X·C1", "C2", "G−C2−X·C1"),
    Rule("mul", "RSTD", "G−C2−X·C1", "DX"),
    Rule("mul", "RSTD", "G−X·C1", "DX"),
    Rule("add", "DX", "DH", "DX+DH"),
    Rule("mul", "DY", "XHAT", "ΣDY·X", depth=1),
    Rule("add", "ΣDY·X", "ΣDY·X", "ΣDY·X", sums=True),
    Rule("add", "DY", "DY", "ΣDY", sums=True),
    Rule("add", "ΣDY", "DY", "ΣDY", sums=True),
    Rule("add", "ΣDY", "ΣDY", "ΣDY", sums=True),
)
UNCENTRED = _symmetric(  # RMSNorm: x itself takes the place of x − μ
    Rule("mul", "X", "X", "ΣXC²", depth=1, same=True),
    Rule("mul", "X", "RSTD", "XHAT"),
    Rule("div", "X", "STD", "XHAT"),
    Rule("mul", "X", "W·RSTD", "W·XHAT"),
)
SUM_OF = {"X": "ΣX", "G": "ΣG", "DY": "ΣDY"}  # a term is also the sum of itself alone
# Stages that may be rounded to a narrower type midway, with the contract's word for it.
ONCE_ROUNDED = {"XHAT": "xhat", "X": "residual"}
REASONS = {  # what a rule does not make, and why that matters
    ("mul", "X", "X"): "x² of values that are not centred: E[x²] − mean² cancels where the mean is large",
    ("mul", "X", "RSTD"): "x·rstd of values that are not centred: x·a + b cancels where the mean is large",
    ("mul", "X", "W·RSTD"): "x·a + b of values that are not centred cancels where the mean is large",
    ("mul", "XC", "W"): "w·(x − μ) before rstd: what underflows there has no bound",
    ("mul", "X", "W"): "w·x before rstd: what underflows there has no bound",
    ("sub", "ΣX", "MEAN"): "the mean is subtracted from a sum",
}
OUTPUTS = {  # the stages that an output may have
    "y": ("Y", "W·XHAT", "XHAT"),
    "mean": ("MEAN",),
    "rstd": ("RSTD",),
    "residual_out": ("X",),
    "dx": ("DX", "DX+DH"),
    "dweight": ("ΣDY·X",),
    "dbias": ("ΣDY", "DY"),
}


class Rules:
    """The rules of an operator."""

    def __init__(self, *, centred: bool, fused: bool) -> None:
        rules = RULES if centred else (*RULES, *UNCENTRED)
        self._midway = {kind for kind in ONCE_ROUNDED if fused or kind != "X"}
        self._table = {(r.operator, r.left, r.right): r for r in rules}

    def binary(self, operator: Operator, left: Stage, right: Stage, *, element: str, same: bool) -> Stage:
        """Return what an operation makes of two values; `same` says that they are equal in every element."""
        degree, roots = _degree(operator, left, right)
        for operand in left, right:
            if operand.kind == "UNKNOWN":
                return operand._replace(degree=degree, roots=roots)
        if operator == "add" and "0" in (left.kind, right.kind):
            return (right if left.kind == "0" else left)._replace(degree=degree, roots=roots)
        of_inputs = operator == "add" and {left.kind, right.kind} == {"X0", "RESIDUAL"}
        if element != "f32" and of_inputs and not left.narrow and not right.narrow:  # a sum that is rounded once
            return Stage("X", narrow=element, degree=degree, roots=roots)
        if element != "f32":
            return unknown(f"arithmetic in {element}: {left.kind} {operator} {right.kind}", degree, roots)
        for operand in left, right:
            if operand.narrow and operand.kind not in self._midway:
                return unknown(f"{operand.kind} is rounded to {operand.narrow} before it is used", degree, roots)
        rule = self._table.get((operator, left.kind, right.kind))
        if rule is None or (rule.same and not same):
            why = REASONS.get((operator, left.kind, right.kind)) or REASONS.get((operator, right.kind, left.kind))
            return unknown(why or f"no rule for {left.kind} {operator} {right.kind or 'alone'}", degree, roots)
        depth, turns, folds = rule.depth, 0, 0
        if rule.sums:
            depth = max(left.depth, right.depth) + 1
            turns, folds = max(left.turns, right.turns), max(left.folds, right.folds)
        elif rule.keeps:
            depth = max(left.depth, right.depth)
        midway = {f"{ONCE_ROUNDED[operand.kind]}={operand.narrow}" for operand in (left, right) if operand.narrow}
        words = left.words | right.words | midway
        return Stage(rule.result, depth, words=words, degree=degree, roots=roots, turns=turns, folds=folds)


def unknown(why: str, degree: int = 0, roots: int = 0) -> Stage:
    """Return the stage of a value that no rule makes."""
    return Stage("UNKNOWN", why=why, degree=degree, roots=roots)


def joined(a: Stage, b: Stage) -> Stage:
    """Return the stage of a value that is one or the other; a 0 takes that of the other, and a term that of its sum."""
    if SUM_OF.get(a.kind) == b.kind:
        a = a._replace(kind=b.kind)
    elif SUM_OF.get(b.kind) == a.kind:
        b = b._replace(kind=a.kind)
    if a.kind == "0":
        result = b
    elif b.kind in ("0", a.kind) or a.kind == "UNKNOWN":
        result = a
    elif b.kind == "UNKNOWN":
        result = b
    else:
        result = unknown(f"{a.kind} in some elements and {b.kind} in others")
    if result.kind != "UNKNOWN" and a.narrow and b.narrow and a.narrow != b.narrow:
        result = unknown(f"{result.kind} is rounded to {a.narrow} in some elements and to {b.narrow} in others")
    narrow = a.narrow or b.narrow if result.kind != "UNKNOWN" else ""
    return result._replace(
        depth=max(a.depth, b.depth),
        narrow=narrow,
        words=a.words | b.words,
        degree=max(a.degree, b.degree),
        roots=max(a.roots, b.roots),
        turns=max(a.turns, b.turns),
        folds=max(a.folds, b.folds),
    )


def _degree(operator: Operator, a: Stage, b: Stage) -> tuple[int, int]:
    """Return the degree of a result, and how often the reciprocal root is a factor of it."""
    if operator in ("add", "sub"):
        return max(a.degree, b.degree), max(a.roots, b.roots)
    if operator == "mul":
        return a.degree + b.degree, a.roots + b.roots
    if operator in ("sqrt", "rsqrt"):
        return 0, 1
    return a.degree + (b.degree if b.kind != "STD" else 0), a.roots + b.roots


def failure(degree: int, roots: int) -> int:
    """Return a bound on the degree of what has to vanish, after the reciprocal root is eliminated by its norm.

    F(x, r) of degree a in x, with r^±1 at most b times, times r^b is A + B·r; with r² = 1/v its norm A²v − B² has a
    degree of at most 2(a + 4b) + 2.
    """
    return 2 * (degree + 4 * roots) + 2


def reduction(size: int, each: int, threads: int, *, last: bool) -> int:
    """Return the depth of tt.reduce over `size` elements, of which a thread holds at most `each`.

    A thread adds its own elements, and a tree adds those of the threads. Along the last axis the threads lie side by
    side, each with up to 8 adjacent elements (16 bytes).
    """
    own = min(size, max(1, each))
    if last:
        own = min(own, max(8, -(-size // threads)))
    return own - 1 + math.ceil(math.log2(-(-size // own)))
