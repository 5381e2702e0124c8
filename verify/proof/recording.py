"""Records the launches of a call without a GPU, and compiles each kernel to TTIR.

This module runs in a process of its own (`record`), in which Triton was never imported with its interpreter. Tensors
are torch's fake ones on a device "cuda" that does not exist: they have shapes, strides and storages, but no data. The
device is that of `device`, `JITFunction.run` notes the launch instead of making it, and Triton's own
compiler is stopped after the stage "ttir".
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from verify_norm.core.errors import UsageError, first_line
from verify_norm.proof.device import Driver, pretend

ZEROED = ("zeros", "zeros_like", "new_zeros", "zero_")  # torch's operators that write zeros
UNTOUCHED = (  # operators that write nothing: they allocate, or return a view of the same memory
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh"),
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "t", "transpose", "permute", "slice", "select", "expand"),
    *("device", "unsqueeze", "squeeze", "flatten", "unflatten", "split", "unbind", "view_as", "expand_as"),
    "is_same_size",
)


def record(requests: Sequence[Mapping[str, Any]], seconds: float = 300.0) -> list[dict[str, Any]]:
    """Return the recorded calls of each request, made in a process of its own; raises UsageError if that is impossible.

    A request has `kernel`, `op`, `bind`, `scalars` (eps, …), `dtype`, and `calls`: for each the shapes of the inputs.
    An answer has `calls` (inputs, outputs, buffers and events, in order), `kernels` (TTIR and source by its hash), or
    an `error`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", "from verify_norm.proof.recording import main; main()"]
    try:
        process = subprocess.run(
            command, input=json.dumps(list(requests)), text=True, capture_output=True, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"recording the launches takes longer than {seconds:g} s") from error
    answer = process.stdout.rpartition("\n")[2]
    if process.returncode or not answer.startswith("["):
        lines = process.stderr.strip().splitlines() or ["no answer"]
        why = next((line.strip() for line in lines if "what():" in line), lines[-1])  # of an exception in C++
        hint = ""
        if "linked with" in why:
            hint = "; autograd needs a device: name a function that launches the kernels"
        raise UsageError(f"the launches cannot be recorded: {why.removeprefix('what():').strip()}{hint}")
    calls: list[dict[str, Any]] = json.loads(answer)
    return calls


def main() -> None:
    """Answer the requests on standard input, as one last line of JSON on standard output."""
    requests = json.loads(sys.stdin.read())
    pretend(_note, _address)
    answers = []
    for request in requests:
        try:
            answers.append(_answer(request))
        except UsageError as error:
            answers.append({"error": str(error), "usage": True})
        except Exception as error:  # the kernel's own, on tensors without data
            answers.append({"error": f"{type(error).__name__}: {first_line(error)}"})
    print("\n" + json.dumps(answers), end="")


def _address(tensor: Any) -> int:
    """Return an address for a tensor without data: its storage begins at a page of its own."""
    begin = 4096 * (1 + _calls.place(tensor)["buffer"])
    return int(begin + tensor.storage_offset() * tensor.element_size())


class _Calls:
    """What is recorded of the call that runs: events in order, storages by identity, kernels by the hash of TTIR."""

    events: list[dict[str, Any]]
    storages: dict[int, tuple[int, Any]]
    kernels: dict[str, dict[str, Any]]
    compiled: dict[str, str]

    def begin(self) -> None:
        """Forget the call before."""
        self.events, self.storages = [], {}

    def place(self, tensor: Any) -> dict[str, Any]:
        """Return a tensor as JSON: its storage, where it begins, shape, strides and type."""
        storage = tensor.untyped_storage()
        number, _ = self.storages.setdefault(storage._cdata, (len(self.storages), storage))  # held: not reused
        shape = {"shape": list(tensor.shape), "strides": list(tensor.stride())}
        return {
            "buffer": number,
            "bytes": storage.nbytes(),
            "offset": tensor.storage_offset(),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            **shape,
        }


_calls = _Calls()
_calls.kernels, _calls.compiled = {}, {}


