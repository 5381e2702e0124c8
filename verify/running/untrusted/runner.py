"""Judges an untrusted kernel: the case, its truth and its checks are here, and only the call is elsewhere."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, prod
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from verify_norm.core.errors import visible
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Called, Damage
from verify_norm.loading import module_calls
from verify_norm.running import refusals
from verify_norm.running.calling import POISON
from verify_norm.running.patience import LostError, Patience, Time
from verify_norm.running.untrusted import sandbox, wire
from verify_norm.running.untrusted.processes import Worker, load

SIDES = ("before", "after", "between", "in")
# What a check leaves out in an untrusted run, and why.
UNSEEN = {
    "autograd": "untrusted: the graph of the gradients is in the kernel's process",
    "effects": "untrusted: of the kernel's process only what it says itself; no leaks and no seeds",
    "modes": "untrusted: neither torch.compile nor CUDA graphs, nor modes of a backward by torch's autograd",
    "calls": "untrusted: two threads do not call at the same time",
}
T = TypeVar("T")


class Untrusted:
    """Runs a kernel by proxy: a worker makes the calls, and this process, which loads nothing of it, judges them."""

    isolated = True

    def __init__(self, kernel: Kernel, device: str) -> None:
        self.device, self._loaded = device, kernel
        run, forward_run = (None if f is None else Proxy(self, f) for f in (kernel.run, kernel.forward_run))
        self.kernel = replace(kernel, run=run, forward_run=forward_run, later=self._later)
        self._worker: Worker | None = None
        self._patience = Patience(device)
        self._left, self._stage, self._new_case = inf, "", True
        self._instances: list[module_calls.Instance] = []
        self._calls = WeakIdKeyDictionary()  # by returned tensor: the number of its call, and the output's name
        self._dumpable = sandbox.undumpable()
        self._lacking: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What the report says of the isolation."""
        lacking = f" ({'; '.join(map(visible, self._lacking))})" if self._lacking else ""
        return f"untrusted: a process that has no truth and no verdict, in a sandbox{lacking}"

    def call(self, function: Callable[..., T], time: Time, *args: Any) -> T:
        """Return `function(kernel, *args)`, which runs in this process; `time` limits its calls of the kernel together.

        Raises what the function raises, and LostError if the worker is lost.
        """
        limit = self._patience.limit(time)
        self._left, self._stage, self._new_case = limit, "", True
        self._instances.clear()
        try:
            result = function(self.kernel, *args)
        except LostError as error:
            lost = self._patience.lost(time) if error.hung else error
            self.fresh(hung=lost.hung and not lost.late)
            raise lost from None
        except BaseException:  # Ctrl-C, in the middle of an answer
            self.fresh()
            raise
        self._patience.returned(time, limit - self._left, result)
        return result

    def announce(self, name: str) -> None:
        """Note which check begins."""
        self._stage = name

    def stage(self) -> str:
        """Return the check that began last in this call; "" if none did."""
        return self._stage

    def fresh(self, *, hung: bool = False) -> bool:
        """Let the next call run in a new process, perhaps because this one has `hung`, and return True."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        self._patience.restart(hung=hung)
        return True

    def close(self) -> None:
        """End the worker."""
        self.fresh()
        self._dumpable()

    def call_worker(self, number: int, op: str, arguments: Mapping[str, Any]) -> Called:
        """Let the worker call its function of that number, and return what it answers."""
        worker = self._worker or self._start_worker()
        slots = worker.arena.slots(arguments)
        worker.arena.write(slots, arguments)
        names = [tensor.name for tensor in OPS[op].outputs]
        live = {call for call, _ in self._calls.values()}
        request = {
            "kernel": number,
            "slots": {name: asdict(slot) for name, slot in slots.items()},
            "values": {name: value for name, value in arguments.items() if name not in slots},
            "poison": POISON.get(),
            "new_case": self._new_case,
            "live": sorted(live),
            **self._instance(),
            **_state(self.device),
        }
        self._new_case = False
        most = wire.allowed(sum(prod(slot.shape) * wire.SIZES[slot.dtype] for slot in slots.values()))
        answer = self._timed(worker, "call", most=most, names=names, **request)
        worker.arena.read(slots, arguments)
        evaluated = module_calls.evaluated()
        if answer.notes.evaluated and evaluated is not None:
            evaluated.append(None)
        outputs = {names[code]: _tensor(raw, self.device) for code, raw in answer.outputs.items()}
        for name, tensor in outputs.items():
            if tensor is not None:
                self._calls[tensor] = worker.number, name
        return _called(answer.notes, outputs, names, autograd=self.kernel.autograd)

    def _start_worker(self) -> Worker:
        """Start a worker, and return it once it has loaded the kernel."""
        function = self._loaded.run
        assert isinstance(function, RemoteFunction), "loading makes it"
        self._worker = Worker(self._loaded.name, self._loaded.bind, self.device)
        self._lacking = self._worker.lacking
        load(self._worker, function.request)
        return self._worker

    def _timed(self, worker: Worker, what: str, **request: Any) -> wire.Answer:
        """Return the answer to a request; its time is taken off what is left for this case."""
        started = time.monotonic()
        try:
            return worker.ask(what, self._left, **request)
        finally:
            self._left = max(self._left - (time.monotonic() - started), 0.0)

    def _instance(self) -> dict[str, int | None]:
        """Return the number of the module that serves the call, None for a new one, and the turn of its parameters."""
        current = module_calls.current()
        if current is None:
            return {"instance": None, "turn": 0}
        for number, instance in enumerate(self._instances):
            if instance is current:
                return {"instance": number, "turn": current.turn}
        self._instances.append(current)
        return {"instance": len(self._instances) - 1, "turn": current.turn}

    def _later(self, returned: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return these tensors of one call: outputs as they are now in the kernel's process, others as given."""
        calls = {self._calls[tensor][0] for tensor in returned.values() if tensor in self._calls}
        if self._worker is None or not calls:
            return returned
        names = list(returned)
        most = sum(tensor.nbytes for tensor in returned.values())
        (call,) = calls
        answer = self._timed(self._worker, "again", most=most, names=names, call=call, outputs=names)
        now = {names[code]: _tensor(raw, self.device) for code, raw in answer.outputs.items()}
        return {name: now[name] if _same_form(now.get(name), tensor) else tensor for name, tensor in returned.items()}


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A function in another process: its number there, its operator, the names of its arguments.

    `request` is the request to load its kernel. It cannot be called: `Untrusted` replaces it by a `Proxy`.
    """

    number: int
    op: str
    takes: tuple[str, ...]
    request: Mapping[str, Any]

    def __call__(self, **given: Any) -> Any:
        """Raise RuntimeError: `Untrusted` puts a proxy in its place."""
        raise RuntimeError("an untrusted kernel runs in another process alone")

    def later(self, returned: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raise the same error: there are no tensors yet."""
        return self()  # type: ignore[no-any-return]


