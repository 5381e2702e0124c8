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

from verify_norm.cases import make, one_thread, transfer
from verify_norm.cases.make import Exact
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.between import between
from verify_norm.checks.relations.held import Held, alone, built, over_bound, placed
from verify_norm.checks.relations.others import almost_the_same, nudged, one_alone
from verify_norm.checks.relations.rerun import cheap, once_more, other_values
from verify_norm.checks.relations.two_runs import Difference, differences, first_that_differs, steady
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
CAPTURING = "captur"  # in the message of an error that another thread's capture of a CUDA graph causes
SWITCH = 1e-6  # seconds after which Python turns to the other thread, also in the middle of a kernel


def _looks(run: Run) -> bool:
    return "calls" in run.case.spec.further and cheap(run)


@check(looks=_looks)
def calls(run: Run) -> Iterator[Finding | NoData | Tried]:
    """A result does not depend on earlier calls, on who still holds their outputs, or on another thread.

    A case tries one way of five: all inputs have new values in the same tensors, also through .data, or one alone, or
    almost the same, where two elements have changed places or one is slightly larger or negated; only weight and bias
    have new values; many calls follow each other, whose outputs are read again at the end, when all inputs are
    released; a call comes between of another shape or type, under inference_mode first, with other options, with one
    other option alone, or one that fails, which must put back what it has changed in the process; two threads call at
    the same time. One instance of a module serves all of them: its parameters are overwritten, in place, through .data,
    by load_state_dict, or replaced. Half of the cases call it as in inference: after eval(), under no_grad. The bits
    must be those that the same inputs give in fresh memory and a new module; a call of the same shape with other
    options is judged by its truth. A kernel whose bits differ in fresh memory too, in a second call, is left to
    `determinism`.
    """
    names = list(ways.taken(run.case.spec, "call", tuple(CALLS)))
    if run.kernel.remote and ways.TWO_THREADS in names:
        names.remove(ways.TWO_THREADS)  # the channel to its process takes one call at a time
    if not names:
        yield NoData()
        return
    yield from map(Tried, names)
    for called, words in _called(run):
        if not steady(called):  # asked before a call changes what the kernel keeps
            continue
        for name in names:
            for difference in CALLS[name](called, other_values(run)):
                yield finding(run, "calls", difference.output, difference.words + words)


def _called(run: Run) -> Iterator[tuple[Run, str]]:
    """Yield the run with the kernel called as the case says, as usual or as in inference, and the words for that."""
    called = ways.taken(run.case.spec, "called", ways.WAYS["called"])
    inferring = _inferring(run) if ways.AS_IN_INFERENCE in called and run.case.op.forward is None else run
    if inferring is run or ways.AS_USUAL in called:
        yield run, ""
    if inferring is not run:
        yield inferring, f", {ways.AS_IN_INFERENCE}: after eval(), under no_grad"


def _inferring(run: Run) -> Run:
    """Return the run with the kernel called as in inference; the run itself if its outputs differ there.

    `modes` reports such a difference.
    """
    assert run.kernel.run is not None
    function = torch.no_grad()(run.kernel.run)
    if run.case.op.view != "channels":  # BatchNorm evaluates something else
        function = module_calls.evaluating()(function)
    inferring = replace(run, kernel=replace(run.kernel, run=function))  # with the ratios of the usual outputs
    return run if any(differences(run, alone(inferring, {}), ("", ""))) else inferring


