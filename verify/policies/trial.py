"""What other people's tests have in common: inputs, a kernel or eager torch applied to them, a verdict.

A forward is judged by what it returns. A backward is the backward of a torch.autograd.Function whose forward is eager
torch, with mean and rstd of eager float32 operations, so that torch treats its gradients as it treats everybody's: it
casts them to the type of the input, and refuses those of a wrong shape.

Memory between the tensors is guarded, since some kernels of the zoo write beyond their buffers, but the guards are not
looked at: no such test does. What torch.empty returns holds STALE, as memory does that an earlier test has used; none
of these tests sets it, so to be caught by it is a kindness to them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verify_norm import cases, execute, guards, registry
from verify_norm.kernels.zoo import few_rows
from verify_norm.ops import OPS
from verify_norm.policies import eager
from verify_norm.policies.eager import Eager, Inputs
from verify_norm.spec import Case, CaseSpec, Kernel

STALE = 1.0
LIMIT = 240.0  # seconds after which no further case is begun: far more than they take, so that loads decide nothing
JUDGED = ("y", "residual_out", "running_mean", "running_var")
LEAVES = ("x", "residual", "weight", "bias")


class NotApplicableError(Exception):
    """The policy says nothing about the kernel; the message is the reason."""


class ComplaintError(Exception):
    """What fails a test other than a comparison: an exception of the kernel's, a missing or misshapen result."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says: whether it fails the kernel (None: it does not apply), why, and at what cost."""

    caught: bool | None
    detail: str
    cases: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The inputs of one test: those of the forward, and the cotangents of y and, in a fused addition, of the sum.

    `variant` says which of several references is meant, where a policy has several.
    """

    spec: CaseSpec
    inputs: Inputs
    cotangents: Mapping[str, Tensor]
    variant: str = ""

    def __str__(self) -> str:
        s = self.spec
        parts = ["x".join(map(str, s.shape)), s.dtype, *([f"weight {s.weight_dtype}"] if s.weight_dtype else [])]
        return " ".join([*parts, *([self.variant] if self.variant else [])])


@dataclass(frozen=True, slots=True)
class Policy:
    """A published way of testing a kernel.

    Parameters
    ----------
    name, summary : what it is called, and in one line what it does.
    source : project, file and commit, and what exactly is emulated.
    samples : the cases for a kernel on a device, the tests' own; raises NotApplicableError.
    test : one case: what is wrong, None if the test passes; raises ComplaintError.
    """

    name: str
    summary: str
    source: str
    samples: Callable[[Kernel, str], Iterable[Sample]]
    test: Callable[[Kernel, Sample], str | None]

    def judge(self, kernel: Kernel, *, device: str = "cpu") -> Verdict:
        """Run the policy's tests on the kernel, until the first that fails."""
        started, count, left, note = time.perf_counter(), 0, "", ""
        ready = registry.ready(kernel) if kernel.run is None else kernel

        def verdict(caught: bool | None, detail: str) -> Verdict:
            return Verdict(caught, detail, count, time.perf_counter() - started)

        try:
            for sample in self.samples(ready, device):
                if (reason := unsupported(ready, sample.spec)) is not None:
                    left = f"; left out what it does not take ({reason})"
                    continue
                if time.perf_counter() - started > LIMIT:
                    note = f"; stopped there, after {LIMIT:.0f} s"
                    break
                count += 1
                try:
                    wrong = self.test(ready, sample)
                except ComplaintError as complaint:
                    wrong = str(complaint)
                if wrong is not None:
                    return verdict(True, f"{wrong}, at {sample}, case {count}")
        except NotApplicableError as reason:
            return verdict(None, f"not applicable: {reason}")
        if not count:
            return verdict(None, f"not applicable: it takes none of the cases{left}")
        return verdict(False, f"passes {count} case{'s' * (count > 1)}{left}{note}")


def unsupported(kernel: Kernel, spec: CaseSpec) -> str | None:
    """Why the kernel does not take the case. That an interpreter is slow is no such reason."""
    if kernel.unsupported is None or kernel.unsupported is few_rows:
        return None
    return kernel.unsupported(spec)


def family(kernel: Kernel) -> str:
    """The operator without its direction."""
    return kernel.op.removesuffix("_fwd").removesuffix("_bwd")


def backward(kernel: Kernel) -> bool:
    """Whether the kernel is a backward."""
    return OPS[kernel.op].forward is not None


Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], tuple[list[Tensor], list[Tensor]]]


