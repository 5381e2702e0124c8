"""Functions that call a kernel in another setting than usual: with other data, defaults, modules, or a batch."""

import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import partial, wraps
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from verify_norm.cases import contents
from verify_norm.core.errors import one_line
from verify_norm.loading.returned import RefusedError, fields_of
from verify_norm.running.captures import Function
from verify_norm.running.surroundings import holding, left_of_modes

DATA = frozenset(("x", "residual", "residual_out", "mask", "dy", "dresidual_out"))
ALIGNED = 16  # bytes of a vector load
WAKE = signal.SIGURG  # interrupts a wait, and is ignored where nobody handles it
SOON = 0.05  # seconds until a thread that raised interrupts the main thread, and does so again


def made_there(function: Function) -> Function:
    """Return the function, called with data that are made in the mode, as another layer's output is.

    In inference mode they have no version counter. What it writes into them is copied back.
    """

    @wraps(function)
    def run(**given: Any) -> Any:
        made = {name: given[name].clone() for name in DATA.intersection(given) if given[name] is not None}
        made = {name: tensor for name, tensor in made.items() if _placed_alike(tensor, given[name])}
        returned = function(**{**given, **made})
        for name, tensor in made.items():
            if not contents.same_bits(tensor, given[name]):
                contents.overwrite(given[name], tensor)
        return returned

    return run


def _placed_alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether a kernel may take the same path for both: the strides are equal, and whether they are aligned."""
    return one.stride() == two.stride() and one.data_ptr() % ALIGNED == two.data_ptr() % ALIGNED


def noting(function: Function, words: list[str]) -> Function:
    """Return the function; what a call makes of a mode's settings is put back, and added to `words`.

    So are the hooks that it registers on its arguments, which require gradients in some modes only.
    """

    @wraps(function)
    def run(**given: Any) -> Any:
        before = _hooks(given)
        with left_of_modes(words):
            returned = function(**given)
        for name, now in _hooks(given).items():
            if now != before[name]:
                words.append(f"{name}._backward_hooks changes from {before[name]} to {now}")
        return returned

    return run


def _hooks(given: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(t._backward_hooks or ()) for name, t in given.items() if isinstance(t, torch.Tensor)}


def of_modules(function: Function, how: Callable[[], AbstractContextManager[list[torch.nn.Module]]]) -> Function:
    """Return the function with all its modules turned; it refuses a call in which no module runs."""

    @wraps(function)
    def run(**given: Any) -> Any:
        with how() as used:
            returned = function(**given)
        if not used:
            raise RefusedError("no module runs")
        return returned

    return run


def batched(function: Function, *, of: Collection[str] | None) -> Function:
    """Return the function under torch.func.vmap, of a batch whose last sample is the call's; what fails is refused.

    The tensors with these names have a batch in their first dimension, or in the second one where the first has as many
    elements as the batch has samples: a rule that takes one for the other would raise elsewhere. None: every tensor has
    one, in the last. Other samples have other values, which need no gradient: NaN there, for example of a negative
    variance, would be in that of the call's sample.
    """

    @wraps(function)
    def run(**given: Any) -> Any:
        names = [n for n, t in given.items() if isinstance(t, torch.Tensor) and (of is None or n in of)]
        if not names:
            raise ValueError("no tensor has a batch")
        places = tuple(given[n].dim() if of is None else int(given[n].shape[:1] == (2,)) for n in names)
        others = [(1 - 2 * given[n]).detach() for n in names]
        form: list[Any] = []

        def one(*tensors: torch.Tensor) -> list[torch.Tensor]:
            returned = function(**{**given, **dict(zip(names, tensors, strict=True))})
            leaves, spec = tree_flatten(fields_of(returned) or returned)
            form[:] = [returned, spec, [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]]
            return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

        stacks = [torch.stack((o, given[n]), place) for o, n, place in zip(others, names, places, strict=True)]
        with _without_advice():
            results = iter(torch.func.vmap(one, in_dims=places)(*stacks))
        returned, spec, leaves = form
        return _like(returned, tree_unflatten([next(results)[-1] if leaf is None else leaf for leaf in leaves], spec))

    return refusing(run)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Keep torch from writing to the terminal that an operator without a rule for vmap is slow there."""
    warn = getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled", lambda on: None)
    warn(False)
    try:
        yield
    finally:
        warn(True)


def _like(returned: Any, parts: Any) -> Any:
    """Return the parts as what was returned, which torch cannot put together if it is a dataclass."""
    if fields_of(returned) is None:
        return parts
    made = copy(returned)
    for name, part in parts.items():
        object.__setattr__(made, name, part)  # it may be frozen
    return made


def refusing(function: Function) -> Function:
    """Return the function; what it raises, also in a thread of its own, is a refusal of the call."""

    @wraps(function)
    def run(**given: Any) -> Any:
        try:
            with _threads_heard() as raised:
                returned = function(**given)
        except Exception as error:
            raise RefusedError(one_line(error)) from error
        if raised:
            raise RefusedError(one_line(raised[0].exc_value))
        return returned

    return run


@contextmanager
def _threads_heard() -> Iterator[list[Any]]:
    """Collect what other threads raise; the main thread raises it too, since it may wait for a thread that ended so."""
    raised: list[Any] = []
    main, hook, over = threading.get_ident(), threading.excepthook, threading.Event()
    waits = threading.current_thread() is threading.main_thread()

    def heard(error: Any) -> None:
        raised.append(error)
        while waits and not over.wait(SOON):  # a signal just before the wait does not interrupt it
            signal.pthread_kill(main, WAKE)

    def wake(*_: Any) -> None:
        raise raised[0].exc_value

    before = signal.signal(WAKE, wake) if waits else None
    threading.excepthook = heard
    try:
        yield raised
    finally:
        over.set()
        threading.excepthook = hook
        if waits:
            signal.signal(WAKE, before)
        for error in raised:
            if error.thread is not None:
                error.thread.join()


@contextmanager
def deterministically() -> Iterator[None]:
    """Let torch take deterministic algorithms, and as before after it."""
    was, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warns)


in_threads = partial(holding, "torch.get_num_threads()")
default_dtype = partial(holding, "torch.get_default_dtype()")
matmul_precision = partial(holding, "torch.get_float32_matmul_precision()")