def _values(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what is wrong where all tensors get new values or one alone does, or where they were almost the same."""

    def comparisons() -> Iterator[Iterator[Difference]]:
        yield _overwritten(Held(run), other, "all tensors")
        yield _overwritten(Held(run), other, "all tensors", uncounted=True)
        for spec, exact, words in one_alone(run, other):
            yield _almost_the_same(run, exact, words, in_place=spec)
        for name in nudged(run):
            for exact, words in almost_the_same(run, name):
                yield _almost_the_same(run, exact, words)

    return first_that_differs(comparisons())


def _almost_the_same(run: Run, exact: Exact, words: str, *, in_place: CaseSpec | None = None) -> Iterator[Difference]:
    """Yield what is wrong in a call with these values after the run's: a cache may look at some, a sum, few digits.

    They are in new tensors, or, with the spec of their case, in those of the call before.
    """
    case, held, before = run.case, Held(run), built(run, {})
    held(before)
    device, contract = case.device, run.kernel.contract
    after = make.build(in_place or case.spec, case.op, contract, device, exact, truth=True, poison=case.poison)
    later = held(placed(before, after, uncounted=True) if in_place else after)
    since = ", written through .data since" if in_place else ""
    for difference in over_bound(run, later, f"after a call in which {words}{since}"):
        if difference.output is not None and _kept(run, later, difference.output):
            yield difference


def _kept(run: Run, later: Run, output: str) -> bool:
    """Return whether most wrong elements are as far off as results of the call before; else they are inaccurate."""
    result, before, want = later.outputs[output], run.case.expected[output], later.case.expected[output]
    assert result is not None
    assert result.ratio is not None
    assert before is not None
    assert want is not None
    wrong = result.ratio > 1
    off = np.abs(result.got - want.value)[wrong]
    change = np.abs(before.value - want.value)[wrong]
    as_before = (off >= change / KEPT) & (off <= change + 2 * judge.allowed(want)[wrong])
    return bool(np.mean(as_before) >= 0.5)


def _parameters(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what is wrong where weight and bias get new values, of a module in each of the ways to write them.

    Of an operator without parameters all tensors get new values.
    """
    parameters = {name: other[name] for name in ("weight", "bias") if run.case.exact.get(name) is not None}
    changed, names = parameters or other, " and ".join(parameters) or "all tensors"
    for number, way in enumerate(module_calls.WRITES):
        held = Held(run, module_calls.Instance(number - 1))  # the first call writes too
        found = list(_overwritten(held, changed, names))
        if not held.instance.modules:
            yield from found or _overwritten(Held(run), changed, names, uncounted=True)
            return
        for difference in found:
            yield replace(difference, words=f"{difference.words}; the module's parameters are written {way}")
        if found:
            return
    if run.case.op.view != "channels":  # BatchNorm evaluates something else
        for difference in _overwritten(Held(run), changed, names, evaluating=True):
            words = f"{difference.words}; between both the module is evaluated, and trained again"
            yield replace(difference, words=words)


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
    later = held(placed(before, built(held.run, changed), uncounted=uncounted))
    how = ", written through .data, which counts no version" if uncounted else ""
    words = ("with these values in new tensors", f"where {which} of the call before hold them now{how}")
    yield from differences(alone(held.run, changed), later, words)


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
            values: Exact = other if len(runs).bit_count() % 2 else {}
            result = held(built(run, values))
            # Outputs outlive what they are made of. The caller holds views, which a pool of outputs must notice too.
            views = result.returned
            if not run.kernel.remote:
                views = {name: tensor.detach() for name, tensor in views.items()}
            runs.append(replace(result, case=replace(result.case, arguments={}), returned=views))
    run_alone, other_alone = run, alone(run, other)

    def comparisons() -> Iterator[Iterator[Difference]]:
        for number, result in enumerate(runs):
            expected = other_alone if number.bit_count() % 2 else run_alone
            yield differences(expected, result, ("alone", f"in call {number + 1}"))
            yield _rewritten(result, f"after {len(runs) - number - 1} more calls")

    yield from first_that_differs(comparisons())


def _rewritten(run: Run, when: str) -> Iterator[Difference]:
    """Yield the outputs whose memory has changed since the call returned them."""
    later = run.returned if run.kernel.later is None else run.kernel.later(run.returned)
    case, contract = run.case, run.kernel.contract
    tensors = [packed.values(name, tensor, case.spec, case.op, contract)[1] for name, tensor in later.items()]
    for name, now in zip(later, transfer.values(tensors), strict=True):
        output = run.outputs[name]
        if output is None:
            continue
        count = int((~judge.identical(now.ravel(), output.got.ravel())).sum())
        if count:
            yield Difference(name, f"{count} elements of {name} change {when}, although the caller still holds it")


def _threads(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what differs where two threads call the kernel at the same time, each with an x of its own.

    They share a module where its tensors need not be replaced during a call, which is no matter of two threads.
    """
    shared = not run.kernel.autograd and run.case.op.view != "channels"
    if shared:
        other = {**other, **{name: run.case.exact[name] for name in ("weight", "bias") if name in run.case.exact}}
    held, execute = Held(run), once_more(run)

    def call(values: Exact) -> Run:
        case = built(run, values)
        return held(case) if shared else execute(run.kernel, case)

    call({})  # writes the parameters
    shared = shared and not held.instance.replaces
    start = Barrier(2)

    def calls_of_thread(values: Exact) -> list[Run]:
        runs: list[Run] = []
        start.wait()
        started = time.perf_counter()
        while len(runs) < IN_THREAD[0] or (len(runs) < IN_THREAD[1] and time.perf_counter() - started < SECONDS):
            runs.append(call(values))
        return runs

    pool = ThreadPoolExecutor(2, initializer=one_thread.begin, initargs=(torch.get_num_threads(),))
    try:
        with _in_series(), switching(SWITCH), _flags_of_modes(), pool:
            of_threads = list(pool.map(calls_of_thread, ({}, other)))
    except RuntimeError as error:
        if CAPTURING not in str(error):
            raise
        return  # they may be this tool's own calls

    def comparisons() -> Iterator[Iterator[Difference]]:
        for values, runs in zip(({}, other), of_threads, strict=True):
            expected = alone(run, values)
            for result in runs:
                yield differences(expected, result, ("alone", "beside a call in another thread"))

    yield from first_that_differs(comparisons())


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
