"""Memory: what is written outside of the outputs, and whether anything is read that nobody wrote.

Every argument lies among poison, and is compared bit by bit with what it was, gaps and guards included. What the kernel
allocates by torch has poison on both sides, and inside where torch leaves it uninitialized. A second run with another
poison finds a value that depends on it: NaN shows in most arithmetic, but is legal where an input holds one and
vanishes in comparisons and `nan_to_num`; a finite number shows there, but vanishes in a product with 0. In Triton's
interpreter a load or store in memory of no tensor is told, even where the kernel leaves out what it has read.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan

import torch

from verify_norm.cases.make import POISONS
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import cheap, rerun
from verify_norm.checks.relations.two_runs import differences
from verify_norm.core.finding import Finding, Note
from verify_norm.core.run import Damage, Run
from verify_norm.loading import module_calls
from verify_norm.running.calling import inplace
from verify_norm.running.overlapping import overlaps

SIDES = {"before": "before the first element", "after": "behind the last element", "between": "between the elements"}


@check()
def memory(run: Run) -> Iterable[Finding | Note]:
    """A call writes its outputs alone, each in memory of its own, and no result depends on uninitialized memory.

    Arguments keep their bits, except what the contract declares in place; gaps and guard zones keep theirs. A note says
    which parameters a new module leaves uninitialized: a case has values of its own, and so has a loaded model.
    """
    yield from _damaged(run, run.damage)
    for place in run.beyond:
        message = f"expected loads and stores in the tensors of a launch only, got {place}"
        yield finding(run, "memory", None, f"{message}; a GPU may stop there with an illegal memory access")
    yield from _shared(run)
    if "memory" not in run.case.spec.further or not cheap(run):
        return
    poison = run.case.poison
    other = POISONS["finite" if isnan(poison) else "nan"]
    with module_calls.constructing() as made:
        second = rerun(run, poison=other, whole=True)
    yield from _uninitialized(made, other)
    known = {damage.buffer for damage in run.damage}
    yield from _damaged(run, [damage for damage in second.damage if damage.buffer not in known])
    yield from _reused(run, second)
    names = (f"with {poison:g} in memory that nobody wrote", f"with {other:g} there")
    found = list(differences(run, second, names))
    if not found:
        return
    pairs = ((run, rerun(run)), (second, rerun(run, poison=other)))
    if any(True for pair in pairs for _ in differences(*pair, names)):
        return  # it differs without a change of poison, which `determinism` reports
    for difference in found:
        yield finding(run, "memory", difference.output, difference.words)


def _uninitialized(made: Iterable[Mapping[str, torch.Tensor]], poison: float) -> Iterable[Note]:
    """Yield a note of the parameters of new modules that are as their memory was before."""
    names: set[str] = set()
    for parameters in made:
        names.update(name for name, tensor in parameters.items() if tensor.numel() and _all_are(tensor, poison))
    if names:
        verb = "hold" if len(names) > 1 else "holds"
        yield Note(f"a new module's {', '.join(sorted(names))} {verb} what was in memory, until values are loaded")


def _all_are(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor.isnan() if isnan(value) else tensor == value).all())


def _damaged(run: Run, damage: Sequence[Damage]) -> Iterable[Finding]:
    """Yield one finding for each output whose buffer is damaged, and one for all other memory."""
    for output in dict.fromkeys(d.output for d in damage):
        places = "; ".join(_words(d) for d in damage if d.output == output)
        yield finding(run, "memory", output, f"expected writes to the outputs only, got {places}")


def _words(d: Damage) -> str:
    if d.where == "in":
        return f"{d.count} bytes in {d.buffer}, an input"
    near = "next to it" if d.nearest == 0 else f"from {d.nearest} bytes off"
    return f"{d.count} bytes {SIDES[d.where]} of {d.buffer}" + ("" if d.where == "between" else f", {near}")


def _shared(run: Run) -> Iterable[Finding]:
    """Yield the outputs that share memory with an argument or another output, and do not declare it.

    Where torch's autograd makes the gradients, dy itself may be one of them: the gradient of a summand is.
    """
    if run.kernel.autograd and run.case.op.forward is not None:
        return
    declared = set(inplace(run.kernel))
    for output in dict.fromkeys(output for output, _ in run.overlaps):
        others = [other for name, other in run.overlaps if name == output and other != output]
        others = [other for other in others if (output, other) not in declared]
        if others:
            message = (
                f"{output} shares memory with {' and '.join(others)}, so writing to one changes the other; "
                f'a contract may declare it: inplace=("{output}:{others[0]}",)'
            )
            yield finding(run, "memory", output, message)


def _reused(run: Run, second: Run) -> Iterable[Finding]:
    """Yield the outputs that lie in the outputs of an earlier call, which are still in use."""
    for output, tensor in second.returned.items():
        others = [other for _, other in overlaps({output: tensor}, run.returned)]
        if others:
            before = " and ".join(others)
            message = f"{output} of one call shares memory with {before} of the call before, and overwrites it"
            yield finding(run, "memory", output, message)
