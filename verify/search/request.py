"""A run as a user asks for it, checked: one place for the command line, Python, pytest and [tool.verify-norm].

Importing this module loads neither torch nor Triton.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from verify_norm.core.errors import UnknownOpError, UsageError, quoted, texts
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Seconds, Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.user_operators import Operator
from verify_norm.loading import nested
from verify_norm.search.options import Options, least, options

SECRET = 63  # bits of a seed that nobody knows before the run


@dataclass(frozen=True, slots=True)
class Request:
    """What a run needs: the kernels, ready to run, and how to search them.

    `corpus` holds the cases to run first, for each kernel.
    """

    kernels: tuple[Kernel, ...]
    settings: Settings
    corpus: tuple[tuple[CaseSpec, ...], ...]

    def runs(self) -> Iterator[tuple[Kernel, tuple[CaseSpec, ...]]]:
        """Yield each kernel with the cases to run first."""
        return zip(self.kernels, self.corpus, strict=True)

    def only(self) -> Kernel:
        """Return the one kernel; raises UsageError if there are two, one a direction."""
        from verify_norm.loading.registry import single

        return single(self.kernels)


def request(
    kernel: object,
    given: Mapping[str, Any],
    *,
    op: str | Operator | None = None,
    bind: str = "",
    isolate: bool = True,
    corpus: str = "",
    worker: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Request:
    """Return a run of `kernel`, a name, a target or a callable: of what is differentiable, one kernel a direction.

    The directions share the time. `corpus` is the path of a file of cases. `given` has fields of Options. Of
    several GPUs `worker` chooses one where the device names none. `tell` takes lines for the user, each before what it
    speaks of: that a kernel runs in this process, before it does. For an untrusted kernel the system draws the seed,
    unless it is given.

    Raises UsageError: an option is wrong, the device is not there, the kernel cannot be found, imported or bound, or
    the corpus cannot be read.
    """
    texts(op="" if op is None or isinstance(op, Operator) else op, bind=bind, corpus=corpus)
    if not isinstance(isolate, bool):
        raise UsageError(f"isolate: expected True or False, got {quoted(isolate)}")
    nested.refuse(kernel if isolate else None)
    asked = options(**given)
    place = device(asked.device, worker)
    if place == "cpu":
        _interpret_on_cpu(kernel)
    kernels = _loaded(kernel, op, bind, asked, place, isolate=isolate, tell=tell)
    name = kernels[0].name
    if (asked.workers or 1) > 1 and not all(isolate and one.target for one in kernels):
        tell(f"{name} runs in this process alone, not in {asked.workers} workers")
    here: dict[str, Any] = {
        "examples": 0 if asked.shapes == "models" else asked.examples,
        "seconds": max(asked.seconds / len(kernels), least(Seconds)),
        "device": place,
        "isolate": isolate,
    }
    if asked.untrusted and "seed" not in given:
        here["seed"] = secrets.randbits(SECRET)
    settings = Settings(**(asked.model_dump() | here))
    for one in kernels:
        if {*one.dtypes}.isdisjoint(settings.dtypes):
            asks = f"{one.name} takes {', '.join(one.dtypes)}, and the run asks for {', '.join(settings.dtypes)}"
            raise UsageError(f"dtypes: {asks}")
    return Request(kernels, settings, _cases_to_run_first(corpus, kernels))


def _interpret_on_cpu(kernel: object) -> None:
    """Turn on Triton's interpreter for a run on the CPU; raises UsageError if it is too late for the kernel."""
    try:
        interpret(always=True)
    except UsageError:
        if isinstance(kernel, str) or gpus():
            raise
        os.environ["TRITON_INTERPRET"] = "1"  # the caller has imported Triton: only the kernel's process interprets


