"""Which arithmetic differs between two kernels: their fingerprints side by side, and a case whose sums are exact."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial

from verify_norm.auditing.audit import PATIENCE
from verify_norm.auditing.fingerprint.order import same_order
from verify_norm.auditing.fingerprint.probing import fingerprint
from verify_norm.auditing.fingerprint.statement import CONTRACT_FIELDS, SURE, UNDECIDED, Fingerprint, Statement
from verify_norm.core.contract import Contract
from verify_norm.core.spec import CaseSpec
from verify_norm.equality.model import Arithmetic, Contrast, Declared, Difference, Exact
from verify_norm.equality.onset import resized, size_of
from verify_norm.equality.walk import SIDES, Walk
from verify_norm.running.patience import LostError, Time

SEEDS = 4  # of the case with exact sums
LONG = 512  # its least N: enough elements to show a rounding of any kind
EPS = 0.1  # next to a variance of 1, so that x̂ is no power of two and a rounding of it shows


def arithmetic(walk: Walk, differences: tuple[Difference, ...]) -> Arithmetic:
    """Return the properties in which the kernels' fingerprints differ, and what differs where sums are exact."""
    printed: list[Fingerprint] = []
    for side, runner in zip(SIDES, walk.runners, strict=True):
        try:
            printed.append(runner.call(partial(fingerprint, device=walk.settings.device), Time(PATIENCE)))
        except LostError as lost:
            walk.skipped["fingerprint", f"{side} was lost: {lost}"] += 1
    found: tuple[Contrast, ...] = ()
    alike: tuple[tuple[str, str], ...] = ()
    if len(printed) == len(SIDES):
        found, alike = tuple(contrasts(*printed)), tuple(shared(*printed))
    promised = tuple(declared(*(kernel.contract for kernel in walk.kernels)))
    return Arithmetic(found, alike, promised, exact_sums(walk, differences))


def _pairs(a: Fingerprint, b: Fingerprint) -> Iterator[tuple[Statement, Statement]]:
    """Yield what both fingerprints say of the same property, unless neither decides it."""
    for one in a.statements:
        other = b.of(one.name, one.dtype)
        if other is not None and {one.said, other.said} != {UNDECIDED}:
            yield one, other


def contrasts(a: Fingerprint, b: Fingerprint) -> Iterator[Contrast]:
    """Yield the properties in which two fingerprints differ, with the field of the contract.

    >>> one, two = (Statement("variance", said, "off by …", 0.95) for said in ("two_pass", "one_pass"))
    >>> prints = (Fingerprint("k", "layernorm_fwd", "cpu", (statement,)) for statement in (one, two))
    >>> [(found.field, found.a, found.b, found.sure) for found in contrasts(*prints)]
    [('variance', 'two_pass', 'one_pass', True)]
    """
    for one, other in _pairs(a, b):
        if not _agree(one, other):
            sure = min(one.confidence, other.confidence) >= SURE
            evidence = (one.evidence, other.evidence)
            yield Contrast(CONTRACT_FIELDS[one.name], one.name, one.dtype, one.said, other.said, evidence, sure)


def shared(a: Fingerprint, b: Fingerprint) -> Iterator[tuple[str, str]]:
    """Yield the properties that both fingerprints decide alike, with their values."""
    for one, other in _pairs(a, b):
        if _agree(one, other):
            where = "" if one.dtype == "float32" else f" for {one.dtype}"
            yield f"{one.name}{where}", one.said


def _agree(one: Statement, other: Statement) -> bool:
    """Return whether two statements have the same value, of an order the same tree."""
    return one.said == other.said and same_order(one.tree, other.tree)


def declared(a: Contract, b: Contract) -> Iterator[Declared]:
    """Yield the fields in which the declared contracts differ.

    >>> list(declared(Contract(), Contract(lanes=32)))
    [Declared(field='lanes', a='128', b='32')]
    """
    for field in fields(Contract):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if one != other:
            yield Declared(field.name, str(one), str(other))


def exact_sums(walk: Walk, differences: tuple[Difference, ...]) -> Exact | None:
    """Return what differs for x = ±1 in turn, from the size of the first difference on; None if that tells nothing.

    Then Σx = 0 and Σx² = N are exact in any order and any type that holds N, and so is every partial sum. If a forward
    pass still differs, the order of its sums is not why. It tells nothing unless random x of that size differ. A
    backward pass sums products with dy, which are not exact.
    """
    spec = next((one.spec for one in differences if one.gap.element is not None), None)
    if spec is None or walk.op.forward is not None or walk.op.view == "channels":
        return None
    plain = replace(spec, offset=0.0, log2_scale=0, special=None, eps=EPS, data="normal")
    random = _with_long_rows(walk, plain)
    if random is None:
        return None
    exact = replace(random, data="alternating")
    in_random, in_exact = _over_seeds(walk, random), _over_seeds(walk, exact)
    return Exact(exact, tuple(sorted(in_exact))) if in_random else None


def _with_long_rows(walk: Walk, spec: CaseSpec) -> CaseSpec | None:
    """Return the case with an even N of LONG or more, the first that whole channels have; None if there is none."""
    length = max(size_of(spec, walk.op, "N"), LONG)
    for size in range(length + length % 2, length + LONG, 2):
        longer = resized(spec, walk.op, "N", size, walk.settings.device)
        if longer is not None:
            return longer
    return None


def _over_seeds(walk: Walk, spec: CaseSpec) -> set[str]:
    """Return the outputs that differ in a case with any of a few seeds."""
    outputs = set()
    for seed in range(SEEDS):
        looked = walk.look(walk.fitted(replace(spec, seed=seed)))
        outputs |= {gap.output for gap in looked.gaps if gap.output}
    return outputs
