"""Calls: what a kernel, or one instance of a module, keeps from one call to another, and what two threads share."""

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier

import numpy as np
import torch
from torch.utils import _python_dispatch

from verify_norm.cases import make, transfer
from verify_norm.cases.make import Exact
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.between import between
from verify_norm.checks.relations.held import Held, alone, built, over_bound, placed
from verify_norm.checks.relations.others import almost_the_same, nudged, one_alone
from verify_norm.checks.relations.rerun import cheap, once_more
from verify_norm.checks.relations.two_runs import Difference, differences, steady
from verify_norm.core import judge, ways
from verify_norm.core.finding import Finding, NoData, Tried
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import module_calls
from verify_norm.running import packed
from verify_norm.running.surroundings import left, switching

FEWEST, MOST = 16, 100  # calls whose outputs are held
KEPT = 2**5  # what is kept of a call shows by at least such a part of what its values change
SECONDS = 0.05  # for them: a kernel that takes longer is called FEWEST times
IN_THREAD = 3, 20  # calls of each thread, at least and at most
SWITCH = 1e-6  # seconds after which Python turns to the other thread, also in the middle of a kernel


def _looks(run: Run) -> bool:
    return "calls" in run.case.spec.further and cheap(run)


@check(looks=_looks)
def calls(run: Run) -> Iterator[Finding | NoData | Tried]:
    """A result does not depend on earlier calls, on who still holds their outputs, or on another thread.

    A case tries one way of five: all inputs have new values in the same tensors, also through .data, or one alone, or
    almost the same, where two elements have changed places or one is slightly larger or negated; only weight and bias
    have new values; many calls follow each other, whose outputs are read again at the end, when all inputs are
    released; a call comes between of another shape or type, with other options, with one other option alone, or one
    that fails; two threads call at the same time. One instance of a module serves all of them: its parameters are
    overwritten, in place, through .data, by load_state_dict, or replaced. Half of the cases call it as in inference:
    after eval(), under no_grad. The bits must be those that the same inputs give in fresh memory and a new module; a
    call of the same shape with other options is judged by its truth. A kernel whose bits differ in fresh memory too, in
    a second call, is left to `determinism`.
    """
    names = list(ways.taken(run.case.spec, "call", tuple(CALLS)))
    if run.kernel.remote and ways.TWO_THREADS in names:
        names.remove(ways.TWO_THREADS)  # the channel to its process takes one call at a time
    yield from map(Tried, names) if names else [NoData()]
    for usual, words in _usual(run):
        for name in names if names and steady(usual) else ():  # before a call changes what the kernel keeps
            for difference in CALLS[name](usual, _others(run)):
                yield finding(run, "calls", difference.output, difference.words + words)


def _usual(run: Run) -> Iterator[tuple[Run, str]]:
    """Yield the run as the case has the kernel called, as usual or as in inference, and what a message says of it."""
    called = ways.taken(run.case.spec, "called", ways.WAYS["called"])
    inferring = _inferring(run) if ways.AS_IN_INFERENCE in called and run.case.op.forward is None else run
    if inferring is run or ways.AS_USUAL in called:
        yield run, ""
    if inferring is not run:
        yield inferring, f", {ways.AS_IN_INFERENCE}: after eval(), under no_grad"


def _inferring(run: Run) -> Run:
    """Return the run as in inference; the usual one where that differs, which `modes` reports."""
    assert run.kernel.run is not None
    function = torch.no_grad()(run.kernel.run)
    if run.case.op.view != "channels":  # BatchNorm evaluates something else
        function = module_calls.evaluating()(function)
    other = replace(run, kernel=replace(run.kernel, run=function))  # with the ratios of the usual outputs
    return run if any(differences(run, alone(other, {}), ("", ""))) else other


def _others(run: Run) -> Exact:
    """Return other exact values of the case's inputs, of the same shapes, types and layouts."""
    spec = run.case.spec
    return make.exact_inputs(replace(spec, seed=spec.seed ^ 1), run.case.op, run.case.device)


