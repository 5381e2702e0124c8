"""Assertions for a test that has called a kernel: its results against float64, within the derived rounding bound.

They stand in place of a typed tolerance. They take torch tensors of any device and NumPy arrays, and load neither
Triton nor Hypothesis nor the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import Array
from verify_norm.core.errors import FindingsError, UsageError
from verify_norm.core.user_operators import Operator
from verify_norm.testing import arguments, verdict
from verify_norm.testing.truth import truths

__all__ = ["Bound", "InputError", "assert_norm_close", "assert_norm_gradients_close", "bound", "interpret"]


class InputError(UsageError, ValueError):
    """A test passes what no operator takes; the message is one line: what is wrong, and what would be right."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What is right for one output, and how far a result is from it, element by element in float64.

    Parameters
    ----------
    dtype : the type that the output has by the contract.
    value : the reference value; NaN or an infinity where it has none that is finite.
    allowed : the largest error that roundings explain, with that of the last one; NaN or inf where nothing is judged.
    error : |got − value|; None without a result.
    ratio : error/bound as a verdict counts it: above 1 where `got` is no rounding of anything within the bound, 0
        where nothing is judged; None without a result.
    """

    dtype: str
    value: Array
    allowed: Array
    error: Array | None = None
    ratio: Array | None = None


def assert_norm_close(
    actual: Any,
    op: str | Operator,
    *tensors: Any,
    eps: float | None = None,
    contract: Contract | str = "",
    check_dtype: bool = True,
    activation: str | None = None,
    **options: Any,
) -> None:
    """Raise an AssertionError unless the results of a forward are roundings of what float64 gives for these inputs.

    Parameters
    ----------
    actual : y; or (y, mean, rstd) in the operator's order, shorter or with None for what is not compared; or a mapping
        by name, such as {"y": y, "rstd": rstd}. Statistics may have any shape of their size.
    op : "layernorm", "rmsnorm", "groupnorm", "batchnorm", "add_rmsnorm", … (`verify-norm list`), or your own
        (`verify_norm.operator`).
    tensors : the inputs in the operator's order (`verify-norm show rmsnorm_fwd`): x, weight, bias; a residual is the
        second of "add_rmsnorm", or given by name. All may be given by name. None is a weight or bias that is not there.
    eps : what the kernel adds to the variance; of your own operator, its eps if it has one.
    contract : what the kernel promises, such as "llama" or "xhat=x,expanded=true" (`verify-norm show contracts`), or a
        Contract. The default is strict.
    check_dtype : whether a result of another type than promised is wrong; if False, its values alone are judged.
    activation : "silu" or "gelu" behind "groupnorm".
    options : inputs by name, and num_groups, weight_offset, normalized_shape, training, momentum, scale, running_mean
        and running_var (as before the call). Without normalized_shape, weight says which dimensions are normalized.

    Raises
    ------
    FindingsError : an AssertionError. It says which output is wrong, where, by how many ulps, what is allowed and why,
        and which weaker contract explains it. Also where no element of an output can be judged.
    InputError : a ValueError and UsageError: an unknown operator, contract or output, or a shape that does not fit.

    Examples
    --------
    >>> x = np.array([[1.0, 3.0], [5.0, 5.0]], np.float32)
    >>> y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    >>> assert_norm_close(y, "layernorm", x, eps=1e-5)
    >>> assert_norm_close(y, "layernorm", x, eps=1e-3)  # doctest: +ELLIPSIS +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    verify_norm.core.errors.FindingsError: y[0, 0] is 8.33e+03 ULP (float32) from float64; allowed ...
    """
    __tracebackhide__ = True
    _assert_close(actual, op, "fwd", activation, tensors, _options(eps, options), contract, check_dtype)


def assert_norm_gradients_close(
    actual: Any,
    op: str | Operator,
    *tensors: Any,
    eps: float | None = None,
    contract: Contract | str = "",
    check_dtype: bool = True,
    activation: str | None = None,
    **options: Any,
) -> None:
    """Raise an AssertionError unless gradients of ⟨dy, y⟩ are roundings of what float64 gives for these inputs.

    `actual` is dx, (dx, dweight, dbias) or a mapping by name; `tensors` are dy, x, weight, bias, and dy, dresidual_out,
    residual_out, weight, bias of a fused addition; None stands for a dresidual_out that is not there. mean and rstd
    may be given, as the kernel was: they are compared too, and the bound covers what they are off by. The other
    parameters, errors and costs are those of `assert_norm_close`.

    Examples
    --------
    >>> x, dy = np.array([[1.0, 3.0]], np.float32), np.array([[1.0, 0.0]], np.float32)
    >>> dbias = dy.sum(0)
    >>> assert_norm_gradients_close({"dbias": dbias}, "layernorm", dy, x, bias=np.zeros(2, np.float32), eps=1e-5)
    """
    __tracebackhide__ = True
    _assert_close(actual, op, "bwd", activation, tensors, _options(eps, options), contract, check_dtype)


def bound(
    op: str | Operator,
    *tensors: Any,
    eps: float | None = None,
    actual: Any = None,
    contract: Contract | str = "",
    activation: str | None = None,
    **options: Any,
) -> dict[str, Bound]:
    """Return the numbers behind `assert_norm_close`: the `Bound` of every output of an operator, by name.

    `op` may end in _bwd, for gradients; without a direction it is a forward. With `actual`, the results of a kernel,
    these outputs alone, with their errors. The other parameters and errors are those of `assert_norm_close`; also
    InputError for a result of another shape.

    Examples
    --------
    >>> x = np.array([[1.0, 3.0]], np.float32)
    >>> y = bound("rmsnorm", x, eps=0.0)["y"]
    >>> y.value.round(4).tolist(), bool((y.allowed < 1e-6).all())
    ([[0.4472, 1.3416]], True)
    """
    __tracebackhide__ = True
    with _OneLine():
        direction = "bwd" if str(op).endswith("_bwd") else "fwd"
        called = arguments.bound(arguments.operator(op, direction, activation), tensors, _options(eps, options))
        promised = verdict.promised(contract, called.op)
        expected = truths(called, promised)
        if actual is None:
            return {name: Bound(one.dtype, one.value, judge.allowed(one)) for name, one in expected.items() if one}
        found = {}
        for name, output in verdict.judged(called, arguments.outputs(actual, called.op), expected, promised).items():
            one = expected[name]
            if one is None or output is None:
                continue
            if output.ratio is None:
                raise UsageError(f"{name}: expected the shape {one.value.shape}, got {output.shape}")
            error = np.abs(output.got - one.value)
            found[name] = Bound(one.dtype, one.value, judge.allowed(one), error, output.ratio)
        return found


def _options(eps: float | None, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**({} if eps is None else {"eps": eps}), **options}


def _assert_close(
    actual: Any,
    op: str | Operator,
    direction: str,
    activation: str | None,
    tensors: tuple[Any, ...],
    options: Mapping[str, Any],
    contract: Contract | str,
    check_dtype: bool,
) -> None:
    __tracebackhide__ = True  # a failed test shows its own line
    with _OneLine():
        called = arguments.bound(arguments.operator(op, direction, activation), tensors, options)
        passed, strict = arguments.outputs(actual, called.op), verdict.promised(contract, called.op)
        text = verdict.of(called, passed, strict, check_dtype)
    if text:
        raise FindingsError(text)


class _OneLine(np.errstate):
    """Turn every error of the input into an InputError; NumPy warns of nothing inside."""

    def __init__(self) -> None:
        super().__init__(all="ignore")  # NaN, infinities and overflow may be among the inputs

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        __tracebackhide__ = True
        if isinstance(error, UsageError):
            raise InputError(str(error)) from None


def interpret() -> None:
    """Turn on Triton's interpreter where torch sees no GPU, corrected to round as a GPU does.

    Call it at the top of a test file, before a kernel's module imports Triton. With TRITON_INTERPRET=1 alone, half of
    all bfloat16 results would be one ULP off: Triton's interpreter truncates. Without Triton it does nothing.

    Raises
    ------
    UsageError : Triton was imported before, without its interpreter.
    """
    from verify_norm.search.request import interpret as turn_on

    turn_on()
