"""Operators of a user's own: a function in array operations, made an operator that every interface takes.

The name of one is where it stands, such as "dyt.py:dyt" or "package.module:dyt", so every process finds it. If no
module holds it, for example because a function or a notebook makes it, the name is "own:dyt", which this process alone
knows.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Any

from verify_norm.core.errors import UsageError, alternatives, one_line, one_of
from verify_norm.core.modules import module_of, target_of
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tensors import DY, RSTD, SAVED_RSTD, X, Y, gradient
from verify_norm.reference.operations.function import DIMS, Function, Own
from verify_norm.reference.operations.operand import Operand, UnknownOperationError
from verify_norm.reference.operations.trial import complaint

OPTIONS = ("eps", "weight_offset")  # of a case, which an operator may have
TAKEN = (*OPTIONS, "dy", "y", "arithmetic", "normalized_shape")
# Tensors of other operators that a case shapes in a way of its own.
OTHERS: tuple[str, ...] = (
    "scale",
    "shift",
    "cos",
    "sin",
    "running_mean",
    "running_var",
    "residual_out",
    "dresidual_out",
)
OTHERS += tuple(one.name for one in fields(CaseSpec) if one.name not in ("weight", "bias", *OTHERS))
HERE = "own:"
DIRECTIONS = "_fwd", "_bwd"
_HERE: dict[str, "Operator"] = {}  # by key
_FOUND: dict[tuple[str, str], "Operator"] = {}  # by module, or its file, and name


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a user's own, for `op=` of every interface; `operator` makes it."""

    function: Own
    summary: str
    key: str = field(repr=False)

    @property
    def name(self) -> str:
        """The name by which every process finds it, or, where no module holds it, this process alone."""
        return target_of(self) or self.key

    @cache  # noqa: B019 — operators live as long as their modules
    def records(self, name: str) -> tuple[Op, Op]:
        """Return its forward and its backward operator, under a name."""
        made = self.function
        inputs = tuple(_tensor(one, dims, one in made.positive) for one, dims in made.tensors.items())
        statistics = [replace(RSTD, name=one) for one in made.outputs[1:]]
        saved = [replace(SAVED_RSTD, name=one) for one in made.outputs[1:]]

        def record(way: str, takes: tuple[Tensor, ...], makes: tuple[Tensor, ...], forward: str | None) -> Op:
            functions = Function(made, way), Function(made, f"{way}_error")
            attrs = (*made.options, "normalized_shape")
            full = f"{name}_{'bwd' if forward else 'fwd'}"
            words = f"the gradients of {forward}" if forward else self.summary
            return Op(
                full, takes, makes, attrs, *functions, forward=forward, summary=words, centred=False, user_defined=True
            )

        return (
            record("forward", inputs, (Y, *statistics), None),
            record("backward", (DY, *inputs, *saved), tuple(map(gradient, inputs)), f"{name}_fwd"),
        )


def operator(
    reference: Callable[..., Any],
    *,
    tensors: Mapping[str, str] | None = None,
    statistics: Collection[str] = (),
    positive: Collection[str] = (),
    gradient: Callable[..., Any] | None = None,
    name: str = "",
) -> Operator:
    """Return an operator for `op=` and `--op` whose truth, gradients and error bound follow from a function.

    Parameters
    ----------
    reference : f(x, …, *, eps), in NumPy's array operations, on rows: x is (M, N), a tensor "N" has one number for each
        column, and reductions are over axis -1. It returns y, or y and statistics of each row, (M, 1) or (M,). Its
        options, `eps` and `weight_offset`, are keyword-only arguments.
    tensors : the dimensions of its tensors, "MN" as x, "N" or "1"; those that are not named are "N".
    statistics : the names of what f returns beside y. A backward is given them too.
    positive : the tensors that are positive, such as an eps for each column.
    gradient : g(dy, x, …, *, eps), which returns the gradients of all tensors in order, in array operations; by
        default that of f, by the chain rule. A formula with less cancellation has a tighter bound.
    name : its name in messages; by default that of the function.

    Raises
    ------
    UsageError : an operation has no rule, a shape is wrong, a row depends on others, or a gradient is not that of f by
        a complex step.

    Examples
    --------
    >>> import numpy as np
    >>> def scale_norm(x, g):
    ...     return g * x / np.sqrt((x * x).sum(-1, keepdims=True))
    >>> operator(scale_norm, tensors={"g": "1"}).function.outputs
    ('y',)
    """
    label = name or getattr(reference, "__name__", None)
    if not (callable(reference) and isinstance(label, str) and label.isidentifier()):
        raise UsageError(f"operator: expected name= with a name, and a function, not {reference!r:.40}")
    if label.endswith(DIRECTIONS):
        raise UsageError(f"operator {label}: expected a name without a direction; name= gives one")
    if not isinstance(tensors or {}, Mapping):
        raise UsageError(
            f"operator {label}: tensors: expected dimensions by name, such as {{'g': '1'}}, got {tensors!r:.40}"
        )
    for option, names in (("statistics", statistics), ("positive", positive)):
        if isinstance(names, str) or not isinstance(names, Collection):
            raise UsageError(f"operator {label}: {option}: expected a list of names, got {names!r:.40}")
    own = _described(reference, tensors or {}, tuple(statistics), tuple(positive), gradient)
    try:
        wrong = complaint(own)
    except Exception as error:
        raise UsageError(f"operator {label}: {_line(error, (reference, gradient))}{_why(error)}") from error
    if wrong is not None:
        raise UsageError(f"operator {label}: {wrong}")
    told = (inspect.getdoc(reference) or "your own operator").splitlines()[0].rstrip(".")
    summary = f"{told}; bound by running error analysis of its operations, looser than a derived one"
    key = f"{HERE}{label}"
    key += f"_{len(_HERE)}" * (key in _HERE)  # an operator that stands goes on under its own name
    made = _HERE[key] = Operator(own, summary, key)
    return made


