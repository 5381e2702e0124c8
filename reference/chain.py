"""A norm between stages: [an addition, or a gate] → a norm of `bases` → stages, forward, backward, and their errors.

    h = [dropout](x) + residual, x·a(gate), or x      z0 = w·x̂(h) + b      z1 = f1(z0)      …      y = zk

**Backward.** dy goes back through the stages, last one first: each turns the gradient with respect to its result into
that with respect to its z, and into those of its own inputs. What arrives at z0 takes dy's place in the gradients of
the norm (`Norm.gradients`); after an addition dresidual_out is added to dx (`residual_sum`). After a dropout and an
addition that sum is dresidual, and dx is what the dropout makes of it.

**Errors.** δz goes forward through `stages.steps`, which keeps each z and its δz for the backward. There a kernel
computes every z again, from the statistics that it uses, so the same δz holds, and `lost` goes back through
`Stage.pull_error`, to `rounding.gradients_error`. After an addition y is within |chain(h̃) − chain(h)| + δ(h̃) of the
truth, with h̃ what the contract keeps of h. After a gate no bit of h is known: the norm is that of an x which is off by
δh (`Norm.off`), and the gradient that arrives at h, with its error, goes back through the gate as through any stage.
In a row of zeros w·x̂ + b is exact where it is 0.

**Quantization** is a last stage with another output, the scale, and no backward.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from verify_norm.reference import residual_sum, rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.bases import BASES, Base, Values
from verify_norm.reference.norm import Norm
from verify_norm.reference.stages.dropout import Dropout
from verify_norm.reference.stages.quantize import Quantize
from verify_norm.reference.stages.stage import Approximate, Stage, exactly, passed, rounded, rounded_off
from verify_norm.reference.stages.steps import steps
from verify_norm.reference.view import Array

OPTIONS = {"weight_offset": 0.0, "normalized_shape": None}  # and their defaults


@dataclass(frozen=True, slots=True)
class Chain:
    """[[dropout →] x + residual →] norm → stages, or [gate →] norm → stages; the norm's name is one of `BASES`."""

    norm: str
    stages: tuple[Stage, ...]
    adds: bool = False
    before: Stage | None = None
    dropout: Dropout | None = None

    @property
    def base(self) -> Base:
        """The norm."""
        return BASES[self.norm]

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """The stage before the norm, or before the addition, if there is one, and those behind it."""
        return (*(stage for stage in (self.dropout, self.before) if stage is not None), *self.stages)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its arguments that are no tensors."""
        return self.base.options if self.dropout is None else (*self.base.options, *self.dropout.options)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors beside x: those of x's shape, the parameters of the norm, and the others."""
        like_x = [name for stage in self.all_stages if stage.of_x for name in stage.inputs]
        others = [name for stage in self.all_stages if not stage.of_x for name in stage.inputs]
        return (*like_x, *self.base.parameters, *others)

    @property
    def stage_inputs(self) -> tuple[str, ...]:
        """The names of the inputs of its stages."""
        return tuple(name for stage in self.all_stages for name in stage.inputs)

    @property
    def trained(self) -> tuple[str, ...]:
        """Those of its tensors whose gradients a backward returns."""
        constants = {name for stage in self.all_stages if not stage.trained for name in stage.inputs}
        return tuple(name for name in self.tensors if name not in constants)

    @property
    def differentiated(self) -> tuple[str, ...]:
        """The names of the tensors besides x whose gradients a backward returns; residual's only beside a dropout's."""
        return self.trained if self.dropout is None else ("residual", *self.trained)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The names of what a forward saves."""
        return ("mean", "rstd") if self.base.centred else ("rstd",)

    @property
    def quantizer(self) -> Quantize | None:
        """The stage that makes 8 bits of y, which is the last one."""
        last = self.stages[-1:]
        return last[0] if last and isinstance(last[0], Quantize) else None

    @property
    def scales(self) -> tuple[str, ...]:
        """The name of the scale of y where the data determine it: an output, next to y."""
        return ("y_scale",) if self.quantizer is not None and self.quantizer.dynamic else ()

    @np.errstate(all="ignore")
    def forward(self, v: Values) -> Any:
        """Return y, the sum where there is one, and the statistics."""
        h = self.summed(v) if self.adds else self.given(v["x"], v)
        return self._forward_of(h, self._values(self.base.norm(h, v), v))

    def summand(self, v: Values, a: Arithmetic) -> Approximate:
        """Return what residual is added to: x, or what a dropout leaves of it."""
        x = exactly(v["x"])
        return x if self.dropout is None else rounded(passed(self.dropout, x, v, a), a)

    def summed(self, v: Values) -> Array:
        """Return h of an addition."""
        x = v["x"] if self.dropout is None else self.dropout.value(v["x"], v)
        return residual_sum.added(x, v["residual"], "residual")

    def given(self, x: Array, v: Values) -> Array:
        """Return what is normalized in place of x."""
        return x if self.before is None else self.before.value(x, v)

    def normalized(self, x: Array, v: Values, a: Arithmetic) -> Norm:
        """Return x, or what the stage before the norm makes of it, normalized, and how far off that may be."""
        if self.before is None:
            return self.base.norm(x, v)
        h = rounded(passed(self.before, exactly(x), v, a), a)
        n = self.base.norm(h.value, v)
        return replace(n, off=h.delta.reshape(n.view.shape))

    def _values(self, n: Norm, v: Values) -> tuple[Array, ...]:
        """Return y, its scale where that is an output, and the statistics, in the operator's shapes."""
        z, scales = n.y, list[Array]()
        for stage in self.stages:
            if isinstance(stage, Quantize) and stage.dynamic:
                scales.append(stage.scale(z, v))
            z = stage.value(z, v)
        return self._outside(n, z, scales, n.mean, n.saved_rstd)

    @np.errstate(all="ignore")
    def forward_error(self, v: Values) -> Any:
        """Return how far a kernel may be from `forward`."""
        a: Arithmetic = v["arithmetic"]
        if not self.adds:
            return self._forward_of(np.zeros(()), self._errors(self.normalized(v["x"], v, a), v, a))
        x, rounded = self.summand(v, a), v.get("rounded")
        h = residual_sum.added(x.value, v["residual"], "residual")
        kept = self.base.norm(residual_sum.kept(h, a, rounded), v)
        if self.dropout is None:
            of_sum = residual_sum.sum_error(v["x"], v["residual"], a)
        else:
            of_sum = residual_sum.dropped_sum_error(x, v["residual"], a)
            off = residual_sum.kept_off(h, x.delta, a, rounded)
            kept = replace(kept, off=off.reshape(kept.view.shape))
        errors = self._errors(kept, v, residual_sum.flushing(a))
        exact = self._values(self.base.norm(h, v), v)
        return self._forward_of(of_sum, residual_sum.apart(exact, self._values(kept, v), errors))

    def _errors(self, n: Norm, v: Values, a: Arithmetic) -> tuple[Array, ...]:
        """Return how far a kernel's y, its scale where that is an output, and the statistics may be off."""
        e = statistics_rounding.statistics_error(n, a)
        z = rounding.affine_error(n, rounding.xhat_error(n, e, a), a)
        *before, y = steps(self.stages, n, z, v, a).zs
        pairs = zip(self.stages, before, strict=True)
        scales = [s.scale_error(z, v, a) for s, z in pairs if isinstance(s, Quantize) and s.dynamic]
        delta = finite_below(y.delta, y.size + y.delta, a.huge)
        return self._outside(n, delta, scales, e.mean, n.saved_rstd * e.rho)

    def _outside(self, n: Norm, y: Array, scales: list[Array], mean: Array, rstd: Array) -> tuple[Array, ...]:
        y = np.broadcast_to(y, n.view.shape).reshape(n.view.data)
        saved = {"mean": mean, "rstd": rstd}
        return (y, *scales, *(saved[name].reshape(n.view.statistic) for name in self.statistics))

    def _forward_of(self, h: Array, others: Sequence[Array]) -> Any:
        """Return the outputs by name; `others` are all but the sum."""
        if not self.adds:
            return record("y", *self.scales, *self.statistics)(*others)
        count = 1 + len(self.scales)
        outputs = record("y", *self.scales, "residual_out", *self.statistics)
        return outputs(*others[:count], h, *others[count:])

    def _source(self, v: Values) -> Array:
        """Return the tensor that a backward is given in place of a forward's x."""
        x: Array = v["residual_out" if self.adds else "x"]
        return x

    @np.errstate(all="ignore")
    def backward(self, v: Values) -> Any:
        """Return the gradients of x and residual, the parameters, and the stages' own inputs."""
        x = self._source(v)
        n = self.base.norm(self.given(x, v), v)
        z, zs = n.y, []
        for stage in self.stages:
            zs.append(z)
            z = stage.value(z, v)
        dz = v["dy"].reshape(n.view.shape)
        gradients: dict[str, Array] = {}
        for stage, z in zip(reversed(self.stages), reversed(zs), strict=True):
            dz, own = stage.pull(dz, z, v)
            gradients |= own
        dx, *parameters = n.gradients(dz)
        dx = residual_sum.joined(dx, v.get("dresidual_out")) if self.adds else dx
        if self.before is not None:
            dx, own = self.before.pull(dx, x, v)
            gradients |= own
        if self.dropout is not None:
            gradients["residual"], dx = dx, self.dropout.pull(dx, x, v)[0]
        return self._backward_of(dx, parameters, gradients)

    @np.errstate(all="ignore")
    def backward_error(self, v: Values) -> Any:
        """Return how far a kernel may be from `backward`."""
        a: Arithmetic = v["arithmetic"]
        x, given = self._source(v), v.get("given")
        n = self.normalized(x, v, a)
        z = rounding.affine_error(n, rounding.xhat_error(n, statistics_rounding.saved_error(n, a, given), a), a)
        forward_steps = steps(self.stages, n, z, v, a)
        dz, lost, own = forward_steps.pulled_error(v["dy"].reshape(n.view.shape), v, a)
        dx, *parameters = rounding.gradients_error(n, dz, a, lost=lost, given=given)
        dx = residual_sum.joined_error(n, dz, dx, v.get("dresidual_out"), a) if self.adds else dx
        if self.before is not None:
            dh = n.gradients(dz)[0]
            dx, first = self.before.pull_error(dh, rounded_off(dh, dx, a), exactly(x), v, a)
            own |= first
        if self.dropout is not None:
            own["residual"] = dx
            dh = residual_sum.joined(n.gradients(dz)[0], v.get("dresidual_out"))
            dx = self.dropout.pull_error(dh, rounded_off(dh, dx, a), exactly(x), v, a).lost
        return self._backward_of(dx, parameters, own)

    def _backward_of(self, dx: Array, parameters: list[Array | None], own: Mapping[str, Array]) -> Any:
        named = dict(zip(("weight", "bias"), parameters, strict=True))
        values = [{**named, **own}[name] for name in self.differentiated]
        return record("dx", *(f"d{name}" for name in self.differentiated))(dx, *values)

    def takes(self, way: str) -> tuple[str, ...]:
        """Return the names of the tensors that one of its four functions takes, in an operator's order."""
        if way.startswith("forward"):
            return ("x", "residual", *self.tensors) if self.adds else ("x", *self.tensors)
        return ("dy", "dresidual_out", "residual_out", *self.tensors) if self.adds else ("dy", "x", *self.tensors)


