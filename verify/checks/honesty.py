"""Honesty: a kernel does its work in every call, before it returns, and leaves its judge alone.

Kernels that are written to pass a test, by agents above all, cheat in ways that few mistakes resemble. The table in
`docs/explanation/cheats.md` says which check detects which class of cheat. Here is what the other checks leave.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from verify_norm.cases import contents, make
from verify_norm.cases.transfer import different
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import cheap, once_more, rerun
from verify_norm.checks.relations.two_runs import Difference
from verify_norm.core import judge, ways
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding, Note, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.layouts import layout_of
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import functions
from verify_norm.running import argument_writes, in_use
from verify_norm.running.calling import REPLACES, inplace
from verify_norm.running.clock import Clock, untimed

EXPECTED = "expected plain tensors, and all else as it was"
FEWEST, MOST = 5, 24  # calls of a series
SECONDS = 0.02  # for them, where the kernel takes little time
NEW = 2, 12  # calls with new values: 2, and one more for every 12 calls
FASTER = 10  # times: a call with known values that is so much faster than one with new values looks them up
LAYOUTS: dict[str, Any] = {f.name: "contiguous" for f in fields(CaseSpec) if f.name.endswith("_layout")}
LEAST = 1e-4  # seconds of a call with new values: shorter times are those of Python


def _looks(run: Run) -> bool:
    return bool(run.evasions) or any(output is not None for output in run.outputs.values())


@check(looks=_looks, of_outputs=False)
def honesty(run: Run) -> Iterator[Finding | Note | Tried]:
    """A call does its work itself, before it returns, and deceives neither its judge nor its caller.

    What it returns are plain tensors, whose bytes do not change after the call, nor do those of its arguments; a
    subclass may label them. Neither a call nor the import of the kernel's module replaces a function of this tool, or
    one of torch, NumPy or Python that judges call. In some cases it
    compares the functions of this tool; they also show what an earlier call replaced.

    In these cases a series of calls follows, as in a user's program. The tensors are contiguous, lie in the same memory
    in all calls, have no guards around them, and are written as another kernel writes them: torch does not count it.
    The kernel cannot see that it is tested: its thread has no function of this tool on its stack, and this tool, pytest
    and Hypothesis are neither among the loaded modules nor in the environment. Some calls, at random, have new values;
    their outputs must be within their bound, as they are in a usual call. If they take many times longer than calls
    with known values, a note says so, which is no finding.
    """
    for name in functions.at_import(run.kernel.target):
        message = f"the import of its module replaces {name}"
        yield finding(run, "honesty", None, f"{message}; a verdict rests on it, so it was put back")
    for output, words in run.evasions:
        yield finding(run, "honesty", output, f"{words}; {EXPECTED}")
    series = run.problem is None and "honesty" in run.case.spec.further and cheap(run)
    found: list[Difference | Note] = []
    if series:
        tried = ways.taken(run.case.spec, "series", ways.WAYS["series"])
        yield from map(Tried, tried)
        for way in tried:
            found += _series(run, same=way == ways.SAME_TENSORS)
        found += _arguments(run)
    found += _later(run)  # last: the series takes time, in which late work ends
    for item in found:
        if isinstance(item, Note):
            yield item
        else:
            yield finding(run, "honesty", item.output, item.words, index=item.index)


def replaced(kernel: Kernel, spec: CaseSpec, names: Iterable[str]) -> Iterator[Finding]:
    """Yield that functions of the judge were found replaced when a case was over."""
    for name in names:
        message = f"{REPLACES} {name}, in a further run or an earlier case; {EXPECTED}"
        yield Finding(kernel.name, "honesty", None, "fail", message, spec)


def _later(run: Run) -> Iterator[Difference]:
    """Yield the outputs whose bytes have changed since the call returned."""
    names, before = list(run.at_return), list(run.at_return.values())
    now = [contents.bytes_of(run.returned[name], whole=False) for name in names]
    for number in different(now, before):
        count = int((now[number] != before[number]).sum())
        words = f"{count} bytes of {names[number]} change after the call has returned, which its work must not"
        yield Difference(names[number], words)


def _arguments(run: Run) -> Iterator[Difference]:
    """Yield the arguments whose memory has changed since the call returned, when it was as it had been built."""
    case, exact = run.case, run.case.exact
    states = [tensor.name for tensor in case.op.inputs if tensor.role == "state"]
    known = {*states, *(name for _, name in inplace(run.kernel)), *(damage.buffer for damage in run.damage)}
    # "far" depends on the memory that is free: what is built again may be placed otherwise.
    known |= {name for name in case.arguments if layout_of(case.spec, name) == "far"}
    built = make.build(case.spec, case.op, run.kernel.contract, case.device, exact, poison=case.poison)
    tensors = {name: value for name, value in built.arguments.items() if isinstance(value, torch.Tensor)}
    names = [
        name
        for name, tensor in tensors.items()
        if name not in known and tensor.untyped_storage().nbytes() <= argument_writes.LIMIT
    ]
    before = [contents.bytes_of(built.arguments[name], whole=True) for name in names]
    now = [contents.bytes_of(case.arguments[name], whole=True) for name in names]
    for number in different(before, now):
        yield Difference(None, f"the memory of {names[number]} changes after the call has returned")


def _series(run: Run, *, same: bool) -> Iterator[Difference | Note]:
    """Yield the first output that is wrong in a series of calls as in use, and what their times say."""
    spec = replace(run.case.spec, **LAYOUTS)
    if run.kernel.refuses(spec) is not None:
        return
    count = int(min(MOST, max(FEWEST, SECONDS / max(run.seconds, 1e-6))))
    places = np.random.default_rng(spec.seed).permutation(np.arange(1, count))[: NEW[0] + count // NEW[1]]
    clock = Clock(now=time.process_time if run.case.device == "cpu" else time.perf_counter)

    def timed(function: Callable[..., Any]) -> Any:
        return clock.around(function, run.case.device)

    assert run.kernel.run is not None
    function = untimed(run.kernel.run)
    # The process of an untrusted kernel hides the judge itself.
    measured = timed(function) if run.kernel.remote else in_use.alone(function, timed)
    kernel = replace(run.kernel, run=measured)
    known, home = _built(run, spec, 0), dict[str, torch.Tensor]()
    seconds_of_new, seconds_of_known = list[float](), list[float]()
    for number in range(count):
        new, before = number in places, clock.seconds
        case = _at(home, _built(run, spec, number) if new else known, same=same)
        result = once_more(run)(kernel, case, nullcontext())
        (seconds_of_new if new else seconds_of_known).append(clock.seconds - before)
        found = list(_wrong(run, result))
        if found:
            # What is wrong in a usual call too is left to `accuracy`.
            usual = rerun(run, result.case.exact, spec=spec, truth=True)
            where = f"in call {number + 1} of a series with {'new' if new else 'the same'} values in the same memory"
            for difference in found:
                if not _over(usual, difference.output):
                    yield replace(difference, words=f"{difference.words}, {where}, as in use")
            return
    if min(seconds_of_new) > max(LEAST, FASTER * median(seconds_of_known[1:])):
        yield Note(f"calls with values of earlier calls are {FASTER} times faster and more")


def _built(run: Run, spec: CaseSpec, number: int) -> Case:
    """Return a case with other data for each number but 0, and its truth; weight and bias are the run's."""
    exact = run.case.exact
    if number:
        other = make.exact_inputs(replace(spec, seed=(spec.seed + number) % 2**64), run.case.op, run.case.device)
        exact = other | {name: exact[name] for name in ("weight", "bias") if name in exact}
    return make.build(spec, run.case.op, run.kernel.contract, run.case.device, exact, truth=True)


