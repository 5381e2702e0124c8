"""The process of an untrusted kernel: it enters a sandbox, loads the kernel, and serves calls until its socket closes.

Once the kernel is imported, it controls this process. So the judge believes nothing that is said here. It takes the
outputs, and compares them with a truth that this process has never seen.
"""

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NoReturn

import torch
import torch._dynamo

from verify_norm.cases import contents
from verify_norm.core.errors import UsageError, one_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Called, Case
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import module_calls, nested, registry
from verify_norm.loading.domain import Domain
from verify_norm.loading.targets import reach
from verify_norm.running import calling, in_use
from verify_norm.running.interpreter import patch
from verify_norm.running.surroundings import quiet
from verify_norm.running.untrusted import sandbox, wire
from verify_norm.running.untrusted.arena import Arena, Slot

if os.environ.get("TRITON_INTERPRET") == "1":  # in the process that all workers are forked from
    patch.enable()

LONGEST, MOST = 500, 60  # characters of a text, texts of a list: below the limits of `wire`


def main(control: int, memory: int) -> NoReturn:
    """Serve the judge on this socket, with the arguments in this file; never return."""
    status = 1
    try:
        serve(socket.socket(fileno=control), Arena(memory))
        status = 0
    finally:
        os._exit(status)


def serve(judge: socket.socket, arena: Arena) -> None:
    """Answer requests until there are no more."""
    server = _Server(judge, arena)
    reading = judge.makefile("rb")
    while line := reading.readline():
        server.answer(json.loads(line))


@dataclass
class _Server:
    """What a worker has: its kernels, the modules that serve several calls, and the outputs that the judge still holds.

    `kernels` has for each direction the kernel, and behind it its forward pass as a kernel of its own.
    """

    judge: socket.socket
    arena: Arena
    device: str = "cpu"
    kernels: list[Kernel] = field(default_factory=list)
    instances: dict[int, module_calls.Instance] = field(default_factory=dict)
    held: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def answer(self, request: dict[str, Any]) -> None:
        """Answer one request."""
        try:
            outputs, notes = getattr(self, f"_{request['what']}")(request)
        except Exception as error:  # of this module, or of what the kernel has made of it
            outputs, notes = {}, {"problem": _short(f"the worker failed: {one_line(error)}")}
        raw = {code: None if tensor is None else _raw(tensor) for code, tensor in outputs.items()}
        self.judge.sendall(b"".join(wire.packed(request["number"], raw, notes)))

    def _enter(self, request: dict[str, Any]) -> tuple[dict[int, Any], dict[str, Any]]:
        self.device = request["device"]
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR"), request["own"]))
        os.environ["TRITON_CACHE_DIR"] = os.path.join(request["own"], "triton")
        os.chdir(request["folder"])
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gpu = self.device != "cpu"
        lacking = sandbox.enter(request["folders"], request["own"], request["memory"], gpu=gpu)
        return {}, {"sandbox": tuple(lacking)}

    def _load(self, request: dict[str, Any]) -> tuple[dict[int, Any], dict[str, Any]]:
        """Load the kernel, and say what it takes."""
        where = request["target"].rpartition(":")[0]
        nested.seal(nested.importing(where))
        reach(where)
        try:
            found = registry.load_directions(request["target"], request["op"], request["bind"], request["contract"])
        except UsageError as error:
            return {}, {"problem": _short(str(error))}
        nested.seal(f"the kernel {request['target']} runs")
        described = []
        for kernel in found:
            forward = None
            if kernel.forward_run is not None and OPS[kernel.op].forward:
                forward = replace(kernel, op=str(OPS[kernel.op].forward), run=kernel.forward_run)
            self.kernels += [kernel, forward or kernel]
            described.append(_described(kernel, forward))
        return {}, {"kernels": tuple(described)}

    def _call(self, request: dict[str, Any]) -> tuple[dict[int, Any], dict[str, Any]]:
        """Call a kernel once, as the judge would: with torch's state there, and an instance of a module it names."""
        kernel = self.kernels[request["kernel"]]
        if request["new_case"]:
            self.instances.clear()
            self.held.clear()
        for number in self.held.keys() - set(request["live"]):
            del self.held[number]
        slots = {name: Slot(**{**slot, "shape": tuple(slot["shape"])}) for name, slot in request["slots"].items()}
        given = {name: _placed(self.arena, slot, self.device) for name, slot in slots.items()}
        values = {name: _tuples(value) for name, value in request["values"].items()}
        spec = CaseSpec(shape=(), frozen=values.pop("frozen", ()))
        case = Case(spec, OPS[kernel.op], {**given, **values}, {}, {}, request["poison"] or 0.0)
        evaluated: list[Any] = []
        function = in_use.alone(kernel.run) if request["poison"] is None and kernel.run else kernel.run
        run = _in_state(function, request, evaluated)
        if request["instance"] is not None:
            run = self.instances.setdefault(request["instance"], module_calls.Instance(request["turn"])).serving(run)
        unguarded = nullcontext() if request["poison"] is None else None
        with quiet():
            called = calling.call(replace(kernel, run=run), case, unguarded)
        names = [tensor.name for tensor in OPS[kernel.op].outputs]
        outputs = {names.index(name): tensor for name, tensor in called.outputs.items()}
        self.held[request["number"]] = {
            name: tensor
            for name, tensor in called.outputs.items()
            if tensor is not None and not self.arena.holds(tensor)
        }
        if self.device != "cpu":
            for name, slot in slots.items():
                self.arena.copy(slot, self.arena.tensor(slot), given[name])
        return outputs, {**_call_notes(called), "evaluated": bool(evaluated)}

    def _again(self, request: dict[str, Any]) -> tuple[dict[int, Any], dict[str, Any]]:
        """Return the outputs of an earlier call as they are now."""
        held = self.held.get(request["call"], {})
        return {code: held[name] for code, name in enumerate(request["outputs"]) if name in held}, {}