def linear(outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Each output that has a cotangent, with it."""
    return [outputs[name] for name in cotangents], list(cotangents.values())


def both(
    kernel: Kernel, sample: Sample, reference: Eager, *, kernel_first: bool, shared: bool = False, loss: Loss = linear
) -> list[tuple[str, Tensor, Tensor]]:
    """What is to be compared: each output's name, the kernel's and the reference's.

    Both get the same cotangents, so a kernel that overwrites them and comes first spoils the reference; and, where
    `shared`, the same inputs, of which each gets a copy otherwise. Raises ComplaintError.
    """
    made = {own: outcome(kernel, sample, reference, own=own, shared=shared, loss=loss)
            for own in ((True, False) if kernel_first else (False, True))}  # fmt: skip
    return [(name, present(name, made[True].get(name)), want) for name, want in made[False].items() if want is not None]


def present(name: str, got: Tensor | None) -> Tensor:
    """`got`; raises ComplaintError where there is none."""
    if got is None:
        raise ComplaintError(f"{name} is missing")
    return got


def outcome(
    kernel: Kernel, sample: Sample, reference: Eager, *, own: bool, shared: bool = False, loss: Loss = linear
) -> dict[str, Tensor | None]:
    """The outputs, or the gradients, that the kernel makes (`own`), or the reference in its place."""
    copies = {name: t if t is None else t.detach() if shared else t.clone() for name, t in sample.inputs.items()}
    if not backward(kernel):
        made = call(kernel, sample.spec, copies) if own else reference(sample.spec, copies)
        wanted = [tensor.name for tensor in OPS[kernel.op].outputs if tensor.name in JUDGED]
        return {name: made.get(name) for name in wanted}
    leaves = {name: t.requires_grad_() for name in LEAVES if (t := copies.get(name)) is not None}
    outputs = differentiated(kernel, sample.spec, reference, copies) if own else reference(sample.spec, copies)
    tensors, cotangents = loss(outputs, sample.cotangents)
    try:
        torch.autograd.backward(tensors, cotangents)
    except RuntimeError as error:
        if not own:
            raise
        raise ComplaintError(f"torch refuses the gradients: {str(error).splitlines()[0]}") from error
    return {f"d{name}": leaf.grad for name, leaf in leaves.items()}


def differentiated(kernel: Kernel, spec: CaseSpec, reference: Eager, inputs: Inputs) -> dict[str, Tensor]:
    """The reference's outputs, whose gradients are the kernel's."""
    names = ("y", "residual_out") if "residual" in inputs else ("y",)
    made = _Differentiated.apply(kernel, spec, reference, tuple(inputs), *inputs.values())  # type: ignore[no-untyped-call]
    return dict(zip(names, made, strict=True))


class _Differentiated(torch.autograd.Function):
    """A forward of eager torch, a backward of the kernel's."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, spec: CaseSpec, reference: Eager, names: tuple[str, ...],
                *tensors: Tensor | None) -> tuple[Tensor, ...]:  # fmt: skip
        inputs = dict(zip(names, tensors, strict=True))
        kept = {name: t if t is None or name in LEAVES else t.clone() for name, t in inputs.items()}
        outputs = reference(spec, inputs)
        mean, rstd = eager.statistics(OPS[kernel.op], spec, {**kept, "x": outputs.get("residual_out", kept["x"])})
        ctx.set_materialize_grads(False)
        ctx.about = kernel, spec, names, {**kept, "mean": mean, "rstd": rstd, "like": torch.empty_like(outputs["y"])}
        if "residual_out" not in outputs:
            return (outputs["y"],)
        ctx.about[-1]["residual_out"] = outputs["residual_out"].clone()
        return outputs["y"], outputs["residual_out"]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        kernel, spec, names, kept = ctx.about
        dy, dresidual = (*cotangents, None)[:2]
        dy = torch.zeros_like(kept["like"]) if dy is None else dy
        made = call(kernel, spec, {**kept, "dy": dy, "dresidual_out": dresidual})
        made["dresidual"] = made.get("dx")  # a sum passes its gradient to both
        return (*[None] * 4, *(made.get(f"d{name}") if name in LEAVES else None for name in names))


def call(kernel: Kernel, spec: CaseSpec, offered: Inputs) -> dict[str, Tensor | None]:
    """What the kernel returns by name, and what it has changed in place; raises ComplaintError if it raises."""
    op = OPS[kernel.op]
    arguments = {tensor.name: offered.get(tensor.name) for tensor in op.inputs} | cases.attributes(spec, op)
    assert kernel.run is not None
    try:
        with guards.PoisonEmpty(STALE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            returned = kernel.run(**execute.bound(kernel, Case(spec, op, arguments, {}, {})))
    except execute.RefusedError as refusal:
        raise NotApplicableError(str(refusal)) from refusal
    except Exception as error:
        said = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['(no message)'])[0]}"
        on_cpu = all(t.is_cpu for t in offered.values() if t is not None)
        if on_cpu and execute.NEEDS_GPU.search(said):
            raise NotApplicableError(f"it does not take CPU tensors ({said})") from error
        raise ComplaintError(f"raised {said}") from error
    made = execute.named(returned, op)
    if isinstance(made, str):
        raise ComplaintError(made)
    return made | {tensor.name: offered.get(tensor.name) for tensor in op.inputs if tensor.role == "state"}


def apart(name: str, got: Tensor, want: Tensor) -> str:
    """How far off an output is, in words."""
    if got.shape != want.shape:
        return f"{name} has shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"{name} is {got.dtype}, not {want.dtype}"
    if not torch.isfinite(got).all():
        return f"{name} has elements that are not finite"
    return f"{name} is up to {float((got.double() - want.double()).abs().max()):.3g} off"


def place(sample: Sample, device: str) -> Sample:
    """The same on the device."""
    return replace(
        sample,
        inputs={name: None if t is None else t.to(device) for name, t in sample.inputs.items()},
        cotangents={name: t.to(device) for name, t in sample.cotangents.items()},
    )
