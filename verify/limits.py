"""Which cases a callable takes, as its arguments tell: the rest are made to fit, or left out with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from verify_norm.bind import Binding, UsageError
from verify_norm.data import thawed
from verify_norm.spec import CaseSpec, Op, View

ELEMENTS = 2**17  # of x, about: a module of many features gets fewer rows
WORDS: dict[str, dict[Any, str]] = {  # field: what is said of a case that has another value
    "bias": {False: "it takes no bias", True: "it always has a bias"},
    "weight": {False: "it takes no weight", True: "it always has a weight"},
    "weight_offset": {0.0: "it adds nothing to its weight"},
    "scale": {1.0: "it takes no scale"},
    "frozen": {(): "only what torch differentiates has frozen inputs, and not all of them"},
    "dresidual_out": {False: "it takes no gradient of residual_out"},
    "running": {False: "it has no running statistics", True: "it always has running statistics"},
    "normalized_ndim": {1: "it normalizes one dimension"},
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The cases that a callable takes. It crosses to the kernel's process, as all of a Kernel does.

    `fields` are the values that CaseSpec's fields have to have; `affine` is the shape of an instance's weight; `ranks`
    are x's dimensions, any if there are none. `tied`: a bias "follows" the weight, or "needs" one, or is "untold": then
    a weight has to tell its type. What is `written` in place cannot have elements that share memory. Of the inputs that
    are `differentiated`, one at least is not frozen. `own` is what the kernel's record says itself.
    """

    view: View = "rows"
    fields: tuple[tuple[str, Any], ...] = ()
    affine: tuple[int, ...] | None = None
    ranks: tuple[int, ...] = ()
    tied: str = ""
    written: tuple[str, ...] = ()
    differentiated: tuple[str, ...] = ()
    own: Callable[[CaseSpec], str | None] | None = None

    def fit(self, spec: CaseSpec) -> CaseSpec:
        """The case itself if it is within the limits, else one that is, as near as may be.

        >>> Limits(fields=(("eps", 1e-6),), affine=(64,)).fit(CaseSpec((2, 3, 8))).shape
        (2, 3, 64)
        """
        held = dict(self.fields)
        shape, inner = spec.shape, spec.normalized_ndim
        if self.view == "rows":
            normalized = shape[len(shape) - inner :] if self.affine is None else self.affine
            if held.get("normalized_ndim") == 1 and self.affine is None:
                normalized = (prod(normalized),)
            lead = shape[: len(shape) - inner]
            held["shape"] = (*(lead if self.affine is None else _fewer(lead, prod(normalized))), *normalized)
            held["normalized_ndim"] = len(normalized)
        else:
            held["shape"] = self._channels(spec, held)
        shared = [f"{n}_layout" for n in self.written if getattr(spec, f"{n}_layout", "") in ("expanded", "scalar")]
        fitted = replace(spec, **(held | dict.fromkeys(shared, "contiguous")))
        if self.tied == "untold":
            return fitted if fitted.weight else replace(fitted, weight_dtype=None)
        if self.tied:
            fitted = replace(fitted, bias=fitted.weight and (fitted.bias or self.tied == "follows"))
        return thawed(fitted, self.differentiated)

    def _channels(self, spec: CaseSpec, held: dict[str, Any]) -> tuple[int, ...]:
        """The shape (B, C, *spatial): its channels as many as there are, its rank one of those that are taken."""
        if len(spec.shape) < 2:
            return spec.shape  # which the operator refuses
        samples, channels, *space = spec.shape
        if self.affine is not None:
            channels = prod(self.affine)
        elif "num_groups" in held:
            channels = held["num_groups"] * max(channels // (spec.num_groups or 1), 1)
        if self.ranks and len(spec.shape) not in self.ranks:
            rank = self.ranks[-1] - 2
            space = [*space[: rank - 1], prod(space[rank - 1 :])] if len(space) > rank else space
            space += [1] * (rank - len(space))
        if self.affine is not None:
            (samples,) = _fewer((samples,), channels * prod(space))
        return (samples, channels, *space)

    def unsupported(self, spec: CaseSpec) -> str | None:
        """Why the case is none that the callable takes; None where it is."""
        fitted = self.fit(spec)
        for f in fields(CaseSpec):
            value = getattr(fitted, f.name)
            if value != getattr(spec, f.name):
                words = WORDS.get(f.name, {})
                return words.get(value, f"it takes {f.name} = {value} only")
        return self.own(spec) if self.own else None


def _fewer(lead: tuple[int, ...], each: int) -> tuple[int, ...]:
    """The same leading dimensions, or one of fewer rows where all would be too many."""
    rows = max(ELEMENTS // max(each, 1), 3)
    return lead if prod(lead) <= rows else (rows,)


def of_function(name: str, binding: Binding, op: Op, *, autograd: bool, written: tuple[str, ...] = ()) -> Limits:
    """The limits of a function, from what it takes; raises UsageError where it takes too little to be of `op`."""
    takes, fixed = {*binding.sources, *binding.fixed}, dict(binding.fixed)
    inputs, backward = {tensor.name: tensor for tensor in op.inputs}, op.forward is not None
    essential = [n for n, t in inputs.items() if not t.optional and t.extent == "data"]
    missing = [n for n in essential if n not in takes]
    knows = "rstd" in takes or (backward and not binding.sources)
    needed = [n for n in ("eps", "num_groups") if n in op.attrs and n not in takes and not knows]
    if missing:
        raise UsageError(f"{name} takes no {' and no '.join(missing)} that is known as such; {op.name} offers "
                         f"{', '.join(inputs)}: --bind {missing[0]}=<its argument>")  # fmt: skip
    if needed:
        example = {"eps": "1e-5", "num_groups": "8"}[needed[0]]
        handed = f", or hand it to **{binding.rest}, as --bind {needed[0]}={needed[0]}" if binding.rest else ""
        raise UsageError(f"{name} takes no {needed[0]}: say which it has, as --bind {needed[0]}={example}{handed}")
    held: dict[str, Any] = {n: v is not None if n in ("weight", "bias") else v for n, v in fixed.items()}
    for n in ("weight", "bias", "dresidual_out"):
        if n in inputs and n not in takes:
            held[n] = backward and n == "bias"  # a backward has no use for a bias but to know of it
    if "weight_offset" in op.attrs and "weight_offset" not in takes:
        held["weight_offset"] = 0.0
    if op.view == "channels" and "running_mean" not in takes:
        held |= {"running": False, "training": True}
    if "scale" in inputs and "scale" not in takes:
        held["scale"] = 1.0
    if "momentum" in op.attrs and "momentum" not in takes:
        held["momentum"] = 0.1  # torch's own
    if "training" in op.attrs and "training" not in takes:
        held["training"] = True
    if "normalized_shape" in op.attrs and "normalized_shape" not in takes:
        held["normalized_ndim"] = 1
    if not autograd:
        held["frozen"] = ()
    untold = backward and "bias" in inputs and "bias" not in takes
    return Limits(op.view, tuple(held.items()), tied="untold" if untold else "", written=written)