def _raw(tensor: torch.Tensor) -> wire.Raw:
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1).view(torch.uint8)
    return wire.Raw(contents.dtype_name(tensor), tuple(tensor.shape), bytearray(flat.numpy().data))


def _placed(arena: Arena, slot: Slot, device: str) -> torch.Tensor:
    """Return an argument of the kernel: the tensor in the shared memory, or its copy on a GPU."""
    tensor = arena.tensor(slot)
    if device != "cpu":
        storage = torch.empty(slot.size, dtype=torch.uint8, device=device)
        copy = torch.empty(0, dtype=tensor.dtype, device=device)
        copy.set_(storage.untyped_storage(), slot.offset, slot.shape, slot.stride)
        arena.copy(slot, copy, tensor)
        tensor = copy
    return tensor.requires_grad_() if slot.grad else tensor


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _in_state(function: Any, request: Mapping[str, Any], evaluated: list[Any]) -> Callable[..., Any]:
    """Return the function in the state of torch in which the judge calls it; modules that it evaluates are counted."""

    @wraps(function)
    def run(**given: Any) -> Any:
        with ExitStack() as state:
            if request["inference"]:
                state.enter_context(torch.inference_mode())
            elif request["grad"] != torch.is_grad_enabled():
                state.enter_context(torch.set_grad_enabled(request["grad"]))
            for device, dtype in request["autocast"].items():
                state.enter_context(torch.autocast(device, getattr(torch, dtype)))
            used = state.enter_context(module_calls.evaluating()) if request["evaluating"] else []
            returned = function(**given)
            evaluated.extend(used)
            return returned

    return run


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _call_notes(called: Called) -> dict[str, Any]:
    """Return a call as notes; long texts and lists are cut off."""
    damage = [(_short(d.buffer), d.where, d.count, d.nearest, d.output) for d in called.damage]
    names = ("limits", "effects", "operators", "differs_on_gpu", "beyond")
    texts = {name: getattr(called, name) for name in names}
    return {
        "problem": None if called.problem is None else _short(called.problem),
        "refused": called.refused,
        "overlaps": called.overlaps[:MOST],
        "damage": tuple(damage[:MOST]),
        **{name: tuple(map(_short, words[:MOST])) for name, words in texts.items()},
    }


def _described(kernel: Kernel, forward: Kernel | None) -> wire.Described:
    """Return what the kernel's signature, and that of its forward pass, say of it."""
    domain = getattr(kernel.unsupported, "__self__", None)
    assert isinstance(domain, Domain), "registry binds it"
    plain = {
        name: getattr(domain, name) for name in ("fields", "affine", "ranks", "tied", "unset", "kept", "constants")
    }
    return wire.Described(
        op=kernel.op,
        takes=_names(kernel),
        forward=None if forward is None else _names(forward),
        autograd=kernel.autograd,
        **plain,
    )


def _names(kernel: Kernel) -> tuple[str, ...]:
    """Return the operator's names that a call of the kernel takes."""
    offered = dict.fromkeys((*(t.name for t in OPS[kernel.op].inputs), *OPS[kernel.op].attrs))
    spec = CaseSpec(shape=())
    return tuple(calling.bound(kernel, Case(spec, OPS[kernel.op], offered, {}, {})))
