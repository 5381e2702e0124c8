"""What the policies share: samples, a kernel or eager torch applied to them, a verdict.

A forward is judged by its outputs. A backward becomes the backward of a torch.autograd.Function whose forward is eager
torch, with mean and rstd computed in float32: autograd then converts its gradients and refuses a wrong shape.
Guard zones surround the tensors, which some wrong kernels overrun; no policy reads them, as no published test does.
torch.empty returns memory filled with STALE, like memory that an earlier test has used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from verify_norm.cases import make
from verify_norm.core.errors import first_line, one_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.loading.returned import RefusedError, named
from verify_norm.running import calling, guards, refusals
from verify_norm.validation.policies import eager
from verify_norm.validation.policies.eager import Eager, Inputs

STALE = 1.0
LIMIT = 240.0  # seconds, after which no further sample starts: far more than all samples take on a loaded machine
JUDGED = ("y", "residual_out", "running_mean", "running_var")
LEAVES = ("x", "residual", "gate", "weight", "bias", "scale", "shift")


class NotApplicableError(Exception):
    """The policy does not apply to the kernel; the message is the reason."""


class KernelFailedError(Exception):
    """The kernel fails the test before any value is compared: it raises, or an output is missing or misshapen."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a policy detects the kernel as wrong (None: not applicable), why, after how many cases and seconds."""

    caught: bool | None
    detail: str
    cases: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The inputs of one test: arguments of the forward, and cotangents of y and of a fused addition's sum.

    `variant` selects one of several references or losses, where a policy has several.
    """

    spec: CaseSpec
    inputs: Inputs
    cotangents: Mapping[str, Tensor]
    variant: str = ""

    def __str__(self) -> str:
        weight = f"weight {self.spec.weight_dtype}" if self.spec.weight_dtype else ""
        return " ".join(filter(None, ("x".join(map(str, self.spec.shape)), self.spec.dtype, weight, self.variant)))

    def to(self, device: str) -> Sample:
        """Return the same sample with all tensors on the device."""
        inputs = {name: None if t is None else t.to(device) for name, t in self.inputs.items()}
        return replace(self, inputs=inputs, cotangents={name: t.to(device) for name, t in self.cotangents.items()})


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel under a policy, and the device. `few` asks for few rows on a CPU: the kernel runs one program a row."""

    kernel: Kernel
    device: str = "cpu"
    few: bool = False

    def unsupported(self, spec: CaseSpec) -> str | None:
        """Return why the kernel does not take the case. A limit for the interpreter's sake (`few`) is no reason."""
        return None if self.few else self.kernel.refuses(spec)


@dataclass(frozen=True, slots=True)
class Policy:
    """A published way of testing a kernel."""

    name: str
    summary: str  # one line
    source: str  # project, file and commit, and what exactly is emulated
    samples: Callable[[Subject], Iterable[Sample]]  # the test's own cases; raises NotApplicableError
    test: Callable[[Kernel, Sample], str | None]  # what is wrong in one case, or None; raises KernelFailedError

    def judge(self, kernel: Kernel, *, device: str = "cpu", few: bool = False) -> Verdict:
        """Run the policy's tests on the kernel, up to the first that fails; `few` as Subject has it."""
        started, count, left, note = time.perf_counter(), 0, "", ""
        subject = Subject(registry.ready(kernel) if kernel.run is None else kernel, device, few)

        def verdict(caught: bool | None, detail: str) -> Verdict:
            return Verdict(caught, detail, count, time.perf_counter() - started)

        try:
            for sample in self.samples(subject):
                if (reason := subject.unsupported(sample.spec)) is not None:
                    left = f"; skipped cases that it does not take ({reason})"
                    continue
                if time.perf_counter() - started > LIMIT:
                    note = f"; stopped after {LIMIT:.0f} s"
                    break
                count += 1
                try:
                    wrong = self.test(subject.kernel, sample)
                except KernelFailedError as failure:
                    wrong = str(failure)
                if wrong is not None:
                    return verdict(True, f"{wrong}, at {sample}, case {count}")
        except NotApplicableError as reason:
            return verdict(None, f"not applicable: {reason}")
        if not count:
            return verdict(None, f"not applicable: it takes none of the cases{left}")
        return verdict(False, f"passes {count} case{'s' * (count > 1)}{left}{note}")


Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], tuple[list[Tensor], list[Tensor]]]


