"""Names the outputs that a callable returns."""

from collections.abc import Mapping
from typing import Any

import torch

from verify_norm.core.spec import Op


class RefusedError(Exception):
    """The callable does not take the case, which only a call could tell."""


def named(returned: Any, op: Op) -> dict[str, Any] | str:
    """Return the returned values by output name, or what is wrong with them."""
    names = [tensor.name for tensor in op.outputs]
    if isinstance(returned, Mapping):
        unknown = [name for name in returned if name not in names]
        if unknown:
            return f"it returned {', '.join(map(str, unknown))}; {op.name} has {', '.join(names)}"
        found = dict(returned)
    else:
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        if len(values) > len(names):
            return f"it returned {len(values)} values; {op.name} has {len(names)}: {', '.join(names)}"
        found = dict(zip(names, values, strict=False))
    for name, value in found.items():
        if value is not None and not isinstance(value, torch.Tensor):
            return f"{name} is a {type(value).__name__}, not a tensor"
    return found
