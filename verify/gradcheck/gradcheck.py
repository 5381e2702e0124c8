"""Checks the gradients of any differentiable torch function, with no reference: `verify-norm gradcheck path.py:fn`.

Types: those asked for; else the widest that the function takes, and of narrower ones the findings. Every input is moved
along several directions (`differences`): random signs; single coordinates, the mean and the input itself, one of these
a row in turn where rows do not depend on each other (`layout`); and the gradient's own signs, along which an error of
the whole adds up. Where the function has corners, `corners` chooses steps that cross none. `hygiene` checks types,
mutation, the layout of dy, frozen inputs, NaN. A gradient of which no direction shows an error as large as itself is
reported as untold.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify_norm.cases.random import generator
from verify_norm.checks.relations.equations import Comparison
from verify_norm.core.case_words import told_apart
from verify_norm.core.errors import UsageError, one_line, one_of
from verify_norm.gradcheck import corners, hygiene, noise, second
from verify_norm.gradcheck.differences import NOISELESS, Claim, Local, step_length
from verify_norm.gradcheck.directions import comparisons, on_grid
from verify_norm.gradcheck.inputs import arguments_of
from verify_norm.gradcheck.layout import layout_of
from verify_norm.gradcheck.noise import DTYPES
from verify_norm.gradcheck.report import Compared, GradFinding, GradReport, Untold
from verify_norm.gradcheck.subject import Subject
from verify_norm.loading import nested, targets

CRAMPED = "{} is so far from 0 that {} cannot represent a step; use data nearer to 0, or a wider type"
NARROW = ("value", "none", "frozen", "signature")  # findings in a type narrower than the widest one
COARSE = "the gradient of {} rounds as in a 16-bit type, by {:.2g} of its largest element: less does not show"
INNER = "it takes {} and computes in about {}, whose tolerance applies"


def gradcheck(
    target: str | Callable[..., Any],
    *,
    shapes: str | Mapping[str, Sequence[int]] | None = None,
    dtypes: Sequence[str] = (),
    seed: int = 0,
    op: str | None = None,
) -> GradReport:
    """Return a report on the gradients of `target`, a function or its name: "path/file.py:fn", "package.module:fn".

    `op`, the operator that it computes, adds its second derivatives and forward mode, compared with the reference's.
    Raises UsageError, in one line, where it cannot be checked: it cannot be called with such inputs, returns something
    else than tensors, is not differentiable, is random, or mutates its input.

    >>> report = gradcheck(torch.nn.functional.softplus, shapes="input=3x5")
    >>> report.ok, report.dtypes, report.compared[0].power < 1e-8
    (True, ('float64',), True)
    """
    nested.refuse()
    started = time.perf_counter()
    op = None if op is None else second.operator(op)
    function = targets.attribute(target) if isinstance(target, str) else target
    name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
    plain = _subject(function, name, shapes, seed)
    chosen, notes = (tuple(one_of("dtype", d, DTYPES) for d in dtypes), []) if dtypes else _widest(plain)
    results = [_check(replace(plain, dtype=dtype), seed) for dtype in chosen]
    if not dtypes and not any(result.findings for result in results):
        results.append(_narrower(plain, DTYPES[DTYPES.index(chosen[0]) + 1 :], seed))
    compared = tuple(c for result in results for c in result.compared)
    untold = tuple(u for result in results for u in result.untold)
    findings = [finding for result in results for finding in result.findings]
    notes += [note for result in results for note in result.notes]
    if op is not None:
        derivatives = second.second_order(function, op, seed=seed)
        wrong = [d for d in derivatives if d.outcome == "finding"]
        findings += [GradFinding("second order", d.quantity, "", d.message) for d in wrong]
        notes += [f"{d.quantity}: {d.outcome}: {d.message}" for d in derivatives if d not in wrong]
    facts = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    sizes = {n: tuple(p.shape) for n, p in plain.points.items()}
    seconds = time.perf_counter() - started
    return GradReport(name, chosen, sizes, compared, tuple(findings), untold, tuple(notes), seconds, seed, facts)


@dataclass(frozen=True, slots=True)
class _Result:
    """The results of all checks in one type."""

    compared: tuple[Compared, ...]
    findings: list[GradFinding]
    notes: list[str]
    untold: tuple[Untold, ...]
    finite: bool = True  # no gradient has NaN or infinity


def _subject(
    function: Callable[..., Any], name: str, shapes: str | Mapping[str, Sequence[int]] | None, seed: int
) -> Subject:
    """Return the function with its arguments; raises UsageError where there is nothing to differentiate."""
    arguments, keyword = arguments_of(function, name, shapes, seed)
    points = {n: v.detach().double() for n, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point()}
    if not points:
        raise UsageError(f"{name} got no floating-point tensor to differentiate with respect to")
    for argument, point in points.items():
        if not point.numel():
            size = "×".join(map(str, point.shape))
            raise UsageError(f"{argument} of {name} is empty ({size}), so there is nothing to check; give it elements")
    return Subject(name, function, arguments, points, "float64", keyword)


def _widest(subject: Subject) -> tuple[tuple[str, ...], list[str]]:
    """Return the widest type that the function takes, and why it refuses the wider ones."""
    refused: list[str] = []
    for dtype in DTYPES:
        try:
            with torch.no_grad():
                replace(subject, dtype=dtype).raw({})
            return (dtype,), refused
        except Exception as error:
            refused.append(f"not in {dtype}: {one_line(error)}")
    raise UsageError(f"{subject.name} cannot be called: {refused[0].removeprefix('not in float64: ')}")


def _narrower(plain: Subject, dtypes: Sequence[str], seed: int) -> _Result:
    """Return the wrong gradients in narrower types, of a function that is right in the widest: a path may be theirs.

    What overflows or rounds away there is no finding.
    """
    findings: list[GradFinding] = []
    right: list[str] = []
    for dtype in dtypes:
        try:
            found = _check(replace(plain, dtype=dtype), seed)
        except Exception:  # it does not take the type, or its values are too large for it
            continue
        if dtype != "float32" and not found.finite:  # the point may have been rounded to a pole
            continue
        wrong = [finding for finding in found.findings if finding.check in NARROW]
        findings += wrong
        right += [] if wrong else [dtype]
    notes = [f"in {', '.join(right)} no gradient is wrong by more than rounding explains"] if right else []
    return _Result((), findings, notes, ())


def _check(subject: Subject, seed: int) -> _Result:
    """Return the results of all checks in one type."""
    subject, outputs, notes = _selected(subject, seed)
    rng = generator(seed, 2)
    dy = [torch.from_numpy(rng.standard_normal(tuple(y.shape))).to(y.dtype) for y in outputs]
    grads, findings = hygiene.watched(subject, dy)
    if not grads:
        return _Result((), findings, notes, ())
    precision = hygiene.precision(subject, dy, grads)
    if inner := noise.inner_by_gradients(subject, precision):
        notes.append(INNER.format(subject.dtype, inner))
        subject = noise.settled(replace(subject, inner=inner))
        grads, findings = hygiene.watched(subject, dy)
        precision = hygiene.precision(subject, dy, grads)
    notes += [COARSE.format(name, off) for name, off in noise.coarse(subject, precision).items()]
    findings += hygiene.consistency(subject, dy, grads, precision)
    infinite = hygiene.finite(subject, grads)
    findings += infinite
    compared: list[Compared] = []
    untold: list[Untold] = []
    weights = [d.double() for d in dy]
    inputs = {name: _local(subject, name, weights, rng) for name in grads}
    for name, near, claim in _noises(subject, inputs, grads, dy, rng):
        if noise.shortest(subject, name) > 1:
            untold.append(Untold(name, subject.dtype, CRAMPED.format(name, subject.arithmetic)))
            continue
        found = comparisons(subject, near, claim, rng, zero=grads[name] is None)
        if grads[name] is None:
            if any(np.abs(c.left).max(initial=0) > 0 and c.ratio.max() > 1 for c in found):
                message = f"the gradient of {name} is None, but the outputs depend on {name}"
                findings.append(GradFinding("none", name, subject.dtype, message))
            continue
        for c in found:
            powers = [value if np.isfinite(value) else None for value in (c.power, c.local)]
            worst = float(c.ratio.max(initial=0.0))
            compared.append(Compared(c.output, subject.dtype, c.name, c.left.size, c.judged, worst, *powers))
        wrong = _finding(found, name, subject.dtype)
        findings += wrong
        reason = "" if wrong else _nothing_told(found)
        if reason:
            untold.append(Untold(name, subject.dtype, reason))
        if near.lengths is not None and (still := int((near.lengths == 0).sum())):
            what = f"{still} of {near.lengths.numel()} elements of {name}"
            notes.append(f"{what} lie at a corner, or where it is too steep, and are left out")
    return _Result(tuple(compared), findings, notes, tuple(untold), finite=not infinite)


def _nothing_told(found: Sequence[Comparison]) -> str:
    """Return why no comparison tells whether a gradient is right; "" if one does."""
    if any(c.power < 1 for c in found):
        return ""
    judged = [c for c in found if c.judged]
    if not judged:
        return "no step is short enough: the function is too steep, or has a corner at this point"
    if all(not c.left[np.isfinite(c.tolerance)].any() and not c.right.any() for c in judged):
        return ""  # the outputs do not move, and the gradient is 0
    least = min(c.power for c in judged)
    shown = (
        f"an error of {least:.1g} times the gradient would not show"
        if np.isfinite(least)
        else "the outputs do not move"
    )
    return f"the rounding of the outputs hides it: {shown}; use a wider type, or fewer elements"


def _selected(subject: Subject, seed: int) -> tuple[Subject, list[Tensor], list[str]]:
    """Return the subject on its grid, held to the type it computes in; its outputs that can be checked; and notes."""
    subject = noise.settled(subject)
    outputs = hygiene.validate(subject)
    notes = [
        f"floating-point output {i}, of shape {tuple(y.shape)}, requires no gradient and is left out"
        for i, y in enumerate(outputs)
        if not y.requires_grad
    ]
    chosen = tuple(i for i, y in enumerate(outputs) if y.requires_grad and y.numel())
    subject, outputs = replace(subject, outputs=chosen), [outputs[i] for i in chosen]
    others = [y.dtype for y in outputs if y.dtype != getattr(torch, subject.dtype)]
    notes += [f"it takes {subject.dtype} and returns {dtype}" for dtype in others]
    inner = noise.inner_type(subject, generator(seed, 3))
    if inner:
        notes.append(INNER.format(subject.dtype, inner))
        subject = noise.settled(replace(subject, inner=inner))
        outputs = hygiene.validate(subject)
    return subject, outputs, notes


def _finding(found: Sequence[Comparison], name: str, dtype: str) -> list[GradFinding]:
    """Return the finding of the worst comparison, if that exceeds its tolerance."""
    c = max(found, key=lambda c: float(c.ratio.max()))
    if not c.ratio.max() > 1:
        return []
    i, wrong = c.worst, sum(int((c.ratio > 1).sum()) for c in found)
    where = f" in {c.unit} {i}" if c.left.size > 1 else ""
    off, most = told_apart(float(abs(c.left[i] - c.right[i])), float(c.tolerance[i]), digits=2)
    message = (
        f"the gradient of {name} is wrong{where}: along {c.name}, ⟨dy, y⟩ changes by {c.left[i]:.8g} and "
        f"⟨gradient, v⟩ is {c.right[i]:.8g}; {off} apart, {most} allowed; "
        f"{wrong} of {sum(c.judged for c in found)} comparisons are off"
    )
    return [GradFinding("value", name, dtype, message)]


def _local(subject: Subject, name: str, dy: list[Tensor], rng: np.random.Generator) -> Local:
    """Return the function of one input alone, without its noise."""
    point = subject.points[name]
    others = {other: subject.cast(p) for other, p in subject.points.items() if other != name}

    @torch.no_grad()
    def forward(values: Tensor) -> list[Tensor]:
        return [y.double() for y in subject.call({**others, name: values.to(getattr(torch, subject.dtype))})]

    base = forward(point)
    signs = torch.from_numpy(rng.choice((-3.0, 3.0), tuple(point.shape)))
    step = on_grid(subject, name, noise.scale_of(point) * step_length(subject.arithmetic) * signs)
    layout = layout_of(forward, point, base, step, rng)
    return Local(forward, point, base, dy, layout, subject.arithmetic, NOISELESS)


def _noises(
    subject: Subject,
    inputs: Mapping[str, Local],
    grads: Mapping[str, Tensor | None],
    dy: list[Tensor],
    rng: np.random.Generator,
) -> Iterator[tuple[str, Local, Claim]]:
    """Yield each input's name, its function with its noise and steps, and what its gradient claims."""
    layouts = {name: near.layout for name, near in inputs.items()}
    noises = noise.noise(subject, dy, layouts, rng)
    cornered = corners.suspects(subject, dy, layouts, noises[0], rng)
    for name, near in inputs.items():
        outputs, slope = noises[0][name], noises[1][name]
        if name in cornered:
            lengths = corners.lengths_of(subject, name, dy, near.layout, rng)
            again = noise.noise(subject, dy, {name: near.layout}, rng, {name: lengths})
            near, outputs, slope = replace(near, lengths=lengths), again[0][name], again[1][name]
        gradient = grads[name]
        value = torch.zeros_like(near.point) if gradient is None else gradient.double()
        value = torch.where(value.isfinite(), value, 0.0)
        yield name, replace(near, noise=outputs), Claim(name, value, slope)
