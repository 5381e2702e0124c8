"""The arguments that `verify-norm gradcheck` calls a function with: the first of these that exists.

1. `shapes`, as in `--shapes x=4x64,weight=64`: normal noise, seeded; weights far from 1, of both signs;
2. a function `make_inputs()` beside the checked one, or its attribute of that name, which returns the arguments by
   name, or as a tuple: floating-point tensors are differentiated, other arguments are passed on;
3. USUAL names.

Arguments with a default keep it, unless they are named.
"""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify_norm.cases.random import generator
from verify_norm.core.errors import UsageError, one_of

USUAL: dict[str, tuple[int, ...]] = dict.fromkeys(("x", "input", "hidden_states", "residual"), (4, 64))
USUAL |= dict.fromkeys(("weight", "gamma", "w", "bias", "beta", "b"), (64,))
WEIGHTS = ("weight", "gamma", "w")


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes by name that the option's text gives; raises UsageError.

    >>> parse_shapes("x=4x64,w=64")
    {'x': (4, 64), 'w': (64,)}
    """
    shapes = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, sizes = part.partition("=")
        if not name.isidentifier() or not all(size.isdigit() for size in sizes.split("x")):
            raise UsageError(f"--shapes: cannot parse {part!r}; expected shapes like x=4x64,w=64")
        shapes[name] = tuple(int(size) for size in sizes.split("x"))
    return shapes


def arguments_of(function: Any, name: str, shapes: Any, seed: int) -> tuple[dict[str, Any], bool]:
    """Return the arguments by name, in order, and whether to pass them by name."""
    shapes = parse_shapes(shapes) if isinstance(shapes, str) else shapes
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    maker = getattr(function, "make_inputs", None) or getattr(module, "make_inputs", None)
    if not shapes and maker is not None:
        made = maker()
        if isinstance(made, Mapping):
            return dict(made), True
        return {f"argument {i}": value for i, value in enumerate(made if isinstance(made, tuple) else (made,))}, False
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind < p.VAR_KEYWORD]
    except (TypeError, ValueError):
        parameters = []
    names = {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}
    loose = not names or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if shapes and not loose:
        for given in shapes:
            one_of(f"argument of {name}", given, names)
    wanted: dict[str, Any] = dict(shapes or {})
    for p in parameters:
        if p.name in names and p.default is p.empty and p.name not in wanted:
            wanted[p.name] = USUAL.get(p.name)
    unknown = [n for n, shape in wanted.items() if shape is None]
    if unknown:
        raise UsageError(
            f"{name} needs {', '.join(unknown)}: for tensors pass --shapes {','.join(f'{n}=4x64' for n in unknown)}; "
            "for other arguments add a default, or leave --shapes out and write make_inputs() beside the function, "
            "which returns all arguments"
        )
    if not wanted:
        raise UsageError(f"{name} needs arguments: pass --shapes x=4x64,w=64, or write make_inputs() beside it")
    ordered = [n for n in (p.name for p in parameters) if n in wanted] if not loose else list(wanted)
    positional = loose or any(p.kind is p.POSITIONAL_ONLY for p in parameters)
    return {n: _noise(n, wanted[n], seed + i) for i, n in enumerate(ordered)}, not positional


def _noise(name: str, shape: Any, seed: int) -> Tensor:
    try:
        values = generator(seed, 1).standard_normal(tuple(shape))
    except (MemoryError, ValueError) as error:  # ValueError: more elements than NumPy counts
        size = "x".join(map(str, shape))
        raise UsageError(f"--shapes: {name}={size} does not fit into memory; expected a smaller shape") from error
    if name in WEIGHTS:  # far from 1, of both signs, so that a forgotten weight shows
        values = np.copysign(0.5 + np.abs(values), values)
    return torch.from_numpy(np.asarray(values))
