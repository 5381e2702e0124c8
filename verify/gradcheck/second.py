"""Second derivatives and forward mode of a differentiable function, against the reference's."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch.autograd import forward_ad

from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.errors import one_line, one_of
from verify_norm.core.ops import base
from verify_norm.reference.jvp import JVP
from verify_norm.validation.certify import probes, problems, shipped, sizes

DTYPES = ("float64", "float32", "float16", "bfloat16")  # the first that the function takes
NAMES = {"input": "x"}  # torch's name for the operators' x


@dataclass(frozen=True, slots=True)
class Derivative:
    """The result for one derivative: it agrees, the function does not offer it, or it is wrong."""

    quantity: str  # "forward", "gradient", "double backward …" with respect to what, or "jvp"
    outcome: Literal["agrees", "not offered", "finding"]
    message: str
    error: float | None = None  # of the worst element, relative to the size of the terms it is a sum of
    allowed: float | None = None


def second_order(function: Callable[..., Any], op_name: str, *, seed: int = 0, device: str = "cpu") -> list[Derivative]:
    """Return one result per derivative; where the forward pass or the gradient is already wrong, that alone.

    `function` is a callable on torch tensors that returns y (or y first), or a torch.autograd.Function or its `apply`.
    Arguments are bound by name: x or input, weight, bias, eps, normalized_shape, num_groups, weight_offset. `op_name`
    is "layernorm", "rmsnorm" or "groupnorm", with or without a direction. The data, drawn from `seed`, are rows of 37
    elements, or groups of 30, of mean 1, weights other than 1. Raises UsageError where there is no such operator.

    The error allowed, in units of roundoff u of the type and relative to the size of the terms (`certify.sizes`), is
    (4n + 40)(1 + κ): rstd errs by n/2 + 5 (a sum of n squares, a root), x̂ by two more, and no term of a second
    derivative has more than five such factors, a sum over n and a few products. u is the type's, or float32's where a
    function takes float64 and its y shows that it computes in float32.

    >>> found = second_order(torch.nn.functional.layer_norm, "layernorm")
    >>> [(d.quantity, d.outcome) for d in found][-2:]
    [('double backward weight', 'agrees'), ('jvp', 'agrees')]
    """
    op = operator(op_name)
    setup = problems.Setup("second order", (3, 6, 2, 5) if op == "groupnorm" else (4, 37), offset=1.0)
    problem, refusals = problems.draw(op, setup, seed), []
    for dtype in DTYPES:
        case = _Case(function, _rounded(problem, dtype), shipped(op), dtype, device, FORMATS[dtype].u)
        with catch_warnings():
            simplefilter("ignore")
            try:
                y = case.call(*case.leaves())
            except Exception as error:
                refusals.append(f"{case.name}: {one_line(error)}")
                continue
            if y.dtype == getattr(torch, dtype):
                return list(_derivatives(case, y))
        refusals.append(f"{case.name}: y is {str(y.dtype).removeprefix('torch.')}")
    return [Derivative("forward", "not offered", "it takes none of the types: " + "; ".join(refusals))]


def operator(name: str) -> str:
    """Return the operator of that name, without a direction; raises UsageError where there is none."""
    return one_of("operator", base(name), JVP)


@dataclass(frozen=True, slots=True)
class _Case:
    """A function, the point at which it is differentiated, and the unit roundoff u that it is held to."""

    function: Any
    problem: problems.Problem
    references: probes.References
    dtype: str
    device: str
    u: float

    @property
    def name(self) -> str:
        return self.dtype if self.u == FORMATS[self.dtype].u else f"{self.dtype}, computed in float32"

    def tensor(self, value: Array) -> torch.Tensor:
        return torch.from_numpy(value).to(self.device, getattr(torch, self.dtype))

    def leaves(self) -> list[torch.Tensor | None]:
        return [None if v is None else self.tensor(v).requires_grad_() for v in self.problem.args.values()]

    def call(self, *args: Any) -> torch.Tensor:
        """Return y; the arguments are bound by the function's own names."""
        y = _call(self.function, dict(zip(self.problem.args, args, strict=True)) | self.problem.options)
        y = y[0] if isinstance(y, (tuple, list)) else y
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"it returned {type(y).__name__}, not a tensor")
        return y

    def compare(
        self, quantity: str, got: torch.Tensor | None, want: Array, size: Array, what: str = "y", why: str = ""
    ) -> Derivative:
        """Return whether a derivative agrees with the reference; None counts as 0, as in autograd."""
        values = np.zeros(want.shape) if got is None else got.detach().to("cpu", torch.float64).numpy()
        if values.shape != want.shape:
            return Derivative(quantity, "finding", f"{what} has the shape {values.shape}, expected {want.shape}")
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.abs(values - want).ravel() / size
        error = np.where(np.isfinite(error), error, np.where(size > 0.0, np.inf, 0.0))
        worst = int(np.argmax(error))
        off = float(error[worst])
        allowed = (4 * self.problem.index.shape[1] + 40) * self.u * (1.0 + sizes.condition(self.problem))
        if off <= allowed:
            message = f"{what} is within {off:.2g} of its terms; allowed {allowed:.2g} in {self.name}"
            return Derivative(quantity, "agrees", message, off, allowed)
        place = ", ".join(str(int(i)) for i in np.unravel_index(worst, want.shape))
        returned = "missing, which counts as 0" if got is None else f"{values.ravel()[worst]:.6g}"
        message = f"{what} is {returned} at [{place}], expected {want.ravel()[worst]:.6g}"
        message += f"; off by {off:.2g} of its terms, allowed {allowed:.2g} in {self.name}" + (
            f"; {why}" if why else ""
        )
        return Derivative(quantity, "finding", message, off, allowed)