class Proxy:
    """Calls a function of a worker, by the operator's names of its arguments."""

    def __init__(self, runner: Untrusted, function: Any) -> None:
        self._runner, self._function = runner, function
        keyword = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature([inspect.Parameter(name, keyword) for name in function.takes])

    def __call__(self, **arguments: Any) -> Called:
        """Return what the call gave."""
        return self._runner.call_worker(self._function.number, self._function.op, arguments)


def _state(device: str) -> dict[str, Any]:
    """Return the state of torch in which a call is made, which the worker takes over."""
    kind = torch.device(device).type
    on = torch.is_autocast_enabled(kind)
    return {
        "inference": torch.is_inference_mode_enabled(),
        "grad": torch.is_grad_enabled(),
        "autocast": {kind: str(torch.get_autocast_dtype(kind)).removeprefix("torch.")} if on else {},
        "evaluating": module_calls.evaluated() is not None,
    }


def _tensor(raw: wire.Raw | None, device: str) -> torch.Tensor | None:
    if raw is None:
        return None
    dtype = getattr(torch, raw.dtype)
    flat = torch.frombuffer(raw.data, dtype=dtype) if raw.data else torch.empty(0, dtype=dtype)
    return flat.reshape(raw.shape).to(device)


def _same_form(one: torch.Tensor | None, two: torch.Tensor) -> bool:
    """Return whether two tensors have one type and shape; False if the first is None."""
    return one is not None and one.dtype == two.dtype and one.shape == two.shape


def _called(notes: wire.Notes, outputs: dict[str, Any], names: Sequence[str], *, autograd: bool) -> Called:
    """Return a call from a worker's notes; only where torch's autograd makes the gradients, a refusal counts as one."""
    damage = [
        Damage(visible(buffer), where, count, nearest, output if output in names else None)
        for buffer, where, count, nearest, output in notes.damage
        if where in SIDES
    ]
    lists: dict[str, Any] = {
        name: tuple(map(visible, getattr(notes, name))) for name in ("effects", "differs_on_gpu", "beyond", "operators")
    }
    return Called(
        outputs,
        problem=None if notes.problem is None else visible(notes.problem),
        refused=notes.refused and autograd,
        limits=tuple(kind for kind in notes.limits if kind in (*refusals.KINDS, refusals.ANY)),
        damage=tuple(damage),
        overlaps=tuple((one, visible(other)) for one, other in notes.overlaps if one in names),
        **lists,
    )
