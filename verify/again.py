"""Further runs of a kernel near a run: the same case once more, or with other values, rows or poison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm import cases, ops
from verify_norm.dtypes import FORMATS, Array
from verify_norm.execute import execute
from verify_norm.spec import Case, CaseSpec, Output, Run
from verify_norm.stages import cotangent, stages

ELEMENTS = {"cpu": 2**12, "cuda": 2**19}  # of x: Triton's interpreter takes 5 ms a program
CROWDED = {"cuda": 2**23}  # the interpreter runs one program after another


@dataclass(frozen=True, slots=True)
class Difference:
    """An output in which two runs of one case differ: the worst element, how many there are, and both in words."""

    output: str | None  # None: one of the two runs has failed
    said: str
    index: tuple[int, ...] | None = None
    count: int = 0


def device_of(case: Case) -> str:
    """Where the case's tensors are."""
    return next(str(value.device) for value in case.arguments.values() if hasattr(value, "device"))


def cheap(run: Run) -> bool:
    """Whether x is so small that a few more runs cost little."""
    return prod(run.case.spec.shape) <= ELEMENTS[torch.device(device_of(run.case)).type]


def crowded(run: Run) -> bool:
    """Whether x is larger than that, but not so large that its truth takes longer than several runs of the kernel."""
    most = CROWDED.get(torch.device(device_of(run.case)).type, 0)
    return not cheap(run) and prod(run.case.spec.shape) <= most


def again(
    run: Run,
    exact: Mapping[str, Array | None] | None = None,
    *,
    spec: CaseSpec | None = None,
    poison: float | None = None,
    within: Callable[[Case], AbstractContextManager[None]] | None = None,
) -> Run:
    """Run the kernel once more, from fresh buffers; with other values, on another shape or in other poison if given.

    `exact` holds what differs from the run's inputs, and has to fit `spec` and be exact in its formats. Nothing is
    judged against the truth: the outputs hold their values alone. `within` makes of a case what to run it within.
    """
    case = run.case
    values = {**case.exact, **(exact or {})}
    poison = case.poison if poison is None else poison
    built = cases.build(spec or case.spec, case.op, run.kernel.contract, device_of(case), values, poison=poison)
    return execute(run.kernel, built, within(built) if within else None)


def differences(first: Run, second: Run, names: tuple[str, str]) -> Iterator[Difference]:
    """Where two runs of one case differ in bits, or by more than a contract without determinism allows.

    `names` says what is to be called what, in the words of a finding. NaN is like NaN, and 0 is not like −0.

    Notes
    -----
    Where the contract is not deterministic, sums over rows may be added up in another order. Each order errs by at most
    γ(h)·Σ|t| (`reference.rounding`), so two of them are at most twice that apart, and one ulp more once each is rounded
    to the output's type. The terms are the kernel's own, dy·x̂′ or dy, the same in both: |x̂′| ≤ |x̂| + δx̂.
    """
    if second.problem is not None:
        yield Difference(None, f"{names[1]} it fails: {second.problem}")
        return
    for output in (tensor.name for tensor in first.case.op.outputs):
        one, two = first.outputs.get(output), second.outputs.get(output)
        if one is None or two is None or (one.shape, one.dtype) != (two.shape, two.dtype):
            if (one is None) != (two is None) or (one is not None and two is not None):
                yield Difference(output, f"{output} is {_form(one)} {names[0]} and {_form(two)} {names[1]}")
            continue
        a, b = one.got.ravel(), two.got.ravel()
        allowed = _reordering(first, output, one.dtype, a, b)
        with np.errstate(invalid="ignore"):
            off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        off = np.where(np.isnan(off), np.inf, off)
        wrong = off > allowed if allowed is not None else (off > 0) | (np.signbit(a) != np.signbit(b)) & ~np.isnan(a)
        if not wrong.any():
            continue
        worst = int(np.argmax(np.where(wrong, off, -1.0)))
        index = tuple(int(i) for i in np.unravel_index(worst, one.shape))
        place = f"{output}[{', '.join(map(str, index))}]"
        beyond = "" if allowed is None else f", where another order of the sum explains {allowed[worst]:.3g}"
        count = int(wrong.sum())
        yield Difference(
            output,
            f"{place} is {a[worst]:.9g} {names[0]} and {b[worst]:.9g} {names[1]}, {off[worst]:.3g} apart{beyond}; "
            f"{count} of {a.size} elements differ",
            index,
            count,
        )


def _form(output: Output | None) -> str:
    return "not there" if output is None else f"{output.dtype} {output.shape}"


def _reordering(run: Run, output: str, dtype: str, a: Array, b: Array) -> Array | None:
    """How far apart the elements of two runs may be; None where they are to be equal."""
    case, contract = run.case, run.kernel.contract
    if contract.deterministic or output not in ("dweight", "dbias"):
        return None
    arithmetic = ops.arithmetic(contract, case.spec.dtype)
    dy = case.exact["dy"]
    assert dy is not None
    with np.errstate(all="ignore"):
        largest: Any = 1.0
        if case.op.activation is not None:
            s = stages(run)
            dz, lost = cotangent(s, dy)
            dy, largest = (np.abs(dz) + lost).reshape(dy.shape), s.largest.reshape(dy.shape)
        elif output == "dweight":
            largest = _largest_xhat(run)
        terms = np.abs(dy) * (largest if output == "dweight" else 1.0)
        total = terms.reshape(-1, a.size).sum(0) if case.op.view == "rows" else _channels(terms)
        count = dy.size // max(a.size, 1)
        lost = arithmetic.gamma(arithmetic.terms(count, products=output == "dweight")) + count * arithmetic.partials_u
        allowed = 2 * (lost * total + count * (2 * arithmetic.tiny + arithmetic.narrow_tiny))
        form = FORMATS[dtype]
        # an infinity is like a number that a rounding of something within reach makes infinite
        reached = np.where(np.isinf(b), form.round(a + np.copysign(allowed, b)) == b, False) | np.where(
            np.isinf(a), form.round(b + np.copysign(allowed, a)) == a, False
        )
        allowed = allowed + form.ulp(np.fmax(np.abs(a), np.abs(b)))
    return np.where(reached | ~np.isfinite(total) | ~(total < arithmetic.huge), np.inf, allowed)


def _channels(values: Array) -> Array:
    return np.asarray(values.reshape(*values.shape[:2], -1).sum((0, 2)))


def _largest_xhat(run: Run) -> Any:
    """|x̂| + δx̂: what the forward without weight and bias gives, and how far that may be off."""
    case = run.case
    forward = ops.OPS[str(case.op.forward)]
    summed = case.exact.get("residual_out")
    offered = {**case.exact, **cases.attributes(case.spec, forward), "weight": None, "bias": None, "rounded": None}
    if summed is not None:
        offered |= {"x": summed, "residual": np.zeros_like(summed)}
    offered["arithmetic"] = ops.arithmetic(run.kernel.contract, case.spec.dtype)
    return np.abs(cases.call(forward.reference, offered).y) + cases.call(forward.error, offered).y
