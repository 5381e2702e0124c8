"""Checks the gradients of any differentiable torch function, with no reference: `verify-norm gradcheck path.py:fn`.

Inputs come from `verify_norm.gradinputs`. Types: those asked for; else float64 where the function takes it, else
float32, else bfloat16, else float16. Every input meets several directions (`verify_norm.gradient`): random signs, and
single coordinates, the mean and the input itself, which take turns by row where the rows are found to be independent
of each other. `verify_norm.gradhygiene` looks at all that is not a value.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify_norm import gradhygiene, gradnoise, registry
from verify_norm.checks import second
from verify_norm.gradhygiene import Subject
from verify_norm.gradient import Comparison, Forward, compare, difference, step_length
from verify_norm.gradinputs import arguments_of
from verify_norm.gradnoise import DTYPES, Noise
from verify_norm.registry import UsageError
from verify_norm.report.gradcheck import Compared, GradFinding, GradReport

TRIES = 4  # how often a step is made shorter, fourfold each time
KINDS = ("one coordinate", "the mean", "the input itself")


def gradcheck(target: str | Callable[..., Any], *, shapes: str | Mapping[str, Sequence[int]] | None = None,
              dtypes: Sequence[str] = (), seed: int = 0, op: str | None = None) -> GradReport:  # fmt: skip
    """Check the gradients of `target`, a function or where it is found: "path/file.py:fn", "package.module:fn".

    `op`, the operator that it computes, adds its second derivatives and forward mode, held against the reference's.

    Raises UsageError, in one line, where it cannot be checked: it cannot be called with such inputs, returns something
    else than tensors, is not differentiable, is random, or mutates its input.

    >>> report = gradcheck(torch.nn.functional.softplus, shapes="input=3x5")
    >>> report.ok, report.dtypes, report.compared[0].power < 1e-8
    (True, ('float64',), True)
    """
    started = time.perf_counter()
    op = None if op is None else second.operator(op)
    function = registry.attribute(target) if isinstance(target, str) else target
    name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
    arguments, keyword = arguments_of(function, name, shapes, seed)
    points = {n: v.detach().double() for n, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point()}
    if not points:
        raise UsageError(f"{name} got no floating-point tensor to differentiate with respect to")
    for argument, point in points.items():
        if not point.numel():
            size = "×".join(map(str, point.shape))
            raise UsageError(f"{argument} of {name} is empty ({size}), so there is nothing to check; give it elements")
    plain = Subject(name, function, arguments, points, "float64", keyword)
    chosen, notes = (tuple(registry.one_of("dtype", d, DTYPES) for d in dtypes), []) if dtypes else _supported(plain)
    compared: list[Compared] = []
    findings: list[GradFinding] = []
    for dtype in chosen:
        found, accused, said = _one(replace(plain, dtype=dtype), seed)
        compared, findings, notes = compared + found, findings + accused, notes + said
    if op is not None:
        accused, said = _second_order(function, op, seed)
        findings, notes = findings + accused, notes + said
    facts = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    sizes = {n: tuple(p.shape) for n, p in points.items()}
    seconds = time.perf_counter() - started
    return GradReport(name, chosen, sizes, tuple(compared), tuple(findings), tuple(notes), seconds, seed, facts)


def _second_order(function: Callable[..., Any], op: str, seed: int) -> tuple[list[GradFinding], list[str]]:
    """What is wrong with the derivatives of higher order, and in words which of them agree or are not offered."""
    found = second.second_order(function, op, seed=seed)
    wrong = [GradFinding("second order", d.quantity, "", d.message) for d in found if d.outcome == "finding"]
    return wrong, [f"{d.quantity}: {d.outcome}: {d.message}" for d in found if d.outcome != "finding"]


def _supported(subject: Subject) -> tuple[tuple[str, ...], list[str]]:
    """The widest type that the function takes, and why not a wider one."""
    refused: list[str] = []
    for dtype in DTYPES:
        trial = replace(subject, dtype=dtype)
        try:
            with torch.no_grad():
                trial.raw({})
        except Exception as error:
            refused.append(f"not in {dtype}: {type(error).__name__}: {gradhygiene.first_line(error)}")
            continue
        return (dtype,), refused
    raise UsageError(f"{subject.name} cannot be called: {refused[0].removeprefix('not in float64: ')}")


def _one(subject: Subject, seed: int) -> tuple[list[Compared], list[GradFinding], list[str]]:
    """All checks in one type."""
    subject, grids = gradnoise.settled(subject)
    outputs = gradhygiene.validate(subject)
    notes = [
        f"floating-point output {i}, of shape {tuple(y.shape)}, requires no gradient and is left out"
        for i, y in enumerate(outputs)
        if not y.requires_grad
    ]
    subject = replace(subject, outputs=tuple(i for i, y in enumerate(outputs) if y.requires_grad and y.numel()))
    outputs = [outputs[i] for i in subject.outputs or ()]
    notes += [
        f"it takes {subject.dtype} and returns {y.dtype}" for y in outputs if y.dtype != getattr(torch, subject.dtype)
    ]
    inner = gradnoise.inner_type(subject, grids, np.random.Generator(np.random.Philox(key=[seed, 3])))
    if inner:
        notes.append(f"it takes {subject.dtype} and computes in about {inner}, to which it is held")
        subject, grids = gradnoise.settled(replace(subject, inner=inner))
        outputs = gradhygiene.validate(subject)
    rng = np.random.Generator(np.random.Philox(key=[seed, 2]))
    dy = [torch.from_numpy(rng.standard_normal(tuple(y.shape))).to(y.dtype) for y in outputs]
    grads, findings = gradhygiene.watched(subject, dy)
    if not grads:
        return [], findings, notes
    findings += gradhygiene.consistency(subject, dy, grads)
    compared = []
    forward, backward = gradnoise.noise(subject, dy, grids, rng)
    for name, gradient in grads.items():
        about = (name, gradient, (forward, backward[name]), grids[name])
        found = _directions(subject, about, [d.double() for d in dy], rng)
        if gradient is None:
            if any(np.abs(c.left).max(initial=0) > 0 and c.ratio.max() > 1 for c in found):
                message = f"the gradient of {name} is None, and what the function returns depends on {name}"
                findings.append(GradFinding("none", name, subject.dtype, message))
            continue
        compared += [_summary(c, subject.dtype) for c in found]
        findings += _accusation(found, name, subject.dtype)
        if not any(c.judged for c in found):
            notes.append(f"{name}: nothing could be judged: no step is short enough ({subject.dtype})")
    return compared, findings, notes


def _accusation(found: Sequence[Comparison], name: str, dtype: str) -> list[GradFinding]:
    c = max(found, key=lambda c: float(c.ratio.max()))
    if not c.ratio.max() > 1:
        return []
    i, wrong = c.worst, sum(int((c.ratio > 1).sum()) for c in found)
    where = f" in {c.unit} {i}" if c.left.size > 1 else ""
    message = (
        f"the gradient of {name} is wrong{where}: along {c.direction}, ⟨dy, y⟩ changes by {c.left[i]:.8g} and "
        f"⟨gradient, v⟩ is {c.right[i]:.8g}; {abs(c.left[i] - c.right[i]):.2g} apart, {c.tolerance[i]:.2g} allowed; "
        f"{wrong} of {sum(c.judged for c in found)} comparisons are off"
    )
    return [GradFinding("value", name, dtype, message)]


def _summary(c: Comparison, dtype: str) -> Compared:
    finite = [value if np.isfinite(value) else None for value in (c.power, c.local)]
    return Compared(c.output, dtype, c.direction, c.left.size, c.judged, float(c.ratio.max(initial=0.0)), *finite)


def _directions(subject: Subject, about: tuple[str, Tensor | None, tuple[list[Noise], Noise], Tensor], dy: list[Tensor],
                rng: np.random.Generator) -> list[Comparison]:  # fmt: skip
    """Every comparison for one input: `about` is its name, gradient, outputs' and gradient's noise, and its grid."""
    name, gradient, noise, grid = about
    point = subject.points[name]

    others = {other: subject.cast(p) for other, p in subject.points.items() if other != name}

    @torch.no_grad()
    def forward(values: Tensor) -> list[Tensor]:
        return [y.double() for y in subject.call({**others, name: values.to(getattr(torch, subject.dtype))})]

    base = forward(point)
    g = torch.zeros_like(point) if gradient is None else gradient.double()
    scale, said = gradnoise.scale_of(point), subject.arithmetic
    h = step_length(said)
    rows = _independent(forward, point, base, scale * h, grid, rng)
    units = point.shape[0] if rows else 1
    unit = "row" if rows else "tensor"
    least, own = [n.bound(units) for n in noise[0]], noise[1].bound(units)

    def along(v: Tensor, size: float) -> Tensor:
        return torch.round(size * v / grid) * grid

    v = scale * torch.from_numpy(rng.choice((-1.0, 1.0), tuple(point.shape)))
    for _ in range(TRIES):
        step = along(v, h)
        found = difference(forward, point, step, dy, base, units, signs=True, dtype=said, least=least)
        if float(found.truncation.median()) <= float(found.rounding.median()):
            break
        h /= 4
    result = [compare("random signs", name, unit, found, g, own, step, signs=True, dtype=said)]
    for label, w in _structured(point, units, scale, rng):
        step = along(w, h)
        found = difference(forward, point, step, dy, base, units, signs=False, dtype=said, least=least)
        result.append(compare(label, name, unit, found, g, own, step, signs=False, dtype=said))
    return result


def _structured(point: Tensor, units: int, scale: float, rng: np.random.Generator) -> list[tuple[str, Tensor]]:
    """Directions that a random one averages away, taking turns by unit where there are enough of them."""
    flat = point.reshape(units, -1)
    n = flat.shape[1]
    one = torch.zeros_like(flat)
    one[torch.arange(units), torch.from_numpy(rng.integers(0, n, units))] = scale
    centred = flat - flat.mean(1, keepdim=True)
    each = [one, torch.full_like(flat, scale), centred if n > 1 else flat]
    if units < len(KINDS):
        kinds = KINDS if point.dim() > 1 else KINDS[:1]  # of a weight or bias, one is enough
        return [(kind, v.reshape(point.shape)) for kind, v in zip(kinds, each, strict=False)]
    mixed = torch.empty_like(flat)
    for turn, v in enumerate(each):
        mixed[turn :: len(KINDS)] = v[turn :: len(KINDS)]
    return [("one coordinate, the mean, the input itself, by row", mixed.reshape(point.shape))]


def _independent(forward: Forward, point: Tensor, base: list[Tensor], size: float, grid: Tensor,
                 rng: np.random.Generator) -> bool:  # fmt: skip
    """Whether y's rows depend on no other rows of this input: half of them move, and the others' y stays as it was."""
    if point.dim() < 2 or point.shape[0] < 2 or any(y.dim() < 1 or y.shape[0] != point.shape[0] for y in base):
        return False
    rows = point.shape[0]
    for _ in range(2):
        still = torch.from_numpy(rng.permutation(rows) < rows // 2)
        moved = torch.where(
            still.reshape(-1, *(1,) * (point.dim() - 1)), point, point + torch.round(size / grid) * grid
        )
        if not all(torch.equal(a[still], b[still]) for a, b in zip(forward(moved), base, strict=True)):
            return False
    return True