def _note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Note a launch, in the place of `JITFunction.run`."""
    import torch

    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)
    kwargs |= {"debug": False, "instrumentation_mode": ""}
    _, _, _, backend, binder = self.device_caches[0]
    bound, specialization, options = binder(*args, **kwargs)
    options, signature, constants, attributes = self._pack_args(backend, kwargs, bound, specialization, options)
    key = hashlib.sha256(f"{self.cache_key}{signature}{constants}{attributes}{options}".encode()).hexdigest()
    if key not in _calls.compiled:
        text = _ttir(self, signature, constants, attributes, options, backend)
        _calls.compiled[key] = digest = hashlib.sha256(text.encode()).hexdigest()
        source = self.cache_key  # of all that it calls
        _calls.kernels[digest] = {"name": self.__name__, "ttir": text, "source": source}
    grid = grid(dict(bound)) if callable(grid) else grid
    sizes = [int(size) for size in grid] + [1] * (3 - len(grid))
    values: list[Any] = []

    def flatten(kind: Any, value: Any) -> None:
        if isinstance(kind, (tuple, list)):
            for one, inner in zip(kind, value, strict=True):
                flatten(one, inner)
        elif kind != "constexpr":
            values.append(_calls.place(value) if isinstance(value, torch.Tensor) else value)

    for kind, value in zip(signature.values(), bound.values(), strict=True):
        flatten(kind, value)
    _calls.events.append(
        {
            "launch": _calls.compiled[key],
            "grid": sizes,
            "arguments": values,
            "warps": options.num_warps,
            "early": bool(getattr(options, "launch_pdl", False)),
        }
    )


def _ttir(function: Any, signature: Any, constants: Any, attributes: Any, options: Any, backend: Any) -> str:
    """Return the TTIR of a kernel, with source lines, after the passes of that stage."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import ASTSource

    source = ASTSource(function, signature, constants, attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    target = Driver().get_current_target()
    implementation = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, implementation, backend.get_module_map(), context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](module, {}))


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded calls of one request."""
    import inspect

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from verify_norm.core.ops import OPS
    from verify_norm.loading.registry import load
    from verify_norm.loading.returned import by_name

    kernel = load(request["kernel"], request["op"], request["bind"])
    assert kernel.run is not None
    parameters = inspect.signature(kernel.run).parameters
    answer: dict[str, Any] = {"calls": []}
    used: set[str] = set()
    for shapes in request["calls"]:
        _calls.begin()
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            arguments: dict[str, Any] = dict(request["scalars"])
            for name, (shape, dtype) in shapes.items():
                arguments[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
            inputs = {name: _calls.place(value) for name, value in arguments.items() if isinstance(value, torch.Tensor)}
            with _noting_torch():
                returned = by_name(kernel.run(**{name: arguments.get(name) for name in parameters}), OPS[kernel.op])
            if isinstance(returned, str):
                raise UsageError(f"{kernel.name}: {returned}")
            outputs = {name: _calls.place(value) for name, value in returned.items() if isinstance(value, torch.Tensor)}
        used |= {event["launch"] for event in _calls.events if "launch" in event}
        answer["calls"].append({"inputs": inputs, "outputs": outputs, "events": _calls.events})
    answer["kernels"] = {digest: _calls.kernels[digest] for digest in used}
    return answer


def _noting_torch() -> Any:
    """Return a mode that notes what torch's own operators write."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            schema = function._schema
            name, values = schema.name.partition("::")[2], dict(kwargs or {})
            values |= {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
            if name in ZEROED and _whole(result):
                _calls.events.append({"zeros": _calls.place(result)})
            elif name not in UNTOUCHED:
                written = [values.get(argument.name) for argument in schema.arguments if _is_written(argument)]
                tensors = [leaf for leaf in tree_leaves((written, result)) if isinstance(leaf, torch.Tensor)]
                _calls.events.append({"torch": name, "writes": [_calls.place(tensor) for tensor in tensors]})
            return result

    def _is_written(argument: Any) -> bool:
        return argument.alias_info is not None and argument.alias_info.is_write

    def _whole(tensor: Any) -> bool:
        return bool(tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes())

    return Noting()  # type: ignore[no-untyped-call]