def linear(outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs that have a cotangent, and their cotangents."""
    return [outputs[name] for name in cotangents], list(cotangents.values())


def normal(seed: int) -> Callable[[tuple[int, ...], str], Tensor]:
    """Return a function for normal tensors of a shape, drawn in float32 on the CPU and rounded to a type."""
    random = torch.Generator().manual_seed(seed)
    return lambda shape, dtype: torch.randn(shape, generator=random).to(getattr(torch, dtype))


def both(
    kernel: Kernel, sample: Sample, reference: Eager, *, kernel_first: bool, shared: bool = False
) -> list[tuple[str, Tensor, Tensor]]:
    """Return (name, the kernel's result, the reference's) for every output or gradient; raises KernelFailedError.

    Both get the same cotangents, which a kernel that runs first may overwrite; with `shared` the same inputs too.
    """
    order = (True, False) if kernel_first else (False, True)
    made = {own: outcome(kernel, sample, reference, own=own, shared=shared) for own in order}
    return [(name, present(name, made[True].get(name)), want) for name, want in made[False].items() if want is not None]


def present(name: str, got: Tensor | None) -> Tensor:
    """Return `got`; raises KernelFailedError where it is None."""
    if got is None:
        raise KernelFailedError(f"{name}: expected a tensor, got None")
    return got


def outcome(
    kernel: Kernel, sample: Sample, reference: Eager, *, own: bool, shared: bool = False, loss: Loss = linear
) -> dict[str, Tensor | None]:
    """Return the outputs of a forward, or the gradients of a backward: the kernel's (`own`), or the reference's."""
    copies = {name: t if t is None else t.detach() if shared else t.clone() for name, t in sample.inputs.items()}
    op = OPS[kernel.op]
    if op.forward is None:
        made = call(kernel, sample.spec, copies) if own else reference(sample.spec, copies)
        return {tensor.name: made.get(tensor.name) for tensor in op.outputs if tensor.name in JUDGED}
    leaves = {name: t.requires_grad_() for name in LEAVES if (t := copies.get(name)) is not None}
    outputs = differentiated(kernel, sample.spec, reference, copies) if own else reference(sample.spec, copies)
    tensors, cotangents = loss(outputs, sample.cotangents)
    try:
        torch.autograd.backward(tensors, cotangents)
    except RuntimeError as error:
        if not own:
            raise
        raise KernelFailedError(f"torch refuses the gradients: {first_line(error)}") from error
    return {f"d{name}": leaf.grad for name, leaf in leaves.items()}


def differentiated(kernel: Kernel, spec: CaseSpec, reference: Eager, inputs: Inputs) -> dict[str, Tensor]:
    """Return the reference's outputs; their gradients are the kernel's."""
    names = ("y", "residual_out") if "residual" in inputs else ("y",)
    made = _Differentiated.apply(kernel, spec, reference, tuple(inputs), *inputs.values())  # type: ignore[no-untyped-call]
    return dict(zip(names, made, strict=True))


class _Differentiated(torch.autograd.Function):
    """The forward of eager torch with the backward of the kernel."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, spec: CaseSpec, reference: Eager, names: tuple[str, ...], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        inputs = dict(zip(names, tensors, strict=True))
        kept = {name: t if t is None or name in LEAVES else t.clone() for name, t in inputs.items()}
        outputs = reference(spec, inputs)
        mean, rstd = eager.statistics(OPS[kernel.op], spec, {**kept, "x": outputs.get("residual_out", kept["x"])})
        kept |= {"mean": mean, "rstd": rstd, "like": torch.empty_like(outputs["y"])}
        ctx.set_materialize_grads(False)
        ctx.about = kernel, spec, names, kept
        if "residual_out" not in outputs:
            return (outputs["y"],)
        kept["residual_out"] = outputs["residual_out"].clone()
        return outputs["y"], outputs["residual_out"]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        kernel, spec, names, kept = ctx.about
        dy, dresidual = (*cotangents, None)[:2]
        dy = torch.zeros_like(kept["like"]) if dy is None else dy
        made = call(kernel, spec, {**kept, "dy": dy, "dresidual_out": dresidual})
        made.setdefault("dresidual", made.get("dx"))  # a sum passes its gradient to both
        return (*[None] * 4, *(made.get(f"d{name}") if name in LEAVES else None for name in names))


def call(kernel: Kernel, spec: CaseSpec, offered: Inputs) -> dict[str, Tensor | None]:
    """Return the kernel's outputs by name, and the states it updates in place; raises KernelFailedError."""
    op = OPS[kernel.op]
    arguments = {tensor.name: offered.get(tensor.name) for tensor in op.inputs} | make.attributes(spec, op)
    assert kernel.run is not None
    try:
        with guards.PoisonEmpty(STALE), catch_warnings():
            simplefilter("ignore")
            returned = kernel.run(**calling.bound(kernel, Case(spec, op, arguments, {}, {})))
    except RefusedError as refusal:
        raise NotApplicableError(str(refusal)) from refusal
    except Exception as error:
        message = one_line(error)
        on_cpu = all(t.is_cpu for t in offered.values() if t is not None)
        if on_cpu and refusals.NEEDS_GPU.search(message):
            raise NotApplicableError(f"it does not take CPU tensors ({message})") from error
        raise KernelFailedError(f"raised {message}") from error
    made = named(returned, op)
    if isinstance(made, str):
        raise KernelFailedError(made)
    return made | {tensor.name: offered.get(tensor.name) for tensor in op.inputs if tensor.role == "state"}


def difference(name: str, got: Tensor, want: Tensor) -> str:
    """Return a sentence on how a result differs: in shape, type, finiteness, or by its largest error."""
    if got.shape != want.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"{name} is {got.dtype}, expected {want.dtype}"
    if not torch.isfinite(got).all():
        return f"{name} has elements that are not finite"
    return f"{name} is up to {float((got.double() - want.double()).abs().max()):.3g} off"


def first_apart(pairs: Iterable[tuple[str, Tensor, Tensor]], atol: float, rtol: float) -> str | None:
    """Return how the first pair differs that torch.allclose refuses, or whose types or shapes differ; None if none."""
    for name, got, want in pairs:
        if got.dtype != want.dtype or got.shape != want.shape or not torch.allclose(got, want, atol=atol, rtol=rtol):
            return difference(name, got, want)
    return None