def _values(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what is wrong where all tensors get new values or one alone does, or where they were almost the same."""
    found = list(_overwritten(Held(run), other, "all tensors"))
    found = found or list(_overwritten(Held(run), other, "all tensors", uncounted=True))
    for spec, exact, words in one_alone(run, other):
        found = found or list(_almost_the_same(run, exact, words, in_place=spec))
    for name in nudged(run):
        for exact, words in almost_the_same(run, name):
            found = found or list(_almost_the_same(run, exact, words))
    yield from found


def _almost_the_same(run: Run, exact: Exact, words: str, *, in_place: CaseSpec | None = None) -> Iterator[Difference]:
    """Yield what is wrong in a call with these values after the run's: a cache may look at some, a sum, few digits.

    They are in new tensors, or, with the spec of their case, in those of the call before.
    """
    case, held, before = run.case, Held(run), built(run, {})
    held(before)
    device, contract = case.device, run.kernel.contract
    after = make.build(in_place or case.spec, case.op, contract, device, exact, truth=True, poison=case.poison)
    again = held(placed(before, after, uncounted=True) if in_place else after)
    since = ", written through .data since" if in_place else ""
    found = over_bound(run, again, f"after a call in which {words}{since}")
    yield from (one for one in found if one.output is not None and _kept(run, again, one.output))


def _kept(run: Run, again: Run, output: str) -> bool:
    """Return whether most wrong elements are as far off as results of the call before; else they are inaccurate."""
    got, before, want = again.outputs[output], run.case.expected[output], again.case.expected[output]
    assert got is not None
    assert got.ratio is not None
    assert before is not None
    assert want is not None
    wrong = got.ratio > 1
    off, change = np.abs(got.got - want.value)[wrong], np.abs(before.value - want.value)[wrong]
    return bool(np.mean((off >= change / KEPT) & (off <= change + 2 * judge.allowed(want)[wrong])) >= 0.5)


def _parameters(run: Run, other: Exact) -> Iterator[Difference]:
    mine = {name: other[name] for name in ("weight", "bias") if run.case.exact.get(name) is not None}
    names = " and ".join(mine) or "all tensors"
    for turn, way in enumerate(module_calls.WRITES):
        held = Held(run, module_calls.Instance(turn - 1))  # the first call writes too
        found = list(_overwritten(held, mine or other, names))
        if found and held.instance.modules:
            found = [replace(one, words=f"{one.words}; the module's parameters are written {way}") for one in found]
        if not held.instance.modules:
            found = found or list(_overwritten(Held(run), mine or other, names, uncounted=True))
            yield from found
            return
        yield from found
        if found:
            return
    if run.case.op.view != "channels":  # BatchNorm evaluates something else
        for one in _overwritten(Held(run), mine or other, names, evaluating=True):
            yield replace(one, words=f"{one.words}; between both the module is evaluated, and trained again")


def _overwritten(
    held: Held, changed: Exact, which: str, *, evaluating: bool = False, uncounted: bool = False
) -> Iterator[Difference]:
    """Yield what differs where the tensors of a call get new values before the next call takes them.

    With `evaluating`, a module evaluates the first values before they change, for example in a validation between two
    epochs; `uncounted` is as of `placed`.
    """
    before = built(held.run, {})
    held(before)
    if evaluating:
        held(before, evaluating=True)
    again = held(placed(before, built(held.run, changed), uncounted=uncounted))
    how = ", written through .data, which counts no version" if uncounted else ""
    words = ("with these values in new tensors", f"where {which} of the call before hold them now{how}")
    yield from differences(alone(held.run, changed), again, words)


@contextmanager
def _in_series() -> Iterator[None]:
    """Put back what all calls of a series have changed of the process."""
    with left([], {}), warnings.catch_warnings():  # whose filters belong to all threads
        yield


def _many(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what differs in later calls with the same inputs, and what outputs hold once all calls are over.

    Two sets of inputs take turns in an order without a period (Thue and Morse's): buffers in a ring get both.
    """
    started, held = time.perf_counter(), Held(run)
    runs: list[Run] = []
    with _in_series():
        while len(runs) < FEWEST or (len(runs) < MOST and time.perf_counter() - started < SECONDS):
            turn: Exact = other if len(runs).bit_count() % 2 else {}
            one = held(built(run, turn))
            # Outputs outlive what they are made of. The caller holds views, which a pool of outputs must notice too.
            views = one.returned if run.kernel.remote else {name: t.detach() for name, t in one.returned.items()}
            runs.append(replace(one, case=replace(one.case, arguments={}), returned=views))
    usual = (run, alone(run, other))
    for number, one in enumerate(runs):
        found = list(differences(usual[number.bit_count() % 2], one, ("alone", f"in call {number + 1}")))
        found = found or list(_rewritten(one, f"after {len(runs) - number - 1} more calls"))
        if found:
            yield from found
            return


def _rewritten(run: Run, when: str) -> Iterator[Difference]:
    """Yield the outputs whose memory has changed since the call returned them."""
    later = run.returned if run.kernel.later is None else run.kernel.later(run.returned)
    case, contract = run.case, run.kernel.contract
    tensors = [packed.values(name, tensor, case.spec, case.op, contract)[1] for name, tensor in later.items()]
    for name, now in zip(later, transfer.values(tensors), strict=True):
        output = run.outputs[name]
        if output is not None and (count := int((~judge.identical(now.ravel(), output.got.ravel())).sum())):
            yield Difference(name, f"{count} elements of {name} change {when}, although the caller still holds it")


def _threads(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what differs where two threads call the kernel at the same time, each with an x of its own.

    They share a module where its tensors need not be replaced during a call, which is no matter of two threads.
    """
    shared = not run.kernel.autograd and run.case.op.view != "channels"
    kept = {name: run.case.exact[name] for name in ("weight", "bias") if name in run.case.exact and shared}
    other = {**other, **kept}
    held, call = Held(run), once_more(run)
    called_once = held if shared else lambda case: call(run.kernel, case)
    called_once(built(run, {}))  # writes the parameters
    start = Barrier(2)

    def called(values: Exact) -> list[Run]:
        runs: list[Run] = []
        start.wait()
        started = time.perf_counter()
        while len(runs) < IN_THREAD[0] or (len(runs) < IN_THREAD[1] and time.perf_counter() - started < SECONDS):
            runs.append(called_once(built(run, values)))
        return runs

    with _in_series(), switching(SWITCH), _flags_of_modes(), ThreadPoolExecutor(2) as pool:
        both = list(pool.map(called, ({}, other)))
    for values, runs in zip(({}, other), both, strict=True):
        usual = alone(run, values)
        for one in runs:
            found = list(differences(usual, one, ("alone", "beside a call in another thread")))
            if found:
                yield from found
                return


@contextmanager
def _flags_of_modes() -> Iterator[None]:
    """Put torch's flags of its modes back, which two threads may leave on."""
    flags = {name: value for name, value in vars(_python_dispatch).items() if isinstance(value, bool)}
    try:
        yield
    finally:
        vars(_python_dispatch).update(flags)


CALLS: dict[str, Callable[[Run, Exact], Iterator[Difference]]] = {
    ways.VALUES: _values,
    ways.NEW_PARAMETERS: _parameters,
    ways.MANY: _many,
    ways.TWO_THREADS: _threads,
    ways.BETWEEN: between,
}
