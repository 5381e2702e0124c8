"""Memory: what is written outside of the outputs, and whether anything is read that nobody wrote.

Every argument lies among poison, and is compared bit by bit with what it was, gaps and guards included. What the kernel
allocates by torch has poison on both sides, and within where it is to be uninitialized. A value that depends on such
poison is found by a second run with another: NaN shows in most arithmetic, but is legal where an input holds one and
vanishes in comparisons and `nan_to_num`; the other is an ordinary number, which 0 times it forgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan

from verify_norm.again import again, cheap, differences
from verify_norm.checks import check, finding
from verify_norm.execute import inplace
from verify_norm.guards import overlaps
from verify_norm.spec import Damage, Finding, Run

EVERY = 2  # one case of so many is run with the other poison, by its seed: see checks.gradient
POISONS = (float("nan"), 4096.0)


@check(looks=lambda run: run.problem is None)
def memory(run: Run) -> Iterable[Finding]:
    """Nothing is written but outputs in memory of their own, and no result depends on memory that nobody wrote.

    Arguments have to keep their bits, but for what the contract declares in place; gaps and guard zones theirs.
    """
    yield from _damaged(run, run.damage)
    yield from _shared(run)
    if run.case.spec.seed % EVERY or not cheap(run):
        return
    poison, other = POISONS if isnan(run.case.poison) else POISONS[::-1]
    second = again(run, poison=other)
    yield from _damaged(run, [d for d in second.damage if d.buffer not in {seen.buffer for seen in run.damage}])
    yield from _reused(run, second)
    names = (f"with {poison:g} in memory that nobody wrote", f"with {other:g} there")
    found = list(differences(run, second, names))
    if not found:
        return
    third, fourth = again(run), again(run, poison=other)
    if any(True for pair in ((run, third), (second, fourth)) for _ in differences(*pair, names)):
        return  # it differs by itself, which `determinism` tells
    for difference in found:
        yield finding(run, "memory", difference.output, difference.said)


def _damaged(run: Run, damage: Sequence[Damage]) -> Iterable[Finding]:
    """One finding for each output whose buffer is damaged about, and one for all other memory."""
    for output in dict.fromkeys(d.output for d in damage):
        said = "; ".join(_words(d) for d in damage if d.output == output)
        yield finding(run, "memory", output, f"it writes where it is not to: {said}")


def _words(d: Damage) -> str:
    if d.where == "in":
        return f"{d.count} bytes of {d.buffer} are changed, which is an input"
    side = {"before": "before the first element", "after": "behind the last element", "between": "between the elements"}
    near = "next to it" if d.nearest == 0 else f"from {d.nearest} bytes off"
    near = "" if d.where == "between" else f", {near}"
    return f"{d.count} bytes {side[d.where]} of {d.buffer}{near}"


def _shared(run: Run) -> Iterable[Finding]:
    """Outputs that share memory with what they are not to share it with.

    Where torch's autograd makes the gradients, dy itself may be one of them, as it is of what is added.
    """
    if run.kernel.autograd and run.case.op.forward is not None:
        return
    declared = set(inplace(run.kernel))
    for output in dict.fromkeys(output for output, _ in run.overlaps):
        others = [other for name, other in run.overlaps if name == output and other != output]
        others = [other for other in others if (output, other) not in declared]
        if others:
            message = (
                f"{output} shares memory with {' and '.join(others)}: who changes one changes the other; "
                f'a contract may declare it, as inplace=("{output}:{others[0]}",)'
            )
            yield finding(run, "memory", output, message)


def _reused(run: Run, second: Run) -> Iterable[Finding]:
    """Outputs that lie where another call's do, whose outputs are still held."""
    for output, tensor in second.returned.items():
        others = [other for _, other in overlaps({output: tensor}, run.returned)]
        if others:
            before = " and ".join(others)
            message = f"{output} of one call shares memory with {before} of the call before, which is changed by it"
            yield finding(run, "memory", output, message)
