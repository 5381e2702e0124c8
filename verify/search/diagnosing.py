"""Looks for the known weaker contract that explains the findings of a run: it judges the failing cases again under it.

A weaker contract explains an output if under it the checks find nothing about the output: in its smallest failing
cases, in others that failed, and in fresh random ones, so that it excuses no bug by luck. At least one check that found
something has to look again, at the same element and in the same ways: a contract under which nothing is judged explains
nothing. First come the fields that cost no accuracy, then the others by what they allow the output in a typical case,
then the names that stand for libraries, then one of these with a field that costs nothing, such as an overwritten
input. What explains one output is tried first on the next: the user declares all of it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from verify_norm.cases import allowance, make
from verify_norm.cases.exploration import explore
from verify_norm.cases.strategies import specs
from verify_norm.core import contract_fields, judge
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import Allowance, Diagnosis
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import size
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import NAMES, WEAKER, Known, joined, overwritten, write
from verify_norm.core.layouts import without_shared_memory
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.search.examine import Examined

Key = tuple[str, str | None]  # a check and an output
Candidate = tuple[Known, dict[str, Any]]  # with the fields that it changes of the kernel's own contract
Judge = Callable[[CaseSpec, tuple[str, ...], Contract], Examined]
# Fields that change no bound on the error of a result.
FREE = frozenset(("inplace", "output", "weight_grad", "saturate", "scale_floor", "e8m0", "packing", "deterministic"))
# Fields that replace a requirement by another one: a result that was right may be wrong under them.
INSTEAD = frozenset(("output", "weight_grad", "stats", "saturate", "scale_floor", "e8m0", "packing"))
COARSE = frozenset(("bf16x3", "tf32", "bf16"))  # products that miss more of their operands than float32 does of sums
# Fields that name a type to which something is rounded.
NARROW = frozenset(("stats", "xhat", "partials", "products", "z"))
BOUNDED = frozenset(("accuracy", "statistics"))  # checks that judge elements by their bounds
OTHERS = 10  # failing cases besides the smallest, spread over all of them
FRESH = 12  # random cases, drawn with a seed that the run has not used
ELEMENTS, ROWS = 2**12, 100  # of these cases, but for the worst: an interpreter takes milliseconds a row
LATE = "time ran out"
FLEETING = "the smallest case does not show it in every run"


class _LateError(Exception):
    """The time for the diagnosis is over."""


@dataclass
class Trial:
    """A kernel before weaker contracts.

    `failing` has all cases of each finding, `worst` those with the largest error of each output. `judge` runs checks on
    a case under another contract than the kernel's.
    """

    kernel: Kernel
    checks: tuple[str, ...]
    failing: Mapping[Key, Sequence[CaseSpec]]
    worst: Mapping[str, Sequence[CaseSpec]]
    judge: Judge
    seed: int
    deadline: float
    judged: dict[tuple[CaseSpec, tuple[str, ...], Contract], Examined] = field(default_factory=dict)
    found: list[Candidate] = field(default_factory=list)  # what explains an output so far

    def diagnoses(self, findings: Sequence[Finding]) -> tuple[Diagnosis, ...]:
        """Return a diagnosis of each output that has findings, and of the call if it has any."""
        outputs = dict.fromkeys(finding.output for finding in findings)
        cheap = sorted(findings, key=lambda finding: prod(finding.spec.shape))  # the first that stays ends a trial
        return tuple(_Group(self, o, [f for f in cheap if f.output == o]).diagnosis() for o in outputs)

    def under(self, contract: Contract, spec: CaseSpec, checks: tuple[str, ...]) -> Examined:
        """Return the case judged under the contract; raise _LateError after the deadline."""
        key = _fitted(spec, contract), checks, contract
        if key not in self.judged:
            if time.perf_counter() > self.deadline:
                raise _LateError
            self.judged[key] = self.judge(*key)
            if self.judged[key].hung:
                raise _LateError
        return self.judged[key]

    @cached_property
    def fresh(self) -> list[CaseSpec]:
        """Random cases that the run has not drawn."""
        drawn: list[CaseSpec] = []

        def keep(spec: CaseSpec) -> dict[str, float]:
            drawn.append(spec if self.kernel.fit is None else self.kernel.fit(spec))
            return {}

        dtypes = tuple(dict.fromkeys(spec.dtype for cases in self.failing.values() for spec in cases))
        strategy = specs(OPS[self.kernel.op], dtypes, ELEMENTS, frozen=self.kernel.autograd, rows=ROWS)
        explore(strategy, keep, examples=FRESH, seed=self.seed + 1)
        return drawn


@dataclass
class _Group:
    """The findings of one output, or of the call."""

    trial: Trial
    output: str | None
    findings: list[Finding]
    tried: int = 0

    def diagnosis(self) -> Diagnosis:
        """Return the first contract that explains the findings, or that none does."""
        likely = ""
        try:
            if any(finding.check == "crash" for finding in self.findings):
                return Diagnosis(self.output)
            if any(self.vanishes(finding, {}) for finding in self.findings):
                return Diagnosis(self.output, untold=FLEETING)
            for known, fields in self.candidates() if self.any_contract_may_explain() else ():
                self.tried += 1
                if not self.explains(fields):
                    continue
                likely = f"; {write(fields)} explains the smallest case"
                if self.holds_in_other_cases(fields):
                    self.trial.found.append((known, fields))
                    return self.explained(known, fields)
        except _LateError:
            return Diagnosis(self.output, untold=LATE + likely)
        return Diagnosis(self.output, tried=self.tried)

    def any_contract_may_explain(self) -> bool:
        """Return whether all weaker contracts together explain the smallest cases: if not, none does alone.

        A contract that promises something instead, such as another type, is among them alone of its kind.
        """
        known = [fields for one in WEAKER if (fields := self.fields(one))]
        together = joined(write(fields) for fields in known if not fields.keys() & INSTEAD)
        variants = [together, *(together | fields for fields in known if fields.keys() <= INSTEAD)]
        return any(all(self.vanishes(finding, fields) for finding in self.findings) for fields in variants)

    def candidates(self) -> Iterator[Candidate]:
        """Yield the weaker contracts that change the kernel's own, first those that explain other outputs."""
        yield from self.trial.found
        free: list[Candidate] = []
        costly: list[Candidate] = []
        for known in WEAKER:
            if fields := self.fields(known):
                (free if fields.keys() <= FREE else costly).append((known, fields))
        yield from free
        costly.sort(key=lambda pair: float(f"{self.allowance(pair[1]).gain:.2g}"))  # as it is printed; a tie by WEAKER
        costly += [(known, fields) for known in NAMES.values() if (fields := self.fields(known))]
        rest = [pair for pair in costly if self.allowance(pair[1]).loses]  # others only keep checks from looking
        yield from rest
        for one, freed in free:
            if any(self.excused(finding, freed) for finding in self.findings):
                yield from ((_both(one, known), joined((write(freed), write(fields)))) for known, fields in rest)

    def fields(self, known: Known) -> dict[str, Any] | None:
        """Return the fields that a weaker contract changes of the kernel's own; None if it changes none here."""
        return known.of(self.trial.kernel.contract, OPS[self.trial.kernel.op])

    def weaker(self, fields: dict[str, Any]) -> Contract:
        """Return the kernel's contract with these fields."""
        return contract_fields.make(asdict(self.trial.kernel.contract) | fields)

    def allowance(self, fields: dict[str, Any]) -> Allowance:
        """Return what a typical case allows in the type, and for the call in the output, that gains most."""
        op, own, weaker = self.trial.kernel.op, self.trial.kernel.contract, self.weaker(fields)
        found = []
        for kinds in self.types if "weight_grad" in fields else dict.fromkeys((x, None) for x, _ in self.types):
            before, after = (allowance.allowances(op, contract, *kinds) for contract in (own, weaker))
            names, types = [self.output] if self.output in before else before, allowance.types(op, *kinds)
            found += [Allowance(allowance.words(op), n, types[n], before[n], after[n]) for n in names]
        return max(found, key=lambda one: one.gain)

    @cached_property
    def types(self) -> list[tuple[str, str | None]]:
        """The types of x and weight in which something was found."""
        cases = (spec for f in self.findings for spec in self.trial.failing[f.check, f.output])
        return list(dict.fromkeys((spec.dtype, spec.weight_dtype) for spec in cases))

    def vanishes(self, finding: Finding, fields: dict[str, Any]) -> bool:
        """Return whether the check does not find it again in its smallest case, under the weaker contract."""
        key = finding.check, self.output
        return all((one.check, one.output) != key for one in self.again(finding, fields).findings)

    def again(self, finding: Finding, fields: dict[str, Any]) -> Examined:
        """Return the finding's smallest case, judged by its check under the contract with these fields."""
        return self.trial.under(self.weaker(fields), finding.spec, (finding.during or finding.check,))

    def explains(self, fields: dict[str, Any]) -> bool:
        """Return whether it takes each finding from its smallest case, in which a check that found one looks again."""
        looked = any(self.looks_again(f, fields) for f in self.findings)
        return looked and all(self.excused(f, fields) for f in self.findings) and self.shows_in_typical_data(fields)

    def excused(self, finding: Finding, fields: dict[str, Any]) -> bool:
        """Return whether the contract takes the finding from its smallest case, and not a change of the case does.

        What a kernel may overwrite shares no memory: in a case that is changed so, the kernel's own contract finds it.
        """
        spec, name = _fitted(finding.spec, self.weaker(fields)), finding.during or finding.check
        if spec != finding.spec:
            own = self.trial.under(self.trial.kernel.contract, spec, (name,))
            if all((one.check, one.output) != (finding.check, self.output) for one in own.findings):
                return False
        return self.vanishes(finding, fields)

    def shows_in_typical_data(self, fields: dict[str, Any]) -> bool:
        """Return whether what narrow types lose shows in typical data too: if not, they hide another mistake.

        They lose so much of every sum that E[x²] − μ², wrong at large means and in short rows, is within their bounds.
        """
        wide = self.weaker({name: value for name, value in fields.items() if name not in NARROW})
        if fields.get("products") not in COARSE | {None} or wide == self.weaker(fields):
            return True
        op, fit = self.trial.kernel.op, self.trial.kernel.fit or (lambda spec: spec)
        checks = tuple(name for name in self.trial.checks if name in BOUNDED)
        typical = (fit(allowance.typical(op, *kinds)) for kinds in self.types)
        examined = (self.trial.under(wide, spec, checks) for spec in typical)
        return any(finding.output == self.output for one in examined for finding in one.findings)

    def looks_again(self, finding: Finding, fields: dict[str, Any]) -> bool:
        """Return whether the check looks again, in as many ways; where it judges elements, at the one that it found."""
        name, before, after = finding.during or finding.check, self.again(finding, {}), self.again(finding, fields)
        if name not in after.looked or any(way not in after.ways for way in before.ways if way[0] == name):
            return False
        if finding.check not in BOUNDED or finding.index is None or finding.output is None:
            return True
        op, spec = OPS[self.trial.kernel.op], finding.spec
        expected = make.truths(spec, op, self.weaker(fields), make.exact_inputs(spec, op))[finding.output]
        return expected is not None and bool(judge.judged(expected)[finding.index])

    def holds_in_other_cases(self, fields: dict[str, Any]) -> bool:
        """Return whether no check finds anything about the output, in failing cases and in fresh ones.

        In failing cases nothing else may show either, such as wrong values where the kernel seemed to return none.
        """
        contract, op = self.weaker(fields), OPS[self.trial.kernel.op]
        for spec in self.others:
            slow = size(spec, op)[0] > ROWS
            examined = self.trial.under(contract, spec, self.own if slow else self.trial.checks)
            found = {(one.check, one.output) for one in examined.findings}
            if any(key[1] == self.output or key not in self.trial.failing for key in found):
                return False
        fresh = (self.trial.under(contract, spec, self.trial.checks) for spec in self.trial.fresh)
        return not any(one.output == self.output for examined in fresh for one in examined.findings)

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The checks that found something."""
        return tuple(dict.fromkeys(f.during or f.check for f in self.findings))

    @cached_property
    def others(self) -> list[CaseSpec]:
        """The smallest cases, those with the largest errors, and some that are spread over all that failed."""
        lists, op = [self.trial.failing[f.check, f.output] for f in self.findings], OPS[self.trial.kernel.op]
        lists = [[spec for spec in cases if size(spec, op)[0] <= ROWS] for cases in lists]
        most = -(-OTHERS // len(lists))
        spread = [spec for cases in lists for spec in cases[:: max(-(-len(cases) // most), 1)]]
        worst = self.trial.worst.get(self.output or "", ())
        return sorted(
            dict.fromkeys((*(f.spec for f in self.findings), *worst, *spread)), key=lambda spec: prod(spec.shape)
        )

    def explained(self, known: Known, fields: dict[str, Any]) -> Diagnosis:
        """Return the diagnosis that names a contract, with what it costs."""
        return Diagnosis(
            self.output,
            write(fields),
            known.words,
            known.whose,
            self.allowance(fields),
            failing=len(self.others),
            fresh=len(self.trial.fresh),
            tried=self.tried,
        )


def _fitted(spec: CaseSpec, contract: Contract) -> CaseSpec:
    """Return the case with memory of its own for each argument that a contract lets a kernel overwrite."""
    return without_shared_memory(spec, (argument for _, argument in overwritten(contract)))


def _both(one: Known, other: Known) -> Known:
    whose = "; ".join(filter(None, (one.whose, other.whose)))
    return Known(f"{one.fields},{other.fields}", f"{one.words}; {other.words}", whose)
