"""The norms that a chain may have, each with what it takes besides x, in the order of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verify_norm.reference import l2norm, layernorm, partial_rmsnorm, rmsnorm
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, View, groups, rows

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Base:
    """A norm that a chain may have: its parameters and options, in the order of an operator, and its view of x."""

    name: str
    parameters: tuple[str, ...]
    options: tuple[str, ...]
    view: Callable[[Array, Values], View]
    normalized: Callable[[View, Array, Values], Norm]
    centred: bool = True
    averages: bool = True  # the mean of the squares; their sum otherwise
    partial: bool = False  # of the first elements of a row alone

    def norm(self, x: Array, v: Values) -> Norm:
        """Return x normalized, with what multiplies it.

        >>> import numpy as np
        >>> BASES["l2norm"].norm(np.array([[3.0, 4.0]]), {"eps": 0.0}).y.round(9).tolist()
        [[0.6, 0.8]]
        """
        return self.normalized(self.view(x, v), x, v)


def _rows(x: Array, v: Values) -> View:
    return rows(x, v.get("normalized_shape"))


def _groups(x: Array, v: Values) -> View:
    return groups(x, v["num_groups"])


def _layernorm(view: View, x: Array, v: Values) -> Norm:
    return layernorm.norm(view, x, v.get("weight"), v.get("bias"), v["eps"], v.get("weight_offset", 0.0))


def _rmsnorm(view: View, x: Array, v: Values) -> Norm:
    return rmsnorm.norm(view, x, v.get("weight"), v["eps"], v.get("weight_offset", 0.0))


def _partial(view: View, x: Array, v: Values) -> Norm:
    return partial_rmsnorm.norm(view, x, v.get("weight"), v["eps"], v.get("weight_offset", 0.0), v["variance_size"])


def _l2norm(view: View, x: Array, v: Values) -> Norm:
    return l2norm.norm(view, x, v["eps"])


BASES = {
    base.name: base
    for base in (
        Base("layernorm", ("weight", "bias"), ("eps", "weight_offset", "normalized_shape"), _rows, _layernorm),
        Base("rmsnorm", ("weight",), ("eps", "weight_offset", "normalized_shape"), _rows, _rmsnorm, centred=False),
        Base(
            "partial_rmsnorm",
            ("weight",),
            ("eps", "weight_offset", "variance_size", "normalized_shape"),
            _rows,
            _partial,
            centred=False,
            partial=True,
        ),
        Base("l2norm", (), ("eps", "normalized_shape"), _rows, _l2norm, centred=False, averages=False),
        Base("groupnorm", ("weight", "bias"), ("num_groups", "eps"), _groups, _layernorm),
    )
}
