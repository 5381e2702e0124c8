"""The contract that a kernel keeps, by the depths of its sums; those over rows are functions of M."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from verify_norm.core.contract import Contract
from verify_norm.core.promises import arithmetic
from verify_norm.proof.memory import NotProved
from verify_norm.proof.shapes import Form
from verify_norm.proof.shown import Configuration, Proved
from verify_norm.reference.arithmetic import Arithmetic

LANES = (128, 64, 32, 16, 8, 4, 2, 1)
SUMS = {"MEAN": False, "VAR": True, "C1": True, "C2": False, "ΣDY·X": True, "ΣDY": False}  # of products or of terms
OVER_ROWS = {"dweight": "ΣDY·X", "dbias": "ΣDY"}
NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
FEW = 2**12  # numbers of rows that are looked at one by one


class Growing(NamedTuple):
    """The depth of a sum over rows: depth + turns·(⌈T/G⌉ − 1) + folds·(⌈G/lines⌉ − 1), of T = ⌈M/rows⌉ tiles.

    G programs share them; G is at most that of `programs`, and ⌈T/G⌉ at most ⌈T/programs[0]⌉.
    """

    depth: int
    turns: int
    folds: int
    rows: int
    lines: int
    programs: tuple[int, int]

    def __str__(self) -> str:
        turns = f"{self.turns}·(⌈⌈M/{self.rows}⌉/G⌉ − 1)"
        return f"min(M, {self.depth} + {turns} + {self.folds}·(⌈G/{self.lines}⌉ − 1)), with G programs"

    def at(self, m: int) -> int:
        """Return the depth of a sum over m rows: no term meets more roundings than there are terms."""
        tiles = -(-m // self.rows)
        folds = -(-min(tiles, self.programs[1]) // self.lines) - 1
        return min(m, self.depth + self.turns * (-(-tiles // self.programs[0]) - 1) + self.folds * folds)

    def line(self, m: int) -> float:
        """Return a bound on the depth that is linear in m."""
        turns = (m / self.rows + 1) / self.programs[0]
        return self.depth + self.turns * turns + self.folds * (self.programs[1] / self.lines)

    def within(self, a: Arithmetic, most: int, *, products: bool) -> bool:
        """Return whether a sum over rows is no deeper than its bound allows, for every M up to `most`.

        What the bound allows is concave in M: beyond a few M it is above a line where it is at both ends.
        """
        few = all(self.at(m) <= a.terms(m, products=products) for m in range(1, min(FEW, most) + 1))
        return few and all(self.line(m) <= a.terms(m, products=products) for m in {FEW, max(FEW, most)})


def growing(proved: Proved, forms: Sequence[tuple[str, Form]]) -> Iterator[tuple[str, Growing]]:
    """Yield the sums over rows whose depth depends on M."""
    for _, form in forms:
        for name, kind in OVER_ROWS.items():
            if form.programs and name in proved.outputs:
                stage = proved.outputs[name]
                yield kind, Growing(stage.depth, stage.turns, stage.folds, form.rows, proved.lines, form.programs)


def depths(proved: Proved) -> dict[str, int]:
    """Return the depth of the deepest sum behind each quotient, and of each sum over rows."""
    found: dict[str, int] = {}
    for value in proved.values.values():
        for kind in SUMS.keys() & value["depth"].keys():
            found[kind] = max(found.get(kind, 0), value["depth"][kind])
    return found


def promise(
    config: Configuration, proved: Proved, forms: Sequence[tuple[str, Form]], rows: int, most_rows: int
) -> Contract:
    """Return the strictest contract whose sums are at least as deep as those of the kernel; raises NotProved."""
    words = {word for stage in proved.outputs.values() for word in stage.words}
    narrow = {name: NAMES[kind] for name, _, kind in (word.partition("=") for word in words)}
    if len(words) > len(narrow):
        raise NotProved("rounding", f"no contract has all of {', '.join(sorted(words))}")
    contract = Contract(variance="two_pass", xhat=narrow.get("xhat"))  # type: ignore[arg-type]
    if narrow.get("residual", config.dtype) != config.dtype:
        raise NotProved("rounding", f"the sum is rounded to {narrow['residual']}, and x is {config.dtype}")
    if "residual" in narrow:
        contract = replace(contract, residual="rounded")
    of_rows = list(growing(proved, forms))
    fixed = depths(proved)
    for kind, _ in of_rows:
        fixed.pop(kind, None)
    terms = {kind: rows * max(config.positions, 1) if kind in OVER_ROWS.values() else config.columns for kind in fixed}
    for lanes in LANES:
        a = arithmetic(replace(contract, lanes=lanes), config.dtype)
        kept = all(  # what adds a 0 is exact
            min(deep, terms[kind]) <= a.terms(terms[kind], products=SUMS[kind]) for kind, deep in fixed.items()
        )
        if kept and all(one.within(a, most_rows, products=SUMS[kind]) for kind, one in of_rows):
            return replace(contract, lanes=lanes)
    return replace(contract, summation="sequential")