def _derivatives(case: _Case, y: torch.Tensor) -> Iterator[Derivative]:
    truth, size = case.references.value(case.problem), sizes.Sizes(case.problem).values()["y"]
    forward = case.compare("forward", y, truth, size)
    if forward.outcome == "finding" and case.dtype == "float64":
        case = replace(case, u=FORMATS["float32"].u)
        forward = case.compare("forward", y, truth, size)
    if forward.outcome == "finding":
        yield forward
        return
    backward = list(_double_backward(case))
    yield from backward
    if all(derivative.quantity != "gradient" for derivative in backward):
        yield _forward_mode(case)


def _double_backward(case: _Case) -> Iterator[Derivative]:
    """Yield the gradients of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩ with respect to dy, x and weight."""
    leaves, dy = case.leaves(), case.tensor(case.problem.dy).requires_grad_()
    inputs = {name: leaf for name, leaf in zip(case.problem.args, leaves, strict=True) if leaf is not None}
    try:
        found = torch.autograd.grad(case.call(*leaves), list(inputs.values()), dy, create_graph=True)
    except Exception as error:
        yield Derivative("double backward", "not offered", f"its gradient raises {one_line(error)}")
        return
    grads = dict(zip(inputs, found, strict=True))
    size = sizes.Sizes(case.problem)
    wanted, allowed = case.references.gradients(case.problem, case.problem.dy), size.gradients()
    for name, grad in grads.items():
        first = case.compare("gradient", grad, wanted[f"d{name}"], allowed[f"d{name}"], f"d{name}")
        if first.outcome == "finding":
            yield first
            return
    cut = [f"d{name}" for name, grad in grads.items() if not grad.requires_grad and name != "bias"]
    terms = [(g * case.tensor(case.problem.tangents[name])).sum() for name, g in grads.items() if g.requires_grad]
    if terms:
        try:
            torch.stack(terms).sum().backward()  # runs every node; autograd.grad skips those that nothing needs
        except Exception as error:
            yield Derivative("double backward", "not offered", f"it raises {one_line(error)}")
            return
    truth, bounds = case.references.second(case.problem), size.second()
    why = f"{' and '.join(cut)} came back without a graph; mark backward with once_differentiable" if cut else ""
    sources = {"dy": dy} | {name: inputs[name] for name in ("x", "weight") if name in inputs}
    for name, leaf in sources.items():
        what = f"with respect to {name}"
        yield case.compare(f"double backward {name}", leaf.grad, truth[name], bounds[name], what, why)


def _forward_mode(case: _Case) -> Derivative:
    problem = case.problem
    try:
        with forward_ad.dual_level():
            duals = [
                None if value is None else forward_ad.make_dual(case.tensor(value), case.tensor(change))
                for value, change in zip(problem.args.values(), problem.tangents.values(), strict=True)
            ]
            got = forward_ad.unpack_dual(case.call(*duals)).tangent
    except Exception as error:
        return Derivative("jvp", "not offered", f"it raises {one_line(error)}")
    truth, size = case.references.directional(problem)["y"], sizes.Sizes(problem).jvp()["y"]
    return case.compare("jvp", got, truth, size, "of y", "" if got is not None else "y came back without a tangent")


def _call(function: Any, offered: dict[str, Any]) -> Any:
    """Call by name, or an autograd.Function in the order of its forward pass's arguments."""
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


def _rounded(problem: problems.Problem, dtype: str) -> problems.Problem:
    """Return the same point with values of the type, so that the reference starts from the function's own inputs."""
    held = FORMATS[dtype].round
    args, tangents = (
        {name: None if value is None else held(value) for name, value in values.items()}
        for values in (problem.args, problem.tangents)
    )
    return replace(problem, args=args, tangents=tangents, dy=held(problem.dy))
