"""A call between a call and the same one again: of another shape, type or option, or one that fails."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any

import torch

from verify_norm.cases import further_runs, make
from verify_norm.cases.make import Exact
from verify_norm.checks.relations.held import Held, alone, built, over_bound
from verify_norm.checks.relations.options import one_option
from verify_norm.checks.relations.others import other_options, others_between
from verify_norm.checks.relations.rerun import once_more, other_shape
from verify_norm.checks.relations.two_runs import Difference, differences
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import gradients, module_calls
from verify_norm.running import captures
from verify_norm.running.state import OF_IMPORTS
from verify_norm.running.surroundings import left

INFERRED = "nference tensor"  # in what torch says where one is changed, or saved for a backward
READ = ("__get__", "size", "stride", "dim", "numel", "is_contiguous", "element_size")  # what tells of a tensor
LEAF = ("detach", "requires_grad_")  # what our own backward makes of it, which fails too


def between(run: Run, other: Exact) -> Iterator[Difference]:
    """Yield what differs in a call of another shape or type, and in the same call as before after it."""
    held = Held(run)
    held(built(run, other))
    yield from _replanned(run, held)
    for number, (spec, words) in enumerate(others_between(run)):
        exact = make.exact_inputs(spec, run.case.op, run.case.device)
        if number == 0:
            _infer(run, built(run, exact, spec))
        by_itself = alone(run, exact, spec)
        if INFERRED in (by_itself.problem or ""):
            message = f"{words} it fails after a call under torch.inference_mode(), from which it keeps a tensor"
            yield Difference(None, f"{message}: {by_itself.problem}")
        if by_itself.problem is None:
            after_another = held(built(run, exact, spec))
            yield from differences(
                by_itself, after_another, (f"{words} alone", f"{words} after a call of {run.case.spec.shape}")
            )
        yield from differences(run, held(built(run, {})), ("in the first call", f"after a call {words}"))
    yield from _failed(run, held)


def _infer(run: Run, case: Case) -> None:
    """Call the kernel, or the forward of its gradients, under torch.inference_mode, as an evaluation before training.

    A module is a new one: parameters that are made there cannot be trained.
    """
    kernel = run.kernel
    function = kernel.forward_run if kernel.autograd and run.case.op.forward is not None else kernel.run
    if kernel.remote or function is None:
        return
    given = case.arguments if function is kernel.run else gradients.offered(run.case.op, case.arguments)
    with torch.inference_mode(), suppress(Exception):
        make.call(function, given)


def _failed(run: Run, held: Held) -> Iterator[Difference]:
    """Yield what differs after a call that fails where it computes with one of its tensors, and what it leaves.

    The tensor is a right one that raises an error, so that no kernel reads or writes out of bounds.
    """
    case = built(run, {})
    names = [name for name, value in case.arguments.items() if isinstance(value, torch.Tensor)]
    if run.kernel.remote or captures.in_use() or not names:  # a tensor in another process; a trace of it
        return
    name, after = further_runs.variant(case.spec, names), further_runs.variant(case.spec, (0, 1))
    assert run.kernel.run is not None
    function, effects = run.kernel.run, list[str]()

    @wraps(function)
    def fails(**given: Any) -> Any:
        if name in given:
            given[name] = failing(given[name], after)
        with left(effects, {}):
            return function(**given)

    if Held(replace(run, kernel=replace(run.kernel, run=fails)), held.instance)(case).problem is not None:
        words = f"after a call that fails, since {name} raises an error there"
        yield from differences(run, held(built(run, {})), ("in the first call", words))
        for effect in effects:
            if effect not in run.effects and not effect.startswith(OF_IMPORTS):
                message = f"in a call that fails, since {name} raises an error there, {effect}"
                yield Difference(None, f"{message}; put it back in a finally clause")


def failing(tensor: torch.Tensor, after: int) -> torch.Tensor:
    """Return the tensor as one that raises an error in each operation after the first `after` ones.

    Reading its shape and the like is no such operation.

    The results of operations are plain tensors: a kernel may keep a buffer that it has made like the tensor.
    """
    left = [after]

    class Failing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.__name__ in LEAF:
                return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
            if func.__name__ not in READ:
                if not left[0]:
                    raise RuntimeError("this tensor fails, to see what an error leaves behind")
                left[0] -= 1
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    return tensor.as_subclass(Failing)


def _replanned(run: Run, held: Callable[[Case], Run]) -> Iterator[Difference]:
    """Yield what is wrong in calls of the same shape with other options: all that may differ, and one alone.

    What is kept by shape is kept already, so there is no call to compare with, and the truth tells. What is wrong in
    another shape too is left to `accuracy`.
    """
    for spec in other_options(run):
        result = held(_judged(run, spec))
        if result.problem is None:
            yield from _wrong(run, result, f"after a call of the same shape {spec.shape} with other options")
            yield from differences(run, held(built(run, {})), ("in the first call", "after a call with other options"))
            break
    single = list(one_option(run))
    for spec, words in single:
        result = held(_judged(run, spec))
        if result.problem is None:
            yield from _wrong(run, result, f"after a call of the same shape {spec.shape} and eps with {words}")
    if single:
        words = f"after calls with {', with '.join(words for _, words in single)}"
        yield from differences(run, held(built(run, {})), ("in the first call", words))


def _wrong(run: Run, result: Run, why: str) -> Iterator[Difference]:
    """Yield what is wrong in a call with other options than the run's, but not in such a call of another shape."""
    found = list(over_bound(run, result, why))
    if not found:
        return
    spec = other_shape(replace(run, case=replace(run.case, spec=result.case.spec)))
    if spec is None:
        yield from found
        return
    assert run.kernel.run is not None
    with_new_module = replace(run.kernel, run=module_calls.anew(run.kernel.run))
    shaped = once_more(run)(with_new_module, _judged(run, spec))
    for difference in found:
        output = shaped.outputs.get(difference.output or "")
        if output is not None and output.ratio is not None and not (output.ratio > 1).any():
            yield difference


def _judged(run: Run, spec: CaseSpec) -> Case:
    """Return another case of the run's operator, with its truth."""
    return make.case(spec, run.case.op, run.kernel.contract, run.case.device)
