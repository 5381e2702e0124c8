"""Limits that a kernel states itself: it refuses every case of a class in words, and runs in no such case."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from verify_norm.cases.placement import placement
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.only import MEMORY, SIZES, applies
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Kernel, Op
from verify_norm.loading.bind import meant

FEW = 8  # cases that must run before cases that raise without words are compared with them
MOST_RANKS = 8  # a larger number in words is a threshold
# Words by which a kernel does not take the number that it names.
STRICT = re.compile(r">=|<(?!=)|\b(less|smaller|fewer|shorter|below|under)\b", re.IGNORECASE)
MOST_CLAUSES = 3  # of an --only that is suggested
FEWEST, MOSTLY = 2, 0.75  # failures outside of one of them, and their share of the cases outside


@dataclass(frozen=True, slots=True)
class Raised:
    """A case in which the kernel raised: the problem, and the kinds of limits of which it speaks."""

    spec: CaseSpec
    problem: str
    kinds: tuple[str, ...] = ()

    @property
    def wording(self) -> str:
        """The wording of the problem."""
        return wording(self.problem)


def wording(problem: str) -> str:
    """Return a problem without its numbers, by which the refusals of several cases are alike.

    >>> wording("ValueError: expected 2-D, got (3, 4, 5)")
    'ValueError: expected #-D, got (#)'
    """
    return re.sub(r"\d+(, *\d+)*,?", "#", problem)


@dataclass(frozen=True, slots=True)
class Trait:
    """A property of a case that a limit may be about: `of(spec, op)`, None where a case does not have it.

    Of a "yes" property the kernel takes the cases for which it is true, of an "ordered" one those to one side of a
    threshold, of any other those with some of its few values. `words` say what it takes, and `only` does as --only.
    """

    kind: str
    words: str
    only: str
    of: Callable[[CaseSpec, Op], Any]
    form: str = ""

    @property
    def about(self) -> str:
        """The name of its first clause."""
        return re.split(r"\W", self.only)[0]

    def limit(
        self, raised: set[Any], ran: set[Any], named: Collection[int] = (), *, strict: bool = True
    ) -> tuple[str, str] | None:
        """Return what the kernel takes, in words and as --only, if these values separate what raised from what ran.

        A rank or a threshold has to be one that the kernel has `named`, if it names any; the threshold is that number
        where it does not speak of what is less (`strict`).
        """
        ran = ran - {None}
        if None in raised or not ran or not raised.isdisjoint(ran):
            return None
        if self.form == "yes":
            return (f"{self.words} only", self.only) if raised == {False} else None
        if self.form == "ordered":
            low, high = (max(ran), min(raised)) if max(ran) < min(raised) else (max(raised), min(ran))
            thresholds = [n for n in named if n > MOST_RANKS and self.kind == "size"]
            if low >= high or not max(ran) or (thresholds and not any(low - 1 <= n <= high + 1 for n in thresholds)):
                return None
            said = [n for n in thresholds if low <= n < high] if low in ran and not strict else []
            if len(said) == 1:  # the number of its own words, and no neighbour that a case has
                return f"{self.words} of at most {said[0]:,g} only", f"{self.only}<={said[0]}"
            if low in ran:
                return f"{self.words} below {high:,g} only", f"{self.only}<{high}"
            return f"{self.words} above {low:,g} only", f"{self.only}>{low}"
        ranks = {n for n in named if n <= MOST_RANKS and self.kind == "rank"}
        if ranks and ranks.isdisjoint({min(ran), max(ran), min(raised), max(raised)}):
            return None
        values = sorted(map(str, ran))
        return f"{self.words.format(' or '.join(values))} only", f"{self.only}={'+'.join(values)}"

    def suggested(
        self, failed: Sequence[Any], passed: Sequence[Any], named: Collection[int] = ()
    ) -> tuple[int, float, str, set[Any]]:
        """Return an --only outside of which most cases fail; its threshold is one that the kernel has `named`, if any.

        With it come the number of failures outside, their share of the cases outside, and the values outside.
        """
        counts = {value: (failed.count(value), passed.count(value)) for value in {*failed, *passed}}
        if self.form == "ordered":
            least, most = min(failed), max(failed)
            below = max((v for v in passed if v < least), default=least)
            said = [n for n in named if n > MOST_RANKS and self.kind == "size" and below <= n < least]
            sides = {
                f"{self.only}<={said[0]}" if len(said) == 1 else f"{self.only}<{least}": {
                    v for v in counts if v >= least
                }
            }
            sides[f"{self.only}>{most}"] = {v for v in counts if v <= most}
        else:
            bad = {v for v, (wrong, right) in counts.items() if wrong >= MOSTLY * (wrong + right)}
            kept = "+".join(sorted(str(v) for v in counts.keys() - bad))
            sides = {self.only if self.form == "yes" else f"{self.only}={kept}": bad}
            if bad != {False} if self.form == "yes" else None in counts or len(bad) == len(counts):
                return 0, 0.0, "", set()
        tries = []
        for only, outside in sides.items():
            wrong, right = (sum(counts[v][side] for v in outside) for side in (0, 1))
            tries.append((wrong, wrong / max(wrong + right, 1), only, outside))
        return max(tries, key=lambda one: one[:2])


def stated(kernel: Kernel, raised: Iterable[Raised], ran: Sequence[CaseSpec], *, alone: bool = False) -> dict[str, str]:
    """Return what the kernel says that it does not take, in words for the user, by the wording of what it raises.

    A wording states a limit if its words speak of one, all cases that raise it lie outside of that limit, and no case
    that ran does. If no case ran, every refusal in words counts: such a run is no pass. A case `alone` shows no limit,
    except that the kernel needs a GPU.
    """
    found: dict[str, str] = {}
    for words, group in _grouped(raised).items():
        kinds, said = group[0].kinds, group[0].problem
        if not kinds or ("NoneType" in said and _takes_none(kernel, group)):
            continue
        if not ran:
            if "device" in kinds:
                found[words] = f"it does not take CPU tensors ({said})"
            elif not alone:
                found[words] = f"it refuses them ({said})"
        elif told := _limit(kernel, group, ran, kinds):
            found[words] = f"it takes {told[0]} ({said}); {told[1]}"
    return found


def hints(kernel: Kernel, raised: Iterable[Raised], ran: Sequence[CaseSpec]) -> dict[str, str]:
    """Return what the kernel may not take, though it states no limit, by the wording of what it raises."""
    found: dict[str, str] = {}
    for words, group in _grouped(raised).items():
        told = _limit(kernel, group, ran, ()) if len(group) > 1 and len(ran) >= FEW else None
        if told is not None:
            found[words] = f"the cases that run suggest that it takes {told[0]}: if so, {told[1]}"
    return found


def separating(kernel: Kernel, failed: Sequence[CaseSpec], ran: Iterable[CaseSpec], said: Iterable[str] = ()) -> str:
    """Return the --only within which no case fails, and outside of which most do; "" where there is none.

    A threshold is the number of a problem that is `said`, where one is there. Some cases outside may pass: wrong
    elements of zeros are zeros. Thresholds come last, since chance finds some.
    """
    op, wrong = OPS[kernel.op], list(dict.fromkeys(failed))
    right = [spec for spec in ran if spec not in {*wrong}]
    clauses: list[str] = []
    named = (
        set[int]()
        .union(*map(_numbers, (one for one in said if not STRICT.search(one))))
        .difference(*({*spec.shape} for spec in wrong))
    )  # not those it got
    while wrong and len(clauses) < MOST_CLAUSES:
        found: list[tuple[bool, int, float, int, str, set[Any], Trait]] = []
        for trait in _traits(op, ""):
            if trait.about == "dtype" or (trait.kind == "multiple" and trait.about not in ("N", "last", "C")):
                continue  # a kernel that loses precision in 16 bits is no kernel of float32 alone
            count, share, only, outside = trait.suggested(
                [trait.of(spec, op) for spec in wrong], [trait.of(spec, op) for spec in right], named
            )
            if count >= FEWEST and share >= MOSTLY:
                likely = {"multiple": 1, "size": 0, "eps": 0}.get(trait.kind, 2)
                found.append((count == len(wrong), likely, round(share, 1), count, only, outside, trait))
        if not found:
            return ""
        *_, only, outside, trait = max(found, key=lambda one: one[:4])
        clauses.append(only)
        wrong, right = ([s for s in some if trait.of(s, op) not in outside] for some in (wrong, right))
    return ",".join(clauses) if not wrong and len(right) >= FEW else ""


def _grouped(raised: Iterable[Raised]) -> dict[str, list[Raised]]:
    groups: defaultdict[str, list[Raised]] = defaultdict(list)
    for one in raised:
        groups[one.wording].append(one)
    return groups


def _limit(
    kernel: Kernel, group: list[Raised], ran: Sequence[CaseSpec], kinds: Sequence[str]
) -> tuple[str, str] | None:
    """Return the first limit of these kinds that separates the group from what ran, and how to declare it.

    A kernel may return early for an x without elements, whatever else it does not take.
    """
    if all(prod(one.spec.shape) for one in group):
        ran = [spec for spec in ran if prod(spec.shape)]
    op = OPS[kernel.op]
    if op.view == "channels" and len(modes := {one.spec.training for one in group}) == 1:
        ran = [spec for spec in ran if spec.training in modes]  # as torch refuses eps = 0 in training alone
    named = set.intersection(*(_numbers(one.problem) for one in group)) if kinds else set[int]()
    strict = not kinds or STRICT.search(group[0].problem) is not None
    traits = _traits(op, group[0].problem if kinds else "")
    chosen = [trait for kind in kinds for trait in traits if trait.kind == kind]
    for trait in chosen if kinds else traits:
        limit = trait.limit(
            {trait.of(one.spec, op) for one in group}, {trait.of(spec, op) for spec in ran}, named, strict=strict
        )
        if limit is not None:
            words, only = limit
            return words, f"--only {only} declares it"
    return None


def _numbers(problem: str) -> set[int]:
    """Return the whole numbers in a text, without those in names as float32; "64KB" is 65,536."""
    found = re.findall(r"(?<![\w.])(\d+)(\s?ki?b?\b)?", problem, re.IGNORECASE)
    return {int(digits) * (1024 if unit else 1) for digits, unit in found}


def _takes_none(kernel: Kernel, group: list[Raised]) -> bool:
    """Return whether the signature allows the None that all cases of a group have in common."""
    absent = [role for role in ("weight", "bias") if not any(getattr(one.spec, role) for one in group)]
    try:
        parameters = inspect.signature(inspect.unwrap(kernel.run)).parameters.values() if kernel.run else ()
    except (TypeError, ValueError):
        return False
    allows = [p for p in parameters if p.default is None or re.search("None|Optional", str(p.annotation))]
    return any(meant(p.name, absent) for p in allows)


def _contiguous(*names: str) -> Callable[[CaseSpec, Op], bool]:
    """Return the function that says whether these arguments, all if none are named, are contiguous or None."""

    def of(spec: CaseSpec, op: Op) -> bool:
        given = [t for t in op.inputs if t.role != "saved" and t.extent != "one" and (not names or t.name in names)]
        given = [t for t in given if getattr(spec, t.name, True)]  # not None
        return all(_dense(geometry.shape_of(t, spec, op), geometry.layout_of(spec, t.name)) for t in given)

    return of


def _dense(shape: tuple[int, ...], layout: str) -> bool:
    """Return whether torch calls the tensor contiguous: a dimension of one element may have any stride."""
    size = 1
    for n, stride in zip(reversed(shape), reversed(placement(shape, layout).strides), strict=True):
        if n != 1 and stride != size:
            return not prod(shape)
        size *= n
    return True


def _inner(spec: CaseSpec, op: Op) -> bool:
    """Return whether in x, and in all of its shape, neighbours of the last dimension are neighbours in memory."""
    layouts = [geometry.layout_of(spec, t.name) for t in op.inputs if t.extent == "data"]
    return spec.shape[-1] < 2 or all(placement(spec.shape, layout).strides[-1] == 1 for layout in layouts)


def _weight_like_x(spec: CaseSpec, op: Op) -> bool:
    return _affine_dtype(spec, op) in (None, spec.dtype)


def _affine_dtype(spec: CaseSpec, op: Op) -> str | None:
    names = {tensor.name for tensor in op.inputs}  # running statistics have the type of weight too
    has = spec.weight or (spec.bias and "bias" in names) or (spec.running and "running_mean" in names)
    return (spec.weight_dtype or spec.dtype) if has else None


def _wide_weight(spec: CaseSpec, op: Op) -> bool:
    return FORMATS[_affine_dtype(spec, op) or spec.dtype].u <= FORMATS[spec.dtype].u


def _rotary(spec: CaseSpec, op: Op) -> str:
    """Return the part of a row that is rotated: half of two elements are rotated as all of them are."""
    whole = replace(spec, rotary="full")
    alike = geometry.position_shape(spec, op) == geometry.position_shape(whole, op)
    return "full" if alike else spec.rotary


QUANTITIES = [(name, *SIZES[name]) for name in ("N", "last", "C", "M", "numel", "bytes", "variance_size")]
TRAITS = (
    Trait("rank", "x of {} dimensions", "ndim", lambda spec, op: len(spec.shape)),
    Trait("rank", "{} normalized dimensions", "normalized_ndim", lambda spec, op: spec.normalized_ndim),
    Trait("dtype", "x of {}", "dtype", lambda spec, op: spec.dtype),
    Trait("dtype", "a weight of x's type", "weight_dtype=x", _weight_like_x, "yes"),
    Trait("dtype", "a weight no narrower than x", "weight_dtype=x+float32", _wide_weight, "yes"),
    Trait("dtype", "a weight of {}", "weight_dtype", _affine_dtype),
    Trait("layout", "contiguous x", "contiguous=x+residual_out", _contiguous("x", "residual_out"), "yes"),
    Trait("layout", "contiguous dy", "contiguous=dy", _contiguous("dy"), "yes"),
    Trait("layout", "contiguous weights", "contiguous=weight+bias", _contiguous("weight", "bias"), "yes"),
    Trait("layout", "tensors with contiguous rows", "unit_stride", _inner, "yes"),
    Trait("layout", "contiguous tensors", "contiguous", _contiguous(), "yes"),
    Trait("none", "cases with a weight", "weight", lambda spec, op: spec.weight, "yes"),
    Trait("none", "cases with a bias", "bias", lambda spec, op: spec.bias, "yes"),
    Trait("none", "cases with weight and bias", "weight,bias", lambda spec, op: spec.weight and spec.bias, "yes"),
    Trait("none", "cases with dresidual_out", "dresidual_out", lambda spec, op: spec.dresidual_out, "yes"),
    Trait("eps", "eps", "eps", lambda spec, op: spec.eps, "ordered"),
    Trait("rotary", "a rotation of the {} row", "rotary", _rotary),
    *(Trait("size", words, name, of, "ordered") for name, words, of in QUANTITIES),
)


def _traits(op: Op, said: str) -> list[Trait]:
    """Return the traits that the operator's cases have; a problem that is `said` may name divisors."""
    own = {tensor.name for tensor in op.inputs}
    found = [trait for trait in (*TRAITS, *_multiples(said)) if applies(trait.about, op)]
    for place, trait in enumerate(found):
        if trait.about in MEMORY and "=" in trait.only:
            names = [name for name in trait.only.partition("=")[2].split("+") if name in own]
            found[place] = replace(trait, only=f"{trait.about}={'+'.join(names)}")
    return found


def _multiples(said: str) -> Iterator[Trait]:
    """Yield the divisors that a problem names, else the powers of two, and whether a number is a power of two."""
    named = re.findall(r"(?:divisible by|multiples? of|%)\s*(\d+)", said)
    named += ["2"] * bool(re.search(r"\b(even|odd)\b", said, re.IGNORECASE))
    divisors = [int(k) for k in named if int(k) > 1] or [2**k for k in range(1, 11)]
    for name, words, of in QUANTITIES:
        yield Trait("multiple", f"{words} that is a power of 2", f"{name}=2^k", _such(of, 0), "yes")
        for k in divisors:
            yield Trait("multiple", f"{words} that is a multiple of {k}", f"{name}%{k}=0", _such(of, k), "yes")


def _such(of: Callable[[CaseSpec, Op], int], k: int) -> Callable[[CaseSpec, Op], bool]:
    """Return the function that says whether a quantity is a multiple of k; for k = 0, whether it is a power of 2."""
    return lambda spec, op: of(spec, op) % k == 0 if k else of(spec, op).bit_count() == 1