def is_own(name: str) -> bool:
    """Return whether a text is the name of such an operator, right or wrong.

    >>> is_own("dyt.py:dyt"), is_own("own:dyt_fwd"), is_own("rmsnorm | silu")
    (True, True, False)
    """
    return ":" in name


def records(name: str) -> Sequence[Op]:
    """Return both operators of such a name, which may end in a direction; none of another name. Raises UsageError."""
    if not is_own(name):
        return ()
    bare = re.sub(r"_[fb]wd$", "", name)
    return found(bare).records(bare)


def found(target: str) -> Operator:
    """Return the operator of a name without a direction; raises UsageError."""
    if target.startswith(HERE):
        return _HERE[one_of("operator of this process", target, _HERE)]
    where, _, name = target.rpartition(":")
    key = str(Path(where).absolute()) if where.endswith(".py") else where
    if (key, name) not in _FOUND:
        _FOUND[key, name] = _looked_up(target, where, name)
    return _FOUND[key, name]


def _looked_up(target: str, where: str, name: str) -> Operator:
    module = module_of(where)
    one = getattr(module, name, None)
    if not isinstance(one, Operator):
        names = [n for n, value in vars(module).items() if isinstance(value, Operator)]
        there = f"{where} has {alternatives(names)}" if names else f"{where} has no operator"
        raise UsageError(f"--op {target}: expected an operator that verify_norm.operator made; {there}")
    return one


def _described(
    function: Callable[..., Any],
    dims: Mapping[str, str],
    statistics: tuple[str, ...],
    positive: tuple[str, ...],
    gradient: Callable[..., Any] | None,
) -> Own:
    """Return what a function says of its arguments; raises UsageError."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"operator: expected a Python function, got {function!r:.40}: {error}") from error
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise UsageError("operator: expected tensors and options by name, got a function with *args or **kwargs")
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and (p.name in OPTIONS or p.default is p.empty)]
    if names[:1] != ["x"]:
        raise UsageError(f"operator: expected x as the first argument, got {', '.join(names) or 'none'}")
    for name in options:
        one_of("option of an operator", name, OPTIONS)
    for name in names:
        if name in TAKEN:
            hint = f"an option is keyword-only, as in f(x, *, {name})" if name in OPTIONS else "give it another name"
            raise UsageError(f"operator: {name} is no tensor: {hint}")
        if name in OTHERS:
            raise UsageError(f"operator: {name} has another meaning in cases; give it another name, and --bind it")
    wrong = [one for one in statistics if not one.isidentifier() or iskeyword(one) or one[0] == "_"]
    wrong += [one for one in statistics if one in (*names, *TAKEN) or statistics.count(one) > 1]
    if wrong:
        raise UsageError(f"operator: statistics: expected new names of outputs, got {wrong[0]!r:.40}")
    for name in (*dims, *positive):
        one_of("tensor of the operator", name, names)
    tensors = {name: "MN" if name == "x" else dims.get(name, "N") for name in names}
    for name, one in {**tensors, **dims}.items():
        able = DIMS if name != "x" else DIMS[:1]
        if one not in able:
            raise UsageError(f"operator: {name}: expected {alternatives(able)} as its dimensions, got {one!r:.40}")
    return Own(function, tensors, tuple(options), ("y", *statistics), positive, gradient)


def _why(error: Exception) -> str:
    """Return in words why a function could not run on values that carry their errors."""
    if isinstance(error, UnknownOperationError):
        return f"no rule for {error}"
    foreign = isinstance(error, TypeError) and any(kind.__name__ in str(error) for kind in Operand.__subclasses__())
    return one_line(error) + "; write it with NumPy's operations: x stands for an array" * foreign


def _line(error: BaseException, functions: Iterable[Callable[..., Any] | None]) -> str:
    """Return the line of the user's functions that an error comes from, such as "dyt.py:12: "."""
    files = {code.co_filename for f in functions if (code := getattr(f, "__code__", None)) is not None}
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename in files]
    return f"{Path(lines[-1].filename).name}:{lines[-1].lineno}: " if lines else ""


def _tensor(name: str, dims: str, positive: bool) -> Tensor:
    if dims == "MN":
        return replace(X, name=name)
    return Tensor(name, "affine" if dims == "N" else "one", "weight", dtype="weight", positive=positive)
