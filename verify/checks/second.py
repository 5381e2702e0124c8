"""Second derivatives and forward mode of a differentiable function, against the reference's.

Not one of CHECKS, which look at the values of a kernel: this asks torch's autograd what it makes of a callable, of an
autograd.Function as well as of a composition of torch's own operations.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from verify_norm.certify.probes import References
    from verify_norm.certify.problems import Problem
    from verify_norm.spec import Array

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # the first that the function takes
NAMES = {"input": "x"}  # torch's name of what the operators call x


@dataclass(frozen=True, slots=True)
class Derivative:
    """What was found of one derivative: it agrees, or is not offered, or is wrong without saying so.

    Parameters
    ----------
    quantity : "forward", "gradient", "double backward …" with respect to what, or "jvp".
    outcome : "agrees", "not offered", "finding".
    message : one line in words.
    error, allowed : of the worst element, relative to the size of the terms it is a sum of.
    """

    quantity: str
    outcome: Literal["agrees", "not offered", "finding"]
    message: str
    error: float | None = None
    allowed: float | None = None


def second_order(function: Callable[..., Any], op_name: str, *, seed: int = 0, device: str = "cpu") -> list[Derivative]:
    """A differentiable function's second derivatives and forward mode are right, or it says they are not offered.

    Parameters
    ----------
    function
        a callable on torch tensors that returns y (or y first), or a torch.autograd.Function or its `apply`. Arguments
        are bound by name: x or input, weight, bias, eps, normalized_shape, num_groups, weight_offset.
    op_name
        "layernorm", "rmsnorm" or "groupnorm", with or without a direction.
    seed
        of the data: rows of 37 elements, or groups of 30, of mean 1, weights that are not 1.
    device
        where the function runs.

    Returns
    -------
    list[Derivative] : one per derivative. Where the forward pass or the gradient is already wrong, that alone.

    Raises
    ------
    UsageError : there is no such operator.

    Notes
    -----
    The error allowed, in units of roundoff u of the type and relative to the size of the terms (`certify.sizes`), is
    (4n + 40)(1 + κ): rstd errs by n/2 + 5 (a sum of n squares under a root, the root), x̂ by two more, and no term of a
    second derivative has more than five such factors, a sum over n and a few products. u is the type's, and float32's
    where a function takes float64 but its y shows that it computes in float32.

    Examples
    --------
    >>> found = second_order(torch.nn.functional.layer_norm, "layernorm")
    >>> [(d.quantity, d.outcome) for d in found][-2:]
    [('double backward weight', 'agrees'), ('jvp', 'agrees')]
    """
    from verify_norm.certify import shipped
    from verify_norm.certify.problems import draw

    op = operator(op_name)
    references, problem = shipped(op), draw(op, "second order", (3, 6, 2, 5) if op == "groupnorm" else (4, 37),
                                            offset=1.0, seed=seed)  # fmt: skip
    refusals = []
    for dtype in DTYPES:
        case = _Case(function, _rounded(problem, dtype), references, dtype, device)
        try:
            with _quietly():
                y = case.call(*case.leaves())
        except Exception as error:
            refusals.append(f"{case.name}: {_said(error)}")
            continue
        if y.dtype != dtype:
            refusals.append(f"{case.name}: y is {str(y.dtype).removeprefix('torch.')}")
            continue
        return list(_derivatives(case, y))
    return [Derivative("forward", "not offered", "it takes none of the types: " + "; ".join(refusals))]


def operator(name: str) -> str:
    """The operator of that name, without a direction; raises UsageError where there is none.

    >>> operator("layernorm_bwd")
    'layernorm'
    """
    from verify_norm.certify import base
    from verify_norm.reference import second
    from verify_norm.registry import one_of

    return one_of("operator", base(name), second.JVP)


def _derivatives(case: _Case, y: torch.Tensor) -> Iterator[Derivative]:
    values = case.sizes().values()
    off = case.compare("forward", y, case.references.value(case.problem), values["y"])
    if off.outcome == "finding" and case.dtype == torch.float64:
        case.u, case.name = 2.0**-24, "float64, computed in float32"
        off = case.compare("forward", y, case.references.value(case.problem), values["y"])
    if off.outcome == "finding":
        yield off
        return
    second = list(_double_backward(case))
    yield from second
    if all(derivative.quantity != "gradient" for derivative in second):
        yield _forward_mode(case)


def _double_backward(case: _Case) -> Iterator[Derivative]:
    """Of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩, with respect to dy, x and weight."""
    leaves, dy = case.leaves(), case.tensor(case.problem.dy).requires_grad_()
    inputs = {name: leaf for name, leaf in zip(case.problem.args, leaves, strict=True) if leaf is not None}
    try:
        with _quietly():
            y = case.call(*leaves)
            grads = dict(zip(inputs, torch.autograd.grad(y, list(inputs.values()), dy, create_graph=True), strict=True))
    except Exception as error:
        yield Derivative("double backward", "not offered", f"its gradient cannot be had: {_said(error)}")
        return
    wanted, sizes = case.references.gradients(case.problem, case.problem.dy), case.sizes().gradients()
    for name, grad in grads.items():
        first = case.compare("gradient", grad, wanted[f"d{name}"], sizes[f"d{name}"], f"d{name}")
        if first.outcome == "finding":
            yield first
            return
    cut = [f"d{name}" for name, grad in grads.items() if not grad.requires_grad and name != "bias"]
    alive = {name: grad for name, grad in grads.items() if grad.requires_grad}
    sources = {"dy": dy} | {name: inputs[name] for name in ("x", "weight") if name in inputs}
    if alive:
        try:
            with _quietly():  # backward(), for autograd.grad would not run the node that raises where it is not needed
                sum((grad * case.tensor(case.problem.tangents[name])).sum() for name, grad in alive.items()).backward()  # type: ignore[union-attr]
        except Exception as error:
            yield Derivative("double backward", "not offered", f"it says so: {_said(error)}")
            return
    truth, bounds = case.references.second(case.problem), case.sizes().second()
    why = f"{' and '.join(cut)} came back without a graph; mark backward with once_differentiable" if cut else ""
    for name, leaf in sources.items():
        yield case.compare(
            f"double backward {name}", leaf.grad, truth[name], bounds[name], f"with respect to {name}", why
        )


def _forward_mode(case: _Case) -> Derivative:
    try:
        with _quietly(), forward_ad.dual_level():
            duals = [
                None if value is None else forward_ad.make_dual(case.tensor(value), case.tensor(change))
                for value, change in zip(case.problem.args.values(), case.problem.tangents.values(), strict=True)
            ]
            got = forward_ad.unpack_dual(case.call(*duals)).tangent
    except Exception as error:
        return Derivative("jvp", "not offered", f"it says so: {_said(error)}")
    truth, size = case.references.directional(case.problem)["y"], case.sizes().jvp()["y"]
    return case.compare("jvp", got, truth, size, "of y", "" if got is not None else "y came back without a tangent")


class _Case:
    """A function, the point at which it is differentiated, and how far it may be off there."""

    def __init__(
        self, function: Any, problem: Problem, references: References, dtype: torch.dtype, device: str
    ) -> None:
        self.function, self.problem, self.references = function, problem, references
        self.dtype, self.device, self.name = dtype, device, str(dtype).removeprefix("torch.")
        self.u = torch.finfo(dtype).eps / 2

    def tensor(self, value: Array | None) -> torch.Tensor:
        assert value is not None
        return torch.from_numpy(value).to(self.device, self.dtype)

    def leaves(self) -> list[torch.Tensor | None]:
        return [None if v is None else self.tensor(v).requires_grad_() for v in self.problem.args.values()]

    def call(self, *args: Any) -> torch.Tensor:
        """y, the arguments bound by the names that the function gives them."""
        y = _call(self.function, dict(zip(self.problem.args, args, strict=True)) | self.problem.options)
        y = y[0] if isinstance(y, (tuple, list)) else y
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"it returned {type(y).__name__}, not a tensor")
        return y

    def sizes(self) -> Any:
        from verify_norm.certify.sizes import Sizes

        return Sizes(self.problem)

    def compare(self, quantity: str, got: torch.Tensor | None, want: Array | None, size: Array, what: str = "y",
                why: str = "") -> Derivative:  # fmt: skip
        """Whether a derivative agrees with the reference; what is None counts as 0, as autograd takes it."""
        from verify_norm.certify.sizes import condition

        assert want is not None
        allowed = (4 * self.problem.index.shape[1] + 40) * self.u * (1.0 + condition(self.problem))
        values = np.zeros(want.shape) if got is None else got.detach().to("cpu", torch.float64).numpy()
        if values.shape != want.shape:
            return Derivative(quantity, "finding", f"{what} has the shape {values.shape}, not {want.shape}")
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.abs(values - want).ravel() / size
        error = np.where(np.isfinite(error), error, np.where(size > 0.0, np.inf, 0.0))
        worst = int(np.argmax(error))
        off, place = float(error[worst]), np.unravel_index(worst, want.shape)
        if off <= allowed:
            said = f"{what} is within {off:.2g} of its terms; allowed {allowed:.2g} in {self.name}"
            return Derivative(quantity, "agrees", said, off, allowed)
        where = ", ".join(str(int(i)) for i in place)
        returned = "missing, which counts as 0" if got is None else f"{values.ravel()[worst]:.6g}"
        said = f"{what} is {returned} at [{where}], not {want.ravel()[worst]:.6g}; off by {off:.2g} of its terms, "
        said += f"allowed {allowed:.2g} in {self.name}"
        return Derivative(quantity, "finding", f"{said}; {why}" if why else said, off, allowed)


def _call(function: Any, offered: dict[str, Any]) -> Any:
    """By name, or for an autograd.Function in the order that its forward pass names them."""
    owner = function if inspect.isclass(function) else getattr(function, "__self__", None)
    if not (inspect.isclass(owner) and issubclass(owner, torch.autograd.Function)):
        names = inspect.signature(function).parameters
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())
        chosen = {name: offered[NAMES.get(name, name)] for name in names if NAMES.get(name, name) in offered}
        return function(**(offered if every else chosen))
    arguments: list[Any] = []
    for name in list(inspect.signature(owner.forward).parameters):
        if name == "ctx" and not arguments:
            continue
        if NAMES.get(name, name) not in offered:
            break
        arguments.append(offered[NAMES.get(name, name)])
    return owner.apply(*arguments)


def _rounded(problem: Problem, dtype: torch.dtype) -> Problem:
    """The same point with the values that the type holds, so that the reference starts from what the function gets."""

    def held(value: Array | None) -> Array | None:
        return None if value is None else np.asarray(torch.from_numpy(value).to(dtype).double().numpy())

    dy = held(problem.dy)
    assert dy is not None
    return replace(
        problem,
        args={name: held(value) for name, value in problem.args.items()},
        tangents={name: held(value) for name, value in problem.tangents.items()},
        dy=dy,
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """A warning is no failure, even where the caller makes warnings errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else '(no message)'}"
