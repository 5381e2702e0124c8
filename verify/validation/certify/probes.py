"""Each derivative that a reference claims, and the path along which it can be checked."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify_norm.core.dtypes import Array
from verify_norm.validation.certify.problems import Problem, Values
from verify_norm.validation.certify.sizes import Sizes, condition

DIRECTIONS = 3  # random ones, where there are too many entries to compare each


@dataclass(frozen=True)
class References:
    """The functions under certification, of one operator."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    jvp: Callable[..., Any]
    double_backward: Callable[..., Any]

    def value(self, problem: Problem, **changed: Any) -> NDArray[Any]:
        """Return the forward pass's y, with some arguments replaced."""
        return np.asarray(self.forward(**(problem.args | changed), **problem.options)[0])

    def gradients(self, problem: Problem, dy: NDArray[Any], **changed: Any) -> dict[str, Any]:
        """Return the backward pass's results by name, with some arguments replaced."""
        results = self.backward(dy=dy, **(problem.args | changed), **problem.options)
        return dict(zip((f"d{name}" for name in problem.args), results, strict=True))

    def directional(self, problem: Problem) -> dict[str, Array]:
        """Return the jvp's results by name."""
        results = self.jvp(*problem.args.values(), *problem.tangents.values(), **problem.options)
        return dict(zip(statistics(problem), results, strict=True))

    def second(self, problem: Problem) -> dict[str, Any]:
        """Return the double backward pass's results by name."""
        point = (problem.dy, problem.args["x"], problem.args["weight"])
        results = self.double_backward(*problem.tangents.values(), *point, **problem.options)
        return dict(zip(("dy", "x", "weight"), results, strict=True))


def statistics(problem: Problem) -> tuple[str, ...]:
    """Return the names of what the forward pass returns."""
    return ("y", "mean", "rstd") if problem.centred else ("y", "rstd")


@dataclass(frozen=True)
class Probe:
    """A claim: `path` has the derivative `claim` at 0, entry by entry, all flat.

    `size` is that of the claim's terms, `magnitude` that of the path's values; the path bends over `length`.
    """

    quantity: str
    path: Callable[[complex], NDArray[Any]]
    claim: Array
    size: Array
    magnitude: Array
    length: float
    kappa: float  # the condition κ: rounding errors count 1 + κ times


def of(problem: Problem, references: References, rng: np.random.Generator) -> Iterator[Probe]:
    """Yield every claim that the references make at this point."""
    yield from _jacobian(problem, references) if problem.small else _products(problem, references, rng)
    yield from _directional(problem, references)
    yield from _second(problem, references, rng)


def _jacobian(problem: Problem, references: References) -> Iterator[Probe]:
    """Yield every ∂y_i/∂p_k: the backward pass of each unit dy, the forward pass along each unit change of p."""
    units = np.eye(problem.dy.size).reshape(-1, *problem.dy.shape)
    claims = [references.gradients(problem, dy) for dy in units]
    sizes = [Sizes(problem, dy=dy).gradients() for dy in units]
    magnitude, kappa = Sizes(problem).values()["y"], condition(problem)
    for name, value in problem.args.items():
        if value is None:
            continue
        path = partial(_path, partial(references.value, problem), name, value, np.eye(value.size))
        claim = np.concatenate([flat(claim[f"d{name}"], value.size) for claim in claims])
        size = np.concatenate([size[f"d{name}"] for size in sizes])
        yield Probe(f"d{name}", path, claim, size, magnitude.repeat(value.size), _length(problem, name, 1.0), kappa)


def _products(problem: Problem, references: References, rng: np.random.Generator) -> Iterator[Probe]:
    """Yield ⟨dp, v⟩ for random directions v, against the change of ⟨dy, y⟩."""
    claims, sizes = references.gradients(problem, problem.dy), Sizes(problem)
    gradients, magnitude = sizes.gradients(), (np.abs(problem.dy).ravel() * sizes.values()["y"]).sum()
    kappa = condition(problem)

    def loss(**changed: NDArray[Any]) -> Any:
        return (problem.dy * references.value(problem, **changed)).sum()

    for name, value in problem.args.items():
        for _ in range(DIRECTIONS if value is not None else 0):
            v = rng.normal(size=value.shape) * _spread(name, value)
            moves: Values = dict.fromkeys(problem.args) | {name: v}
            terms = (np.abs(problem.dy).ravel() * Sizes(problem, tangents=moves).jvp()["y"]).sum()
            claim = (flat(claims[f"d{name}"], value.size) * v.ravel()).sum().reshape(1)
            size = np.maximum(terms, (np.abs(v).ravel() * gradients[f"d{name}"]).sum()).reshape(1)
            path, length = partial(_path, loss, name, value, [v]), _length(problem, name, float(np.abs(v).max()))
            yield Probe(f"d{name}", path, claim, size, magnitude.reshape(1), length, kappa)


