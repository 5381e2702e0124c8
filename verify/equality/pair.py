"""Runs two kernels on one case, each isolated as in a run, and compares what they return bit for bit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from verify_norm.cases import gpu_memory, make
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.excess import element as named
from verify_norm.core.judge import identical
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op, Tensor
from verify_norm.core.ops import OPS
from verify_norm.core.run import Output
from verify_norm.core.spec import CaseSpec
from verify_norm.core.ulp import distance
from verify_norm.equality.model import Element, Gap
from verify_norm.running.clock import Clock
from verify_norm.running.execute import execute
from verify_norm.running.patience import LostError, Time, types
from verify_norm.running.runners import Runner
from verify_norm.search.examined import NO_ROOM


@dataclass(frozen=True, slots=True)
class Returned:
    """What one call of a kernel returned, as data that crosses processes; or why it `refused`, or its `problem`."""

    outputs: Mapping[str, Output | None] = field(default_factory=dict)
    refused: str = ""
    problem: str = ""
    hung: bool = False


def call(kernel: Kernel, spec: CaseSpec, device: str) -> Returned:
    """Return what the kernel returns on a case, from guarded and poisoned memory; without the truth."""
    op = OPS[kernel.op]
    with gpu_memory.WhereItFits():
        gpu_memory.release(device)
        timed = replace(kernel, run=Clock().around(kernel.run, device))  # an error of the GPU comes inside the call
        ran = execute(timed, make.build(spec, op, kernel.contract, device, make.exact_inputs(spec, op)))
        problem = ran.problem or ""
        return Returned(refused=problem) if ran.refused else Returned(ran.outputs, problem=problem)
    torch.cuda.empty_cache()
    return Returned(refused=NO_ROOM)


def called(runner: Runner, spec: CaseSpec, timeout: float) -> Returned:
    """Return `call` of the runner's kernel; the end of its process, or a hang, is a problem."""
    reason = runner.kernel.refuses(spec)
    if reason is not None:
        return Returned(refused=reason)
    try:
        returned = runner.call(call, Time(timeout, types(spec), _outputs), spec, runner.device)
    except LostError as lost:
        return Returned(problem=f"{lost}{lost.measured}", hung=lost.hung)
    if returned.problem and runner.device != "cpu":
        runner.fresh()  # the kernel may have broken its CUDA context
    return returned


def _outputs(returned: Returned) -> bool:
    """Return whether a call returned something, so that the kernel did not just refuse the case."""
    return bool(returned.outputs)


def gaps(one: Returned, other: Returned, op: Op, names: tuple[str, str] = ("A", "B")) -> Iterator[Gap]:
    """Yield each output that both returned and that differs; or that only one of them returned at all.

    NaN equals NaN of any sign and payload; 0 and −0 differ. An output that one of them never returns is not compared.
    """
    if one.problem or other.problem:
        if not (one.problem and other.problem):
            fails, returns = names if one.problem else names[::-1]
            yield Gap(None, f"{fails} fails where {returns} returns: {one.problem or other.problem}")
        return
    for tensor in op.outputs:
        if tensor.name in one.outputs and tensor.name in other.outputs:
            found = _gap(tensor, one.outputs[tensor.name], other.outputs[tensor.name], names)
            if found is not None:
                yield found


def _gap(tensor: Tensor, one: Output | None, other: Output | None, names: tuple[str, str]) -> Gap | None:
    """Return in what two values of an output differ: the form, or the bits; None if in nothing."""
    if one is None and other is None:
        return None
    if one is None or other is None or one.dtype != other.dtype or not _alike(tensor, one, other):
        forms = [f"{_form(output)} from {name}" for output, name in zip((one, other), names, strict=True)]
        return Gap(tensor.name, f"{tensor.name} is {' and '.join(forms)}")
    a, b = one.got.ravel(), other.got.ravel()
    differ = ~identical(a, b)
    if not differ.any():
        return None
    first, form = int(np.argmax(differ)), FORMATS.get(one.dtype, FORMATS["float64"])
    apart = np.fmax(distance(a, b, form), distance(b, a, form))
    index = tuple(int(i) for i in np.unravel_index(first, one.shape))
    found = Element(index, float(a[first]), float(b[first]), float(apart[first]))
    words = f"{named(tensor.name, index)} is {found.a:.9g} from {names[0]}, {found.b:.9g} from {names[1]}"
    if found.a == found.b:
        words += ": the sign of 0 differs"
    elif np.isfinite(found.apart):
        words += f", {found.apart:.3g} ULP apart"
    zeros = bool((a[differ] == b[differ]).all())
    return Gap(tensor.name, words, found, int(differ.sum()), one.shape, float(apart[differ].max()), zeros)


def _alike(tensor: Tensor, one: Output, other: Output) -> bool:
    """Return whether the shapes are equal; a statistic may have dimensions of 1, as in a run."""
    loose = tensor.extent in ("statistic", "block", "one") and one.got.size == other.got.size
    return loose or one.shape == other.shape


def _form(output: Output | None) -> str:
    return "None" if output is None else f"{output.dtype} of shape {output.shape}"


def judged(gap: Gap, spec: CaseSpec, op: Op, contract: Contract) -> Gap:
    """Return the gap with the errors of both values against the float64 truth, in ulps of the output's type.

    The truth rounds nothing but what is returned, whatever the kernels' contracts; `contract` gives the output's type.
    """
    element = gap.element
    if element is None or gap.output is None:
        return gap
    expected = make.case(spec, op, Contract(output=contract.output)).expected.get(gap.output)
    if expected is None or expected.value.size != gap.size:
        return gap
    want, form = expected.value.reshape(gap.shape)[element.index], FORMATS[expected.dtype]
    a_error, b_error = (float(distance(np.asarray(got), want, form)) for got in (element.a, element.b))
    return replace(gap, element=replace(element, want=float(want), a_error=a_error, b_error=b_error))
