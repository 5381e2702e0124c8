"""Looks for the known weaker contract that explains the findings of a run: it judges the failing cases again under it.

A weaker contract explains an output if under it the checks find nothing about the output: in its smallest failing
cases, in others that failed, and in fresh random ones, so that it excuses no bug by luck. At least one check that found
something has to look again, at the same element and in the same ways: a contract under which nothing is judged explains
nothing. First come the fields that cost no accuracy, then the others by what they allow the output in a typical case,
then the names that stand for libraries, then doubtful products, then one of these where results between two operations
are rounded too, then one of these with a field that costs nothing, such as an overwritten input. What explains one
output is tried first on the next: the user declares all of it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from verify_norm.cases import allowance, make
from verify_norm.cases.exploration import explore
from verify_norm.cases.strategies import specs
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import LATE, Diagnosis
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import size
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import Known, caution, overwritten, write
from verify_norm.core.layouts import without_shared_memory
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.search.examined import Examined
from verify_norm.search.weaker import Candidate, Weaker, both

Key = tuple[str, str | None]  # a check and an output
Judge = Callable[[CaseSpec, tuple[str, ...], Contract], Examined]
COARSE = frozenset(("bf16x3", "tf32", "bf16"))  # products that miss more of their operands than float32 does of sums
# Fields that name a type to which something is rounded.
NARROW = frozenset(("stats", "xhat", "partials", "products", "z"))
BOUNDED = frozenset(("accuracy", "statistics"))  # checks that judge elements by their bounds
OTHERS = 10  # failing cases besides the smallest, spread over all of them
FRESH = 12  # random cases, drawn with a seed that the run has not used
ELEMENTS, ROWS = 2**12, 100  # of these cases, but for the worst: an interpreter takes milliseconds a row
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
            drawn.append(self.kernel.fitted(spec))
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
            if not self.any_contract_may_explain():
                return Diagnosis(self.output)
            for known, fields in self.candidates():
                self.tried += 1
                if not self.explains(fields):
                    continue
                likely = f"; {write(fields)} explains the smallest case{caution(fields)}"
                if self.holds_in_other_cases(fields):
                    self.trial.found.append((known, fields))
                    return self.explained(known, fields)
        except _LateError:
            return Diagnosis(self.output, untold=LATE + likely)
        return Diagnosis(self.output, tried=self.tried)

    def any_contract_may_explain(self) -> bool:
        """Return whether all weaker contracts together explain the smallest cases: if not, none does alone."""
        variants = self.weaker.together()
        return any(all(self.vanishes(finding, fields) for finding in self.findings) for fields in variants)

    def candidates(self) -> Iterator[Candidate]:
        """Yield the weaker contracts that change the kernel's own, first those that explain other outputs."""
        yield from self.trial.found
        free = self.weaker.free()
        yield from free
        costly = self.weaker.costly()
        yield from costly
        for one in free:
            if any(self.excused(finding, one[1]) for finding in self.findings):
                yield from (both(one, other) for other in costly)

    @cached_property
    def weaker(self) -> Weaker:
        """The contracts that are weaker than the kernel's own."""
        return Weaker(self.trial.kernel, self.output, self.types)

    @cached_property
    def types(self) -> list[tuple[str, str | None]]:
        """The types of x and weight in which something was found."""
        cases = (spec for f in self.findings for spec in self.trial.failing[f.check, f.output])
        return list(dict.fromkeys((spec.dtype, spec.weight_dtype) for spec in cases))

    def vanishes(self, finding: Finding, fields: dict[str, Any]) -> bool:
        """Return whether the check does not find it again in its smallest case, under the weaker contract."""
        return not _shows(self.again(finding, fields), finding)

    def again(self, finding: Finding, fields: dict[str, Any]) -> Examined:
        """Return the finding's smallest case, judged by its check under the contract with these fields."""
        return self.trial.under(self.weaker.contract(fields), finding.spec, (finding.shown_by,))

    def explains(self, fields: dict[str, Any]) -> bool:
        """Return whether it takes each finding from its smallest case, in which a check that found one looks again."""
        looked = any(self.looks_again(f, fields) for f in self.findings)
        return looked and all(self.excused(f, fields) for f in self.findings) and self.shows_in_typical_data(fields)

    def excused(self, finding: Finding, fields: dict[str, Any]) -> bool:
        """Return whether the contract takes the finding from its smallest case, and not a change of the case does.

        What a kernel may overwrite shares no memory: in a case that is changed so, the kernel's own contract finds it.
        """
        spec = _fitted(finding.spec, self.weaker.contract(fields))
        if spec != finding.spec:
            own = self.trial.under(self.trial.kernel.contract, spec, (finding.shown_by,))
            if not _shows(own, finding):
                return False
        return self.vanishes(finding, fields)

    def shows_in_typical_data(self, fields: dict[str, Any]) -> bool:
        """Return whether what narrow types lose shows in typical data too: if not, they hide another mistake.

        They lose so much of every sum that E[x²] − μ², wrong at large means and in short rows, is within their bounds.
        """
        wide = self.weaker.contract({name: value for name, value in fields.items() if name not in NARROW})
        if fields.get("products") not in COARSE | {None} or wide == self.weaker.contract(fields):
            return True
        checks = tuple(name for name in self.trial.checks if name in BOUNDED)
        for pair in self.types:
            spec = self.trial.kernel.fitted(allowance.typical(self.trial.kernel.op, *pair))
            if self._about_the_output(self.trial.under(wide, spec, checks)):
                return True
        return False

    def _about_the_output(self, examined: Examined) -> bool:
        """Return whether there is a finding about the output."""
        return any(finding.output == self.output for finding in examined.findings)

    def looks_again(self, finding: Finding, fields: dict[str, Any]) -> bool:
        """Return whether the check looks again, in as many ways; where it judges elements, at the one that it found."""
        before, after = self.again(finding, {}), self.again(finding, fields)
        ways = {(check, way) for check, way in before.ways if check == finding.shown_by}
        if finding.shown_by not in after.looked or not ways.issubset(after.ways):
            return False
        if finding.check not in BOUNDED or finding.index is None or finding.output is None:
            return True
        op, spec = OPS[self.trial.kernel.op], finding.spec
        expected = make.truths(spec, op, self.weaker.contract(fields), make.exact_inputs(spec, op))[finding.output]
        return expected is not None and bool(judge.judged(expected)[finding.index])

    def holds_in_other_cases(self, fields: dict[str, Any]) -> bool:
        """Return whether no check finds anything about the output, in failing cases and in fresh ones.

        In failing cases nothing else may show either, such as wrong values where the kernel seemed to return none.
        """
        contract, op = self.weaker.contract(fields), OPS[self.trial.kernel.op]
        for spec in self.others:
            slow = size(spec, op)[0] > ROWS
            examined = self.trial.under(contract, spec, self.own if slow else self.trial.checks)
            found = {(one.check, one.output) for one in examined.findings}
            if any(key[1] == self.output or key not in self.trial.failing for key in found):
                return False
        checks = self.trial.checks
        return not any(self._about_the_output(self.trial.under(contract, spec, checks)) for spec in self.trial.fresh)

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The checks that found something."""
        return tuple(dict.fromkeys(finding.shown_by for finding in self.findings))

    @cached_property
    def others(self) -> list[CaseSpec]:
        """The smallest cases, those with the largest errors, and some that are spread over all that failed."""
        op, smallest = OPS[self.trial.kernel.op], [finding.spec for finding in self.findings]
        most = -(-OTHERS // len(self.findings))  # of each finding
        spread: list[CaseSpec] = []
        for finding in self.findings:
            cases = [s for s in self.trial.failing[finding.check, finding.output] if size(s, op)[0] <= ROWS]
            spread += cases[:: max(-(-len(cases) // most), 1)]
        worst = self.trial.worst.get(self.output or "", ())
        return sorted(dict.fromkeys((*smallest, *worst, *spread)), key=lambda spec: prod(spec.shape))

    def explained(self, known: Known, fields: dict[str, Any]) -> Diagnosis:
        """Return the diagnosis that names a contract, with what it costs."""
        return Diagnosis(
            self.output,
            write(fields),
            known.words,
            known.whose,
            self.weaker.allowance(fields),
            failing=len(self.others),
            fresh=len(self.trial.fresh),
            tried=self.tried,
        )


def _shows(examined: Examined, finding: Finding) -> bool:
    """Return whether a case has a finding of the same check about the same output."""
    return any((one.check, one.output) == (finding.check, finding.output) for one in examined.findings)


def _fitted(spec: CaseSpec, contract: Contract) -> CaseSpec:
    """Return the case with memory of its own for each argument that a contract lets a kernel overwrite."""
    return without_shared_memory(spec, (argument for _, argument in overwritten(contract)))
