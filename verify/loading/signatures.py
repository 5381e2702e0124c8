"""The parameters of a callable, by its signature in Python or by torch's schema of it."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from verify_norm.core.errors import UsageError

# What a constant can fix.
NUMBERS = ("eps", "num_groups", "weight_offset", "training", "momentum", "scale", "variance_size", "dropout_p")


def signature(function: Any, name: str) -> list[inspect.Parameter]:
    """Return the function's parameters; raises UsageError if neither Python nor torch.jit knows them."""
    schema = schema_of(function)
    if schema is not None:
        return [_parameter(argument) for argument in schema.arguments]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        around = "name a function of Python around it, such as def norm(x, weight, eps)"
        raise UsageError(f"{name} has no signature to bind arguments by; {around}") from error
    if parameters and hasattr(function, "registry") and hasattr(function, "dispatch"):
        # functools.singledispatch chooses by the type of the first argument that is given by position
        parameters[0] = parameters[0].replace(kind=inspect.Parameter.POSITIONAL_ONLY)
    return parameters


def schema_of(function: Any) -> Any:
    """Return the schema of a function by torch.jit.script, or of an operator of torch; None for any other function.

    Their signature in Python is (*args, **kwargs). Of several overloads it is the default one.
    """
    if isinstance(function, torch.jit.ScriptFunction):
        return function.schema
    if isinstance(function, CustomOpDef):
        function = function._opoverload
    if isinstance(function, torch._ops.OpOverloadPacket):
        overloads = function.overloads()
        function = getattr(function, "default" if "default" in overloads else overloads[0])
    return function._schema if isinstance(function, torch._ops.OpOverload) else None


def _parameter(argument: Any) -> inspect.Parameter:
    """Return the parameter that an argument of a schema is."""
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(argument.name, kind, default=default)


def form_of(annotation: Any, source: str) -> Callable[[Any], Any] | None:
    """Return what makes a size or a number what an annotation says that it is; None where nothing has to.

    >>> form_of(list[int], "normalized_shape"), form_of("torch.Size", "normalized_shape"), form_of(float, "eps")
    (<class 'list'>, <class 'torch.Size'>, None)
    >>> form_of(bool, "weight_offset")
    <class 'bool'>
    """
    words = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    kind = re.split(r"[\[ ]", words.removeprefix("torch.").removeprefix("typing."))[0]
    if source == "normalized_shape":
        return {"list": list, "List": list, "Size": torch.Size}.get(kind)
    if source == "weight_offset" and kind == "bool":
        return bool
    is_number = source in NUMBERS and source != "scale"  # which each operator has as a tensor
    return _number if is_number and kind == "Tensor" and "|" not in words else None


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)