def _loaded(
    kernel: object,
    op: str | Operator | None,
    bind: str,
    asked: Options,
    place: str,
    *,
    isolate: bool,
    tell: Callable[[str], None],
) -> tuple[Kernel, ...]:
    """Return the kernels of the directions that are checked; tell which kernel is meant, where it runs and which not.

    Raises UsageError.
    """
    from verify_norm.loading.entry_points import shadowed
    from verify_norm.loading.registry import load_directions
    from verify_norm.running.isolate import NO_TARGET
    from verify_norm.search.directions import forward_only

    if isinstance(kernel, str):
        for note in shadowed(kernel):
            tell(note)
    if asked.untrusted:
        from verify_norm.running.untrusted.loading import load_untrusted

        if not isolate:
            raise UsageError("untrusted: the kernel must run in another process; remove isolate=False (--in-process)")
        kernels = load_untrusted(kernel, op, bind, asked.contract, asked.only, place)
    else:
        kernels = load_directions(kernel, op, bind, asked.contract, asked.only)
    forward, *others = kernels
    if isolate and not all(one.target for one in kernels):
        tell(f"{forward.name} runs in this process: {NO_TARGET}; a crash would end it; isolate=False accepts that")
    if others and op is None:
        why = forward_only(others[0], Settings(device=place, isolate=isolate, untrusted=asked.untrusted))
        if why:
            both = forward.op.removesuffix("_fwd")
            tell(f"{forward.name} is checked forward only, since {why}; --op {both} checks its backward too")
            return (forward,)
    return tuple(kernels)


def _cases_to_run_first(corpus: str, kernels: tuple[Kernel, ...]) -> tuple[tuple[CaseSpec, ...], ...]:
    """Return the cases of a corpus for each kernel; none without a corpus. Raises UsageError."""
    from verify_norm.search.corpus import load

    if not corpus:
        return ((),) * len(kernels)
    if not os.path.exists(corpus):
        raise UsageError(f"there is no corpus {corpus}; verify-norm hunt --corpus {corpus} writes one")
    return tuple(load(corpus, kernel) for kernel in kernels)


def request_pair(
    kernels: tuple[object, object],
    given: Mapping[str, Any],
    *,
    op: str | Operator | None = None,
    binds: tuple[str, str] = ("", ""),
    isolate: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Request, Request]:
    """Return `request` of two kernels; one that names no operator has the other's. Raises UsageError."""
    once = cache(tell)

    def load(side: int, op: str | Operator | None) -> Request:
        return request(kernels[side], given, op=op, bind=binds[side], isolate=isolate, tell=once)

    try:
        first = load(0, op)
    except UnknownOpError:
        second = load(1, op)
        return load(0, second.only().op), second
    try:
        return first, load(1, op)
    except UnknownOpError:
        return first, load(1, first.only().op)


def device(name: str, worker: int = 0) -> str:
    """Return the device of that name: "auto" is the first GPU, or the CPU without a GPU.

    Several workers share several GPUs: where the name has no number, a worker takes the GPU of its own number, modulo
    their count. Raises UsageError where there is no such device.
    """
    count = gpus()
    if name == "auto":
        name = "cuda" if count else "cpu"
    if name == "cpu":
        return name
    number = known_device(name).partition(":")[2]
    if int(number or 0) >= count:
        there = f"there are {count}" if count else "torch sees no CUDA device here"
        raise UsageError(f"no device {name}: {there}; --device cpu runs Triton kernels in its interpreter")
    return f"cuda:{int(number) if number else worker % count}"


def known_device(name: str) -> str:
    """Return the name of a device, which need not be here; raises UsageError for what names none."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name) is None:
        raise UsageError(f"unknown device {name!r}; there are: cpu, cuda, cuda:N")
    return name


def gpus() -> int:
    """Return how many CUDA devices torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def interpret(*, always: bool = False) -> None:
    """Turn on Triton's interpreter if there is no GPU, or `always`. It has to be on before Triton is imported."""
    from verify_norm.running.interpreter import patch

    if always or not gpus():
        try:
            patch.enable()
        except RuntimeError as error:
            raise UsageError(str(error)) from error
