"""What a fingerprint states: a value of each property, with evidence and confidence; where a contract excludes it."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from typing_extensions import TypeAliasType

from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS

UNDECIDED = "undecided"
Tree = TypeAliasType("Tree", "int | tuple[Tree, ...]")  # the index of a summand, or the parts that are added


@dataclass(frozen=True, slots=True)
class Statement:
    """One property of a kernel's arithmetic."""

    name: str  # of NAMES
    said: str  # its value, such as "two_pass", or UNDECIDED
    evidence: str  # what the kernel returned for which input; if undecided, why
    confidence: float  # probability that a kernel with this evidence has this value; 0 if undecided
    dtype: str = "float32"  # of x in the evidence
    tree: Tree | None = None  # the order of a sum


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All statements about one kernel; a property without a statement does not show. `runs` counts runs of the kernel.

    >>> Fingerprint("k", "layernorm_fwd", "cpu", (Statement("divisor", "N", "...", 0.9),)).value("divisor")
    'N'
    """

    kernel: str
    op: str
    device: str
    statements: tuple[Statement, ...]
    runs: int = 0

    def of(self, name: str, dtype: str | None = None) -> Statement | None:
        """Return the statement with this name, for this dtype or the first one; None if there is none."""
        return next((s for s in self.statements if s.name == name and dtype in (None, s.dtype)), None)

    def value(self, name: str, dtype: str | None = None) -> str | None:
        """Return the value that this statement gives; None if there is none, or it is undecided."""
        found = self.of(name, dtype)
        return None if found is None or found.said == UNDECIDED else found.said


class HiddenError(Exception):
    """No output shows a property: the kernel does not take the input, fails, or does not return the output."""


def shown(statements: Iterator[Statement]) -> Iterator[Statement]:
    """Yield the statements of a probe until it raises HiddenError."""
    with suppress(HiddenError):
        yield from statements


def undecided(name: str, why: str, dtype: str = "float32") -> Statement:
    """Return a statement without a value, with the reason."""
    return Statement(name, UNDECIDED, why, 0.0, dtype)


def disagreements(contract: Contract, fingerprint: Fingerprint) -> tuple[str, ...]:
    """Return a line, with the evidence, for each statement that the contract excludes.

    A kernel that is more accurate than promised agrees with its contract.

    >>> seen = Statement("variance", "one_pass", "off by 0.1 at 2^10 σ", 0.95)
    >>> disagreements(Contract(), Fingerprint("k", "layernorm_fwd", "cpu", (seen,)))
    ('the contract says variance=centered, and the variance is one_pass: off by 0.1 at 2^10 σ',)
    """
    lines = []
    for seen in fingerprint.statements:
        sure = seen.said != UNDECIDED and seen.confidence >= SURE
        promised = _broken(contract, seen) if sure else None
        if promised is not None:
            where = "" if seen.dtype == "float32" else f" for {seen.dtype}"
            lines.append(f"the contract says {promised}, and the {seen.name}{where} is {seen.said}: {seen.evidence}")
    return tuple(dict.fromkeys(lines))


def _broken(contract: Contract, seen: Statement) -> str | None:
    """Return the promise of the contract that the statement contradicts; None if it contradicts none."""
    if seen.name in TYPED:
        dtypes = {name: getattr(contract, name) for name in TYPED[seen.name]}
        narrowest = min(FORMATS[seen.dtype if dtype == "x" else dtype].precision for dtype in dtypes.values())
        promise = ", ".join(f"{name}={dtype}" for name, dtype in dtypes.items())
        return promise if FORMATS[seen.said].precision < narrowest else None
    promises: dict[str, tuple[str, tuple[str, ...]]] = {  # by property: the promise, and the values that it excludes
        "variance": (f"variance={contract.variance}", WORSE[contract.variance]),
        "xhat": ("xhat=None", ("rounded",) if contract.xhat is None else ()),
        "form": ("expanded=False", () if contract.expanded else ("expanded",)),
        "deterministic": ("deterministic=True", ("no",) if contract.deterministic else ()),
        "batch invariant": ("batch_invariant=True", ("no",) if contract.batch_invariant else ()),
        "long": (f"summation={contract.summation}", () if contract.summation == "sequential" else ("sequential",)),
    }
    name = "long" if seen.name.startswith("long ") else seen.name
    promise, excluded = promises.get(name, ("", ()))
    return promise if seen.said in excluded else None


TYPED: dict[str, tuple[str, ...]] = {  # the promises about the statements that name a dtype
    "row accumulator": ("accumulate",),
    "dweight accumulator": ("accumulate", "partials"),
    "dbias accumulator": ("accumulate", "partials"),
    "dweight partials": ("partials",),
    "dbias partials": ("partials",),
    "statistics": ("stats",),
    "used statistics": ("stats",),
}
SURE = 0.75  # a statement with less confidence contradicts nothing
WORSE: dict[str, tuple[str, ...]] = {  # the variances that a promised one excludes: the less accurate ones
    "two_pass": ("one_pass", "shifted", "welford"),
    "centered": ("one_pass", "shifted"),
    "shifted": ("one_pass",),
}
NAMES: dict[str, str] = {
    "row accumulator": "dtype of the sum over a row: of x, of x² in RMSNorm, of w·dy in a backward pass",
    "dweight accumulator": "dtype of the sum of dweight over the rows, within one block",
    "dbias accumulator": "dtype of the sum of dbias over the rows, within one block",
    "dweight partials": "narrowest dtype that holds a partial sum of dweight",
    "dbias partials": "narrowest dtype that holds a partial sum of dbias",
    "variance": "one_pass, two_pass, welford (or Chan's merge), shifted (by x[0]), centered (algorithm unknown)",
    "divisor": "N or N-1",
    "eps place": "inside or outside the root, or clamped: max(var, eps)",
    "eps value": "as given, or the value that the kernel uses instead",
    "statistics": "precision of the mean and rstd that a forward pass returns",
    "statistics source": "whether a backward pass uses the given statistics, or recomputes them",
    "used statistics": "precision of the statistics that a backward pass uses",
    "xhat": "whether x̂ is rounded to the dtype of x before the multiplication by the weight",
    "form": "centred, (x − mean)·rstd, or expanded, x·a + b",
    "fma": "whether the last multiplication and addition are fused",
    "formula": "the only formula whose float32 evaluation gives the bits of y",
    "row order": "order of the sum over a row",
    "dweight order": "order of the sum of dweight over the rows",
    "dbias order": "order of the sum of dbias over the rows",
    "long row sum": "sequential if thousands of elements of a row are added one by one",
    "long dbias sum": "sequential if thousands of rows are added one by one to dbias",
    "long dweight sum": "sequential if thousands of rows are added one by one to dweight",
    "deterministic": "whether every run returns the same bits",
    "batch invariant": "whether the bits of a row are independent of the other rows",
}
CONTRACT_FIELDS: dict[str, str] = {  # the fields of the contract that speak of a property; "" if none does
    **{name: ", ".join(TYPED.get(name, ())) for name in NAMES},
    **{name: "summation, lanes" for name in NAMES if name.endswith(" order")},
    **{name: "summation" for name in NAMES if name.startswith("long ")},
    **{name: name.replace(" ", "_") for name in ("variance", "xhat", "deterministic", "batch invariant")},
    "form": "expanded",
}
