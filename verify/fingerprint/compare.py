"""Where a declared contract and a fingerprint disagree."""

from __future__ import annotations

from collections.abc import Iterator

from verify_norm.dtypes import FORMATS
from verify_norm.fingerprint.statement import UNDECIDED, Fingerprint, Statement
from verify_norm.spec import Contract

SURE = 0.75  # what is less certain accuses nobody
WORSE: dict[str, tuple[str, ...]] = {  # what a promise excludes; what is more accurate is within it
    "two_pass": ("one_pass", "shifted", "welford"),
    "centered": ("one_pass", "shifted"),
    "shifted": ("one_pass",),
}


def disagreements(contract: Contract, fingerprint: Fingerprint) -> tuple[str, ...]:
    """What the kernel does that its contract excludes, each with the evidence.

    A kernel that keeps more than it promises does not disagree.

    >>> from verify_norm.fingerprint.statement import Statement
    >>> seen = Statement("variance", "one_pass", "off by 0.1 at 2^10 σ", 0.95)
    >>> disagreements(Contract(), Fingerprint("k", "layernorm_fwd", "cpu", (seen,)))
    ('the contract says variance=centered, and the variance is one_pass: off by 0.1 at 2^10 σ',)
    """
    sure = [s for s in fingerprint.statements if s.said != UNDECIDED and s.confidence >= SURE]
    return tuple(dict.fromkeys(line for statement in sure for line in _against(contract, statement)))


def _against(contract: Contract, seen: Statement) -> Iterator[str]:
    """What one statement says against the contract."""
    promised = _excluded(contract, seen)
    if promised is not None:
        where = "" if seen.dtype == "float32" else f" for {seen.dtype}"
        yield f"the contract says {promised}, and the {seen.name}{where} is {seen.said}: {seen.evidence}"


def _excluded(contract: Contract, seen: Statement) -> str | None:
    """The promise that the statement breaks."""
    name, said = seen.name, seen.said
    kept = contract.accumulate
    if name.endswith(" accumulator") and not name.startswith("row"):
        kept = min((kept, _type(contract.partials, seen)), key=lambda n: FORMATS[n].precision)
        return f"accumulate={contract.accumulate}, partials={contract.partials}" if _narrower(said, kept) else None
    if name == "row accumulator":
        return f"accumulate={kept}" if _narrower(said, kept) else None
    if name.endswith(" partials"):
        return f"partials={contract.partials}" if _narrower(said, _type(contract.partials, seen)) else None
    if name in ("statistics", "used statistics"):
        return f"stats={contract.stats}" if _narrower(said, _type(contract.stats, seen)) else None
    broken = {
        "variance": (f"variance={contract.variance}", said in WORSE[contract.variance]),
        "xhat": ("xhat=None", contract.xhat is None and said == "rounded"),
        "form": ("expanded=False", not contract.expanded and said == "expanded"),
        "deterministic": ("deterministic=True", contract.deterministic and said == "no"),
        "batch invariant": ("batch_invariant=True", contract.batch_invariant and said == "no"),
    }
    if name.startswith("long "):
        return (
            f"summation={contract.summation}" if contract.summation != "sequential" and said == "sequential" else None
        )
    promise, is_broken = broken.get(name, ("", False))
    return promise if is_broken else None


def _type(name: str, seen: Statement) -> str:
    """The type that a promise means for these inputs."""
    return seen.dtype if name == "x" else name


def _narrower(said: str, promised: str) -> bool:
    return FORMATS[said].precision < FORMATS[promised].precision
