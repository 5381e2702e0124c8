"""Calls that follow each other: one instance of a module serves them, and each must be like a call in fresh memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from verify_norm.cases import contents, make
from verify_norm.cases.make import Exact
from verify_norm.checks.relations.rerun import once_more, rerun
from verify_norm.checks.relations.two_runs import Difference
from verify_norm.core import judge
from verify_norm.core.excess import element
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import module_calls


@dataclass(slots=True)
class Held:
    """A kernel that one instance of a module serves, if it calls a module, on the cases of a run."""

    run: Run
    instance: module_calls.Instance = field(default_factory=module_calls.Instance)

    def __call__(self, case: Case, *, evaluating: bool = False) -> Run:
        """Run the kernel on a case; with `evaluating` its module evaluates."""
        assert self.run.kernel.run is not None
        serving = self.instance.serving(self.run.kernel.run)
        if evaluating:
            serving = module_calls.evaluating()(serving)
        return once_more(self.run)(replace(self.run.kernel, run=serving), case)


def alone(run: Run, changed: Exact, spec: CaseSpec | None = None) -> Run:
    """Return the run that other calls must be like: in fresh memory, and with a new module."""
    assert run.kernel.run is not None
    with_new_module = replace(run.kernel, run=module_calls.anew(run.kernel.run))
    return rerun(replace(run, kernel=with_new_module), changed, spec=spec)


def built(run: Run, changed: Exact, spec: CaseSpec | None = None) -> Case:
    """Return the run's case once more, in new tensors; with other values, or of another spec, if given."""
    case = run.case
    values, device = {**case.exact, **changed}, case.device
    return make.build(spec or case.spec, case.op, run.kernel.contract, device, values, poison=case.poison)


def placed(before: Case, after: Case, *, uncounted: bool = False) -> Case:
    """Return the case `after` in the tensors of `before`; those whose values differ are overwritten.

    `uncounted` writes go through .data: torch's count of versions misses them, as it misses the writes of a kernel.
    """
    arguments = {**after.arguments}
    for name, values in after.arguments.items():
        if isinstance(values, torch.Tensor):
            tensor = arguments[name] = before.arguments[name]
            if not contents.same_bits(tensor, values):
                contents.overwrite(tensor.data if uncounted else tensor, values)
    return replace(after, arguments=arguments)


def over_bound(run: Run, later: Run, why: str) -> Iterator[Difference]:
    """Yield the outputs of a later call that are beyond their bound, and not so in the run."""
    for output, now in later.outputs.items():
        usual, want = run.outputs.get(output), later.case.expected.get(output)
        if now is None or now.ratio is None or usual is None or usual.ratio is None or want is None:
            continue
        if (now.ratio > 1).any() and not (usual.ratio > 1).any():
            index, count = judge.worst(now.ratio), int((now.ratio > 1).sum())
            words = f"{element(output, index)} is {now.got[index]:.9g}, expected {want.value[index]:.9g}"
            yield Difference(output, f"{words}, {why}; {count} of {now.ratio.size} elements are wrong", index)
