"""The properties of a case that a limit of a kernel may be about, and what of them separates cases that raised."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from verify_norm.cases.placement import placement
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.layouts import layout_of
from verify_norm.core.only import MEMORY, SIZES, applies
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

MOST_RANKS = 8  # a larger number in words is a threshold
MOSTLY = 0.75  # of the cases outside of a suggested limit: the share that fails
MOST_SIZES = 16  # for which a kernel has code of its own
LISTED_RANKS = 2  # more of them are a range
Limit = tuple[str, str]  # what a kernel takes: in words, and as --only


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
    ) -> Limit | None:
        """Return what the kernel takes, in words and as --only, if these values separate what raised from what ran.

        A rank or a threshold has to be one that the kernel has `named`, if it names any; the threshold is that number
        where it does not speak of what is less (`strict`).
        """
        ran = ran - {None}
        if None in raised or not ran or not raised.isdisjoint(ran):
            return None
        if self.form == "yes":
            return (self.words, self.only) if raised == {False} else None
        if self.form == "ordered":
            return self._threshold(raised, ran, named, strict=strict)
        ranks = {n for n in named if n <= MOST_RANKS and self.kind == "rank"}
        if ranks and ranks.isdisjoint({min(ran), max(ran), min(raised), max(raised)}):
            return None
        return self._among(ran, raised)

    def _threshold(self, raised: set[Any], ran: set[Any], named: Collection[int], *, strict: bool) -> Limit | None:
        """Return the side of a threshold on which cases ran, if all that raised are on the other side."""
        low, high = (max(ran), min(raised)) if max(ran) < min(raised) else (max(raised), min(ran))
        thresholds = [n for n in named if n > MOST_RANKS and self.kind == "size"]
        if low >= high or not max(ran) or (thresholds and not any(low - 1 <= n <= high + 1 for n in thresholds)):
            return None
        said = [n for n in thresholds if low <= n < high] if low in ran and not strict else []
        if len(said) == 1:  # the number of its own words, and no neighbour that a case has
            return f"{self.words} of at most {said[0]:,g}", f"{self.only}<={said[0]}"
        if low in ran:
            return f"{self.words} below {high:,g}", f"{self.only}<{high}"
        return f"{self.words} above {low:,g}", f"{self.only}>{low}"

    def _among(self, ran: Collection[Any], raised: Collection[Any]) -> Limit:
        """Return the values that ran; many ranks, all to one side of those that raised, are a range.

        >>> ranks = TRAITS[0]
        >>> ranks._among({1, 2}, {3}), ranks._among({2, 3, 4, 7}, {1})
        (('x of 1 or 2 dimensions', 'ndim=1+2'), ('x of 2 or more dimensions', 'ndim>=2'))
        """
        if self.kind == "rank" and len(ran) > LISTED_RANKS and max(raised) < min(ran):
            return self.words.format(f"{min(ran)} or more"), f"{self.only}>={min(ran)}"
        if self.kind == "rank" and len(ran) > LISTED_RANKS and max(ran) < min(raised):
            return self.words.format(f"at most {max(ran)}"), f"{self.only}<={max(ran)}"
        values = sorted(map(str, ran))
        return self.words.format(" or ".join(values)), f"{self.only}={'+'.join(values)}"

    def few(self, ran: set[Any]) -> Limit | None:
        """Return the values that ran as what the kernel takes, if they are few.

        >>> next(trait for trait in TRAITS if trait.only == "N").few({64, 128})
        ('a row length of 64 or 128', 'N=64+128')
        """
        values = [str(value) for value in sorted(ran)]
        if not 0 < len(values) <= MOST_SIZES:
            return None
        return f"{self.words} of {' or '.join(values)}", f"{self.only}={'+'.join(values)}"

    def suggested(
        self, failed: Sequence[Any], passed: Sequence[Any], named: Collection[int] = ()
    ) -> tuple[int, float, str, set[Any]]:
        """Return an --only outside of which most cases fail; its threshold is one that the kernel has `named`, if any.

        With it come the number of failures outside, their share of the cases outside, and the values outside.
        """
        wrong, right = Counter(failed), Counter(passed)
        values = (wrong.keys() | right.keys()) - {None}
        bad = {value for value in values if wrong[value] >= MOSTLY * (wrong[value] + right[value])}
        sides: dict[str, set[Any]] = {}
        if self.form == "ordered":
            sides = self._sides(failed, passed, named)
        elif self.form == "yes" and bad == {False}:
            sides = {self.only: bad}
        elif self.form != "yes" and 0 < len(bad) < len(values) and None not in failed:
            sides = {self._among(values - bad, bad)[1]: bad}
        best = 0, 0.0, "", set[Any]()
        for only, outside in sides.items():
            count = sum(wrong[value] for value in outside)
            share = count / max(count + sum(right[value] for value in outside), 1)
            if not best[2] or (count, share) > best[:2]:
                best = count, share, only, outside
        return best

    def _sides(self, failed: Sequence[Any], passed: Sequence[Any], named: Collection[int]) -> dict[str, set[Any]]:
        """Return the thresholds below and above all failures as --only, each with the values outside of it."""
        least, most, values = min(failed), max(failed), {*failed, *passed}
        below = max((v for v in passed if v < least), default=least)
        said = [n for n in named if n > MOST_RANKS and self.kind == "size" and below <= n < least]
        smaller = f"{self.only}<={said[0]}" if len(said) == 1 else f"{self.only}<{least}"
        return {smaller: {v for v in values if v >= least}, f"{self.only}>{most}": {v for v in values if v <= most}}


def _contiguous(*names: str) -> Callable[[CaseSpec, Op], bool]:
    """Return the function that says whether these arguments, all if none are named, are contiguous or None."""

    def of(spec: CaseSpec, op: Op) -> bool:
        given = [t for t in op.inputs if t.role != "saved" and t.extent != "one" and (not names or t.name in names)]
        given = [t for t in given if getattr(spec, t.name, True)]  # not None
        return all(_dense(geometry.shape_of(t, spec, op), layout_of(spec, t.name)) for t in given)

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
    layouts = [layout_of(spec, t.name) for t in op.inputs if t.extent == "data"]
    return spec.shape[-1] < 2 or all(placement(spec.shape, layout).strides[-1] == 1 for layout in layouts)


def _weight_like_x(spec: CaseSpec, op: Op) -> bool:
    return _affine_dtype(spec, op) in (None, spec.dtype)


def _affine_dtype(spec: CaseSpec, op: Op) -> str | None:
    names = {tensor.name for tensor in op.inputs}  # running statistics have the type of weight too
    has = spec.weight or (spec.bias and "bias" in names) or (spec.running and "running_mean" in names)
    return (spec.weight_dtype or spec.dtype) if has else None


def _other_like_x(spec: CaseSpec, op: Op) -> bool:
    return spec.other_dtype in (None, spec.dtype)


def _residual_like_x(spec: CaseSpec, op: Op) -> bool:
    return spec.residual_dtype in (None, spec.dtype)


def _wide_weight(spec: CaseSpec, op: Op) -> bool:
    return FORMATS[_affine_dtype(spec, op) or spec.dtype].u <= FORMATS[spec.dtype].u


def _rotary(spec: CaseSpec, op: Op) -> str:
    """Return the part of a row that is rotated: half of two elements are rotated as all of them are."""
    whole = replace(spec, rotary="full")
    alike = geometry.position_shape(spec, op) == geometry.position_shape(whole, op)
    return "full" if alike else spec.rotary


def _modulation(spec: CaseSpec, op: Op) -> str | None:
    """Return whether scale and shift have a row for each sample or each token; None where these have one shape."""
    shapes = {geometry.sample_shape(replace(spec, modulation=kind), op) for kind in ("sample", "token")}
    return spec.modulation if len(shapes) > 1 else None


def _modulation_of_several(spec: CaseSpec, op: Op) -> str | None:
    """Return the same of several samples alone: the row of one sample may be right for all tokens by broadcasting."""
    return _modulation(spec, op) if spec.shape[0] != 1 else None


def _without_offset(spec: CaseSpec, op: Op) -> bool:
    """Return whether nothing is added to the weight, or there is none."""
    return spec.weight_offset == 0 or not spec.weight


QUANTITIES = [(name, *SIZES[name]) for name in ("N", "last", "C", "M", "numel", "bytes", "variance_size")]
TRAITS = (
    Trait("rank", "x of {} dimensions", "ndim", lambda spec, op: len(spec.shape)),
    Trait("rank", "{} normalized dimensions", "normalized_ndim", lambda spec, op: spec.normalized_ndim),
    Trait("dtype", "x of {}", "dtype", lambda spec, op: spec.dtype),
    Trait("dtype", "a weight of x's type", "weight_dtype=x", _weight_like_x, "yes"),
    Trait("dtype", "a weight no narrower than x", "weight_dtype=x+float32", _wide_weight, "yes"),
    Trait("dtype", "a weight of {}", "weight_dtype", _affine_dtype),
    Trait("dtype", "cos and sin, or scale and shift, of x's type", "other_dtype=x", _other_like_x, "yes"),
    Trait("dtype", "a residual of x's type", "residual_dtype=x", _residual_like_x, "yes"),
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
    Trait("modulation", "a scale and shift for each {}", "modulation", _modulation),
    Trait("modulation", "a scale and shift for each {}", "modulation", _modulation_of_several),
    Trait("weight_offset", "a weight_offset of 0", "weight_offset=0", _without_offset, "yes"),
    *(Trait("size", words, name, of, "ordered") for name, words, of in QUANTITIES),
)


def traits_of(op: Op, said: str) -> list[Trait]:
    """Return the traits that the operator's cases have; a problem that is `said` may name divisors."""
    own = {tensor.name for tensor in op.inputs}
    found = [trait for trait in (*TRAITS, *multiples(said)) if applies(trait.about, op)]
    for place, trait in enumerate(found):
        if trait.about in MEMORY and "=" in trait.only:
            names = [name for name in trait.only.partition("=")[2].split("+") if name in own]
            found[place] = replace(trait, only=f"{trait.about}={'+'.join(names)}")
    return found


def multiples(said: str) -> Iterator[Trait]:
    """Yield the divisors that a problem names, else the powers of two, and whether a number is a power of two."""
    named = re.findall(r"(?:divisible by|multiples? of|%)\s*(\d+)", said)
    if re.search(r"\b(even|odd)\b", said, re.IGNORECASE):
        named.append("2")
    divisors = [int(k) for k in named if int(k) > 1] or [2**k for k in range(1, 11)]
    for name, words, of in QUANTITIES:
        yield Trait("multiple", f"{words} that is a power of 2", f"{name}=2^k", _power_of_two(of), "yes")
        for k in divisors:
            yield Trait("multiple", f"{words} that is a multiple of {k}", f"{name}%{k}=0", _multiple(of, k), "yes")


def _power_of_two(of: Callable[[CaseSpec, Op], int]) -> Callable[[CaseSpec, Op], bool]:
    """Return the function that says whether a quantity is a power of 2."""
    return lambda spec, op: of(spec, op).bit_count() == 1


def _multiple(of: Callable[[CaseSpec, Op], int], k: int) -> Callable[[CaseSpec, Op], bool]:
    """Return the function that says whether a quantity is a multiple of k."""
    return lambda spec, op: of(spec, op) % k == 0