@dataclass(frozen=True)
class Function:
    """One of a chain's four functions, as `forward` or `backward_error`, with the signature of an operator's reference.

    The references of a chain of a norm and the stages behind it; `verify_norm.reference.chain` derives them, and each
    module of `verify_norm.reference.stages` its own part.

    >>> from verify_norm.reference.stages.modulate import Modulate
    >>> function = Function(Chain("rmsnorm", (Modulate(),)), "forward")
    >>> x, scale = np.array([[3.0, 5.0]]), np.array([[1.0, 0.0]])
    >>> function(x=x, weight=None, scale=scale, shift=-scale, eps=47.0).y.tolist()
    [[-0.25, 0.625]]
    """

    chain: Chain
    way: str

    def __call__(self, **values: Any) -> Any:
        """Return what `Chain` says."""
        return getattr(self.chain, self.way)(values)

    @property
    def __name__(self) -> str:
        """The name of the function."""
        return self.way

    @property
    def __signature__(self) -> Signature:
        """What it takes: tensors, and options by name."""
        tensors = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self.chain.takes(self.way)]
        options: dict[str, Any] = {name: OPTIONS.get(name, Parameter.empty) for name in self.chain.options}
        if self.way.endswith("error"):
            options["arithmetic"] = Parameter.empty
        if self.way == "backward_error":
            options["given"] = None
        if self.way == "forward_error" and self.chain.adds:
            options["rounded"] = None
        quantizer = self.chain.quantizer
        if quantizer is not None:
            options |= {"largest": quantizer.largest, "scale_floor": 0.0, "e8m0": "floor"}
        named = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in options.items()]
        return Signature([*tensors, *named])


@lru_cache(None)
def record(*names: str) -> Callable[..., Any]:
    """Return the type of a tuple with these names."""
    return namedtuple("Outputs", names)
