"""How large the terms of each result are: the unit in which errors of float64 are measured.

A result may be far smaller than its terms, where they cancel; so its size is that of its largest term. The formulas are
the references', in absolute values, with max for +. A mean counts with the mean of its terms' absolute values, x̂ with
r·max(|xc|, mean|xc|), and a sum over all elements that one parameter serves with √Σt²: the largest term where there are
few, about the largest partial sum where there are many.

**The condition.** The one place where the terms are larger is x − μ. A mean that is computed once errs by
δμ ≤ γ(h + 2)·mean|x| (`reference.statistics_rounding`), all x̂ of a row shift by S = r·δμ, and to first order

    δy = w·S      δdx = r·S(|c1| + |x̂ c2|)      δdweight = S·|Σ dy|      (second order: the same, times r)

each at most S times the size above, since |c1|, |c2| ≤ mean|g|·max(1, |x̂|). An error of k roundings thus becomes

    k·u·size·(1 + κ)      κ = r·mean|x|, about the offset over the scale; 0 for RMSNorm, which subtracts nothing

A reference that corrects xc by its own mean has no κ; the bound on its distance from fifty digits holds it to that.
"""

import numpy as np

from verify_norm.core.dtypes import Array
from verify_norm.validation.certify.problems import Problem, Values


def condition(problem: Problem) -> float:
    """Return κ of the worst row."""
    x = np.abs(problem.args["x"].reshape(problem.index.shape)).mean(1, keepdims=True)
    return float((Sizes(problem).rstd * x).max()) if problem.centred else 0.0


class Sizes:
    """The sizes of all results of one problem, flat arrays; `dy` and `tangents` replace the problem's own."""

    def __init__(self, problem: Problem, dy: Array | None = None, tangents: Values | None = None) -> None:
        self.problem, self.index = problem, problem.index
        self.shape = problem.index.shape
        x = problem.args["x"].reshape(self.shape)
        if problem.centred:
            x = x - x.mean(1, keepdims=True)
            x = x - x.mean(1, keepdims=True)
        self.rstd = 1.0 / np.sqrt((x * x).mean(1, keepdims=True) + problem.options["eps"])
        floor = self._mean(x) if problem.centred else np.zeros_like(self.rstd)
        self.xhat = self.rstd * np.maximum(np.abs(x), floor)
        self.dy = np.abs((problem.dy if dy is None else dy).reshape(self.shape))
        changes = problem.tangents if tangents is None else tangents
        self.tx = np.abs(changes["x"].reshape(self.shape)) if changes["x"] is not None else np.zeros(self.shape)
        self.tweight, self.tbias = (self._served(changes.get(name)) for name in ("weight", "bias"))
        weight, offset = problem.args["weight"], problem.options.get("weight_offset", 0.0)
        self.weight = np.ones(self.shape)
        if weight is not None:
            self.weight = np.maximum(np.maximum(self._served(weight), abs(offset)), self._served(weight + offset))
        self.bias = self._served(problem.args.get("bias"))

    def values(self) -> dict[str, Array]:
        """Return the sizes of the forward pass: y, mean, rstd."""
        mean = np.abs(self.problem.args["x"].reshape(self.shape)).mean(1)
        sizes = {"y": np.maximum(self.weight * self.xhat, self.bias), "mean": mean, "rstd": self.rstd}
        return {name: size.ravel() for name, size in sizes.items()}

    def gradients(self) -> dict[str, Array]:
        """Return the sizes of the backward pass: dx, dweight, dbias."""
        dx = self.rstd * self._project(self.weight * self.dy)
        return {"dx": dx.ravel(), "dweight": self._shared(self.dy * self.xhat), "dbias": self._shared(self.dy)}

    def jvp(self) -> dict[str, Array]:
        """Return the sizes of the directional derivative: ẏ, μ̇, ṙ."""
        y = np.maximum(self.weight * self.rstd * self._project(self.tx), self.tweight * self.xhat)
        rstd = self.rstd * self.rstd * self._mean(self.xhat * self.tx)
        sizes = {"y": np.maximum(y, self.tbias), "mean": self._mean(self.tx), "rstd": rstd}
        return {name: size.ravel() for name, size in sizes.items()}

    def second(self) -> dict[str, Array]:
        """Return the sizes of the double backward pass: gradients with respect to dy, x and weight."""
        g, pu = self.weight * self.dy, self._project(self.tx)
        terms = (
            self.rstd * self._project(self.tweight * self.dy),
            self.rstd * self.rstd * self._mean(g * pu) * self.xhat,
            self.rstd * self.rstd * self._mean(self.tx * self.xhat) * self._project(g),
            self.rstd * self.rstd * self._mean(g * self.xhat) * pu,
        )
        x = np.max(np.broadcast_arrays(*terms), axis=0)
        return {"dy": self.jvp()["y"], "x": x.ravel(), "weight": self._shared(self.dy * self.rstd * pu)}

    def _mean(self, a: Array) -> Array:
        return np.asarray(np.abs(a).mean(1, keepdims=True))

    def _project(self, a: Array) -> Array:
        size: Array = np.maximum(a, self.xhat * self._mean(a * self.xhat))
        return np.maximum(size, self._mean(a) * self.problem.centred)

    def _served(self, parameter: Array | None) -> Array:
        return np.zeros(self.shape) if parameter is None else np.abs(parameter).ravel()[self.index]

    def _shared(self, a: Array) -> Array:
        squares = np.zeros(self.index.max() + 1)
        np.add.at(squares, self.index, a * a)
        return np.asarray(np.sqrt(squares))