def _directional(problem: Problem, references: References) -> Iterator[Probe]:
    """Yield the jvp, against the change of y, mean and rstd along the tangents."""
    claims, sizes = references.directional(problem), Sizes(problem)
    values, jvp = sizes.values(), sizes.jvp()
    changes = {name: c for name, c in problem.tangents.items() if c is not None}
    length = min(1.0, _length(problem, "x", float(np.abs(changes["x"]).max())))
    for place, name in enumerate(statistics(problem)):

        def path(t: complex, place: int = place) -> NDArray[Any]:
            moved = problem.args | {name: problem.args[name] + t * change for name, change in changes.items()}
            return np.ravel(references.forward(**moved, **problem.options)[place])

        claim, reach, kappa = flat(claims[name], values[name].size), length, condition(problem)
        if name == "mean":  # it does not bend, and rounds in proportion to its own size alone
            reach, kappa = max(length, float((values[name] / jvp[name]).max())), 0.0
        yield Probe(f"jvp {name}", path, claim, jvp[name], values[name], reach, kappa)


def _second(problem: Problem, references: References, rng: np.random.Generator) -> Iterator[Probe]:
    """Yield the double backward pass, against the change of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩."""
    claims, sizes = references.second(problem), Sizes(problem)
    second, gradients, kappa = sizes.second(), sizes.gradients(), condition(problem)
    given = {name: c for name, c in problem.tangents.items() if c is not None}
    magnitude = sum((np.abs(c).ravel() * gradients[f"d{name}"]).sum() for name, c in given.items())

    def loss(**changed: NDArray[Any]) -> Any:
        results = references.gradients(problem, changed.pop("dy", problem.dy), **changed)
        return sum(np.sum(c * results[f"d{name}"]) for name, c in given.items())

    for name in ("dy", "x", "weight"):
        value = problem.dy if name == "dy" else problem.args[name]
        if value is None:
            continue
        steps = np.eye(value.size) if problem.small else rng.normal(size=(DIRECTIONS, value.size))
        steps = steps * _spread(name, value)
        path = partial(_path, loss, name, value, steps)
        # along random directions the sums of the backward pass have terms of their own
        size = np.maximum(np.abs(steps) @ second[name], 0.0 if problem.small else magnitude)
        claim, length = steps @ flat(claims[name], value.size), _length(problem, name, float(np.abs(steps).max()))
        yield Probe(f"double backward {name}", path, claim, size, np.full(len(steps), magnitude), length, kappa)


def _path(results: Callable[..., Any], name: str, value: Array, steps: Iterable[Array], t: complex) -> NDArray[Any]:
    """Return all results at t along each step of one argument, flat: a row a result, a column a step."""
    columns = [np.ravel(results(**{name: value + t * step.reshape(value.shape)})) for step in steps]
    return np.stack(columns, axis=1).ravel()


def _spread(name: str, value: Array) -> float:
    """Return how far a direction moves an argument: x by its own largest deviation, another by 1."""
    return float(np.abs(value - value.mean()).max()) if name == "x" else 1.0


def _length(problem: Problem, name: str, step: float) -> float:
    """Return how far a path may go before it bends: var + eps is zero at a complex x about 1/(r·|step|) away."""
    return float(1.0 / (Sizes(problem).rstd.max() * step)) if name == "x" else 1.0


def flat(result: NDArray[Any] | None, size: int) -> Array:
    """Return a result flattened to `size` elements; all NaN where it is missing or has another number of elements."""
    if result is None or np.size(result) != size:
        return np.full(size, np.nan)
    return np.asarray(result, dtype=np.float64).ravel()
