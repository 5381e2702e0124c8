"""Limits that a kernel states itself: it refuses every case of a class in words, and runs in no such case."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.argument_names import meant
from verify_norm.running.refusals import ANY, spoken_of
from verify_norm.search.traits import MOSTLY, Limit, Trait, traits_of

FEW = 8  # cases that must run before cases that raise without words are compared with them
# Words by which a kernel does not take the number that it names.
STRICT = re.compile(r">=|<(?!=)|\b(less|smaller|fewer|shorter|below|under)\b", re.IGNORECASE)
MOST_CLAUSES = 3  # of an --only that is suggested
FEWEST = 2  # failures outside of one of them


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
        if "device" in kinds and not any(prod(spec.shape) for spec in ran):  # it may return an empty x early
            found[words] = f"it does not take CPU tensors ({said})"
            continue
        if not ran:
            if not alone:
                found[words] = f"it refuses them ({said}); --only says which cases it takes"
            continue
        told = _limit(kernel, group, ran, kinds)
        if told is None and ANY in kinds:
            told = _likely(kernel, group, ran)
        if told is not None:
            taken, declared = told
            found[words] = f"it takes {taken} ({said}); {declared}"
    return found


def hints(kernel: Kernel, raised: Iterable[Raised], ran: Sequence[CaseSpec]) -> dict[str, str]:
    """Return what the kernel may not take, though it states no limit, by the wording of what it raises."""
    found: dict[str, str] = {}
    for words, group in _grouped(raised).items():
        told = _likely(kernel, group, ran)
        if told is not None:
            taken, declared = told
            found[words] = f"the cases that run suggest that it takes {taken}: if so, {declared}"
    return found


def separating(kernel: Kernel, failed: Sequence[CaseSpec], ran: Iterable[CaseSpec], said: Iterable[str] = ()) -> str:
    """Return the --only within which no case fails, and outside of which most do; "" where there is none.

    A threshold is the number of a problem that is `said`, where one is there. Some cases outside may pass: wrong
    elements of zeros are zeros. Thresholds come last, since chance finds some.
    """
    op, all_wrong = OPS[kernel.op], set(failed)
    wrong, right = list(dict.fromkeys(failed)), [spec for spec in ran if spec not in all_wrong]
    clauses: list[str] = []
    named = _thresholds_in(said) - {n for spec in wrong for n in spec.shape}  # a problem may say which sizes it got
    while wrong and len(clauses) < MOST_CLAUSES:
        clause = _best_clause(op, wrong, right, named)
        if clause is None:
            return ""
        clauses.append(clause.only)
        wrong = [spec for spec in wrong if clause.trait.of(spec, op) not in clause.outside]
        right = [spec for spec in right if clause.trait.of(spec, op) not in clause.outside]
    if {spec.dtype for spec in right} == {"float32"} != {spec.dtype for spec in (*failed, *right)}:
        return ""  # a kernel that loses precision in 16 bits is no kernel of float32 alone
    return ",".join(clauses) if not wrong and len(right) >= FEW else ""


class _Clause(NamedTuple):
    """A clause of a suggested --only: what makes it likely, in order of weight, and which values lie outside of it."""

    all_fail_outside: bool  # of the cases that fail
    likely: int  # by the kind of its trait
    share: float  # of the cases outside that fail, to one digit
    failed: int  # cases outside
    only: str
    outside: set[Any]
    trait: Trait


def _best_clause(op: Op, wrong: list[CaseSpec], right: list[CaseSpec], named: set[int]) -> _Clause | None:
    """Return the most likely clause outside of which most cases fail; None if there is none."""
    found: list[_Clause] = []
    for trait in traits_of(op, ""):
        if trait.about == "dtype" or (trait.kind == "multiple" and trait.about not in ("N", "last", "C")):
            continue
        failed, passed = ([trait.of(spec, op) for spec in specs] for specs in (wrong, right))
        count, share, only, outside = trait.suggested(failed, passed, named)
        if count >= FEWEST and share >= MOSTLY:
            likely = {"multiple": 1, "size": 0, "eps": 0}.get(trait.kind, 2)
            found.append(_Clause(count == len(wrong), likely, round(share, 1), count, only, outside, trait))
    return max(found, key=lambda one: (one.all_fail_outside, one.likely, one.share, one.failed), default=None)


def _thresholds_in(said: Iterable[str]) -> set[int]:
    """Return the numbers of problems that may be the largest or smallest one that a kernel takes."""
    return {n for problem in said if not STRICT.search(problem) for n in _numbers(problem)}


def _grouped(raised: Iterable[Raised]) -> dict[str, list[Raised]]:
    """Return the cases by the wording of their problem."""
    groups: defaultdict[str, list[Raised]] = defaultdict(list)
    for one in raised:
        groups[one.wording].append(one)
    return groups


def _likely(kernel: Kernel, group: list[Raised], ran: Sequence[CaseSpec]) -> Limit | None:
    """Return the first limit that separates the group from what ran, where enough cases tell.

    It is of any kind; one case alone shows a rank at most, where its words speak of one.
    """
    if len(ran) < FEW:
        return None
    if len(group) > 1:
        return _limit(kernel, group, ran, ())
    return _limit(kernel, group, ran, ("rank",)) if "rank" in spoken_of(group[0].problem) else None


def _limit(kernel: Kernel, group: list[Raised], ran: Sequence[CaseSpec], kinds: Sequence[str]) -> Limit | None:
    """Return the first limit of these kinds that separates the group from what ran, and how to declare it.

    Words may name two limits, such as "a power of two, at least 16", or sizes for which alone there is code. A kernel
    may return early for an x without elements, whatever else it does not take.
    """
    if all(prod(one.spec.shape) for one in group):
        ran = [spec for spec in ran if prod(spec.shape)]
    op, specs = OPS[kernel.op], [one.spec for one in group]
    modes = {spec.training for spec in specs}
    if op.view == "channels" and len(modes) == 1:
        ran = [spec for spec in ran if spec.training in modes]  # as torch refuses eps = 0 in training alone
    named = set.intersection(*(_numbers(one.problem) for one in group)) if kinds else set[int]()
    strict = not kinds or STRICT.search(group[0].problem) is not None
    traits = traits_of(op, group[0].problem if kinds else "")
    chosen = [trait for kind in kinds for trait in traits if trait.kind == kind]

    @cache
    def values(trait: Trait) -> set[Any]:
        return {trait.of(spec, op) for spec in ran}

    def limit(trait: Trait, specs: Iterable[CaseSpec]) -> Limit | None:
        return trait.limit({trait.of(spec, op) for spec in specs}, values(trait), named, strict=strict)

    found = next(filter(None, (limit(trait, specs) for trait in chosen or traits)), None)
    if found is None and kinds and len(ran) >= FEW:
        found = _both(op, specs, [trait for trait in chosen if trait.form != "ordered" or named], values, limit)
        found = found or _sizes(op, group, [trait for trait in chosen if trait.kind == "size"], values)
    if found is None:
        return None
    words, only = found
    return f"{words} only", f"--only {only} declares it"


def _both(
    op: Op,
    specs: Sequence[CaseSpec],
    chosen: Sequence[Trait],
    values: Callable[[Trait], set[Any]],
    limit: Callable[[Trait, Iterable[CaseSpec]], Limit | None],
) -> Limit | None:
    """Return two limits of different kinds, if each case lies outside of one of them."""
    for first in chosen:
        outside = {spec for spec in specs if first.of(spec, op) not in values(first)}
        rest = {*specs} - outside
        one = limit(first, outside) if outside and rest else None
        if one is None:
            continue
        for second in chosen:
            other = limit(second, rest) if second.kind != first.kind else None
            if other is not None:
                return f"{one[0]} and {other[0]}", f"{one[1]},{other[1]}"
    return None


def _sizes(
    op: Op, group: Sequence[Raised], sizes: Iterable[Trait], values: Callable[[Trait], set[Any]]
) -> Limit | None:
    """Return the few sizes that ran, if every other one is refused by its number."""
    if len(group) < FEW:
        return None
    for trait in sizes:
        named = all(trait.of(one.spec, op) in _numbers(one.problem) for one in group)
        if named and values(trait).isdisjoint(trait.of(one.spec, op) for one in group):
            return trait.few(values(trait))
    return None


def _numbers(problem: str) -> set[int]:
    """Return the whole numbers in a text, without those in names as float32; "64KB" is 65,536."""
    found = re.findall(r"(?<![\w.])(\d+)(\s?ki?b?\b)?", problem, re.IGNORECASE)
    return {int(digits) * (1024 if unit else 1) for digits, unit in found}


def _takes_none(kernel: Kernel, group: list[Raised]) -> bool:
    """Return whether the signature allows the None that all cases of a group have in common."""
    if kernel.run is None:
        return False
    absent = [role for role in ("weight", "bias") if not any(getattr(one.spec, role) for one in group)]
    try:
        parameters = inspect.signature(inspect.unwrap(kernel.run)).parameters.values()
    except (TypeError, ValueError):
        return False
    allows = [p for p in parameters if p.default is None or re.search("None|Optional", str(p.annotation))]
    return any(meant(p.name, absent) for p in allows)