def _at(home: dict[str, torch.Tensor], case: Case, *, same: bool) -> Case:
    """Return the case with its values at `home`, where those of the calls before were: in storages without guards.

    They are written as Triton kernels write, past torch's count of versions. Each call gets the `same` tensors, or new
    ones there; weight and bias, whose values stay, are the same tensors in all.
    """
    arguments = dict(case.arguments)
    parameters = [tensor.name for tensor in case.op.inputs if tensor.role == "weight"]
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            tensor = home.setdefault(name, torch.empty(value.shape, dtype=value.dtype, device=value.device))
            contents.on_same_memory(tensor).copy_(value)
            arguments[name] = tensor if same or name in parameters else contents.on_same_memory(tensor)
    return replace(case, arguments=arguments)


def _wrong(run: Run, result: Run) -> Iterator[Difference]:
    """Yield the outputs of a call that are beyond their bound, and are not so in the case itself; or its problem."""
    if result.problem is not None:
        if not result.limits and not result.refused:
            yield Difference(None, f"it fails: {result.problem}")
        return
    for name, output in result.outputs.items():
        want = result.case.expected.get(name)
        if output is None or output.ratio is None or want is None or _over(run, name) or not _over(result, name):
            continue
        index = judge.worst(output.ratio)
        words = f"{element(name, index)} is {output.got[index]:.9g}, expected {want.value[index]:.9g}"
        yield Difference(name, words, index)


def _over(run: Run, name: str | None) -> bool:
    """Return whether an output is beyond its bound, or cannot be judged; of None, whether the kernel has failed."""
    if name is None:
        return run.problem is not None
    output = run.outputs.get(name)
    return output is None or output.ratio is None or bool(output.ratio.max(initial=0.0) > 1)
