"""Gradients where some outputs of a forward have a cotangent and the others have none, in every combination."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases import make
from verify_norm.checks.relations.graphs import asked
from verify_norm.checks.relations.stages import normalized, own_statistics, stages, view_of
from verify_norm.checks.relations.two_runs import Difference, first_that_differs
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.excess import element
from verify_norm.core.finding import NoData
from verify_norm.core.run import Expected, Run
from verify_norm.loading.gradients import Graph

SUMS = ("y", "residual_out")  # whose cotangents are inputs of a backward
STATISTICS = ("mean", "rstd")


def cotangents(run: Run) -> Iterator[Difference | NoData]:
    """Yield what is wrong in a gradient of each set of outputs: of residual_out alone, of rstd, of y and mean, ….

    Left out is what cases ask for themselves: y, with residual_out or without. Statistics take part where torch takes
    them for differentiable; a kernel may raise where they have a cotangent. In 16 bits torch may round each of several
    paths to x, so there each output is alone.
    """
    outputs = _outputs(run)
    given = [name for name in SUMS if _differentiable(outputs.get(name))]
    moments = [name for name in STATISTICS if _differentiable(outputs.get(name)) and _known(run, outputs[name])]
    names = (*given, *moments)
    most = len(names) if run.case.spec.dtype in ("float32", "float64") else 1
    ratios = [output.ratio for output in run.outputs.values() if output is not None and output.ratio is not None]
    wrong = any(ratio.max(initial=0.0) > 1 for ratio in ratios)  # which `accuracy` reports
    all_sets = chain.from_iterable(combinations(names, size) for size in range(1, most + 1))
    sets = [chosen for chosen in all_sets if "y" not in chosen or not (wrong or set(chosen) <= set(SUMS))]
    if not sets:
        yield NoData()
    yield from first_that_differs(_chosen(run, chosen) for chosen in sets)


def _outputs(run: Run) -> Mapping[str, Any]:
    graphs: list[Graph] = []

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        graphs.append(graph)
        return graph.gradients(graph.cotangents(given))

    asked(run, ask)
    return graphs[0].outputs if graphs else {}


def _differentiable(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and output.requires_grad


def _known(run: Run, output: torch.Tensor) -> bool:
    """Return whether an output in the place of a statistic is one whose gradient is known."""
    case = run.case
    if not case.op.lawful:
        return False
    shaped = output.numel() == prod(view_of(case, normalized(run)).statistic)
    plain = case.op.before is None and case.op.dropout is None
    return shaped and plain and own_statistics(case) and "x" not in case.spec.frozen


def _chosen(run: Run, names: tuple[str, ...]) -> Iterator[Difference]:
    """Yield what is wrong where these outputs alone have cotangents."""
    case, moments = run.case, [name for name in names if name in STATISTICS]
    spec = replace(case.spec, dresidual_out="residual_out" in names)
    exact = make.exact_inputs(spec, case.op, case.device)
    if "y" not in names:
        exact["dy"] = np.zeros(spec.shape)
    rng = np.random.default_rng(spec.seed)
    size = prod(view_of(case, normalized(run)).statistic)
    weights = {name: rng.choice((-2.0, -1.0, 1.0, 2.0), size=size) for name in moments}

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        asks = {"y": given["dy"], "residual_out": given.get("dresidual_out")}
        for name, u in weights.items():
            asks[name] = torch.tensor(u).to(graph.outputs[name]).reshape(graph.outputs[name].shape)
        return graph.gradients({name: asks[name] for name in names}, materialize_grads=True)

    result = asked(run, ask, exact=exact, spec=spec)
    if result.problem is not None and not moments:
        yield Difference(None, f"asked for the gradients of {names[0]} alone it fails: {result.problem}")
    for name, output in result.outputs.items():
        want = result.case.expected[name]
        if output is None or want is None or output.ratio is None:
            continue
        if name == "dx" and moments:
            want = _added(want, *(_of_statistic(run, moment, u) for moment, u in weights.items()))
        ratio = judge.ratio(output.got, want)
        count = int((ratio > 1).sum())
        if count:
            index = judge.worst(ratio)
            words = f"{element(name, index)} is {output.got[index]:.9g}, expected {want.value[index]:.9g}"
            words += f", asked for the gradients of {' and '.join(names)} alone"
            if moments:
                mark = f"ctx.mark_non_differentiable({', '.join(moments)}) says so"
                words += f"; {' and '.join(moments)} not differentiated: {mark}"
            yield Difference(name, words, index, count)


def _added(*gradients: Expected) -> Expected:
    """Return the sum of gradients, each of which torch may round to the type of x, and each sum before the last too."""
    value = np.sum([gradient.value for gradient in gradients], axis=0)
    delta = np.sum([gradient.delta for gradient in gradients], axis=0)
    sizes = [np.abs(gradient.value) for gradient in gradients if gradient.value.any()]  # a zero is no summand
    if len(sizes) > 1:
        ulp = FORMATS[gradients[0].dtype].ulp
        rounded = np.sum([ulp(size) for size in sizes], axis=0) + (len(sizes) - 2) * ulp(np.sum(sizes, axis=0))
        delta = delta + 0.5 * rounded
    return replace(gradients[0], value=value, delta=delta)


def _of_statistic(run: Run, name: str, u: Array) -> Expected:
    """Return the gradient of ⟨u, mean⟩ or of ⟨u, rstd⟩ with respect to x, and its bound.

    From mean = Σx/n and ṙ = −r²·mean(x̂·ẋ) (`reference.layernorm.backward`) they are u/n and −u·r²·x̂/n. With
    r' = r(1 + ρ) and |x̂' − x̂| ≤ ε (`reference.rounding`) the second is off by ((1 + ρ)²(|x̂| + 2ε) − |x̂|)·|u|r²/n,
    where the second ε is for a kernel that takes the path through the mean, whose terms sum to 0 only as exactly as
    those of x̂ do. Six roundings are of products. Nothing is judged where r³ may leave float32's range or dx is not
    judged.
    """
    s = stages(run)
    n, a, z = s.norm, s.arithmetic, s.z
    u = u.reshape([1 if axis in n.view.axes else size for axis, size in enumerate(n.view.shape)])
    if name == "mean":
        value = np.broadcast_to(u / n.view.count, n.view.shape)
        delta = a.gamma(6) * np.abs(value)
    else:
        u = u * n.rstd_scale
        size, unit = np.abs(n.xhat), np.abs(u) * n.rstd**2 / n.view.count
        off = z.shift + z.factor * size + z.unit * z.magnitude + z.floor
        value = -u * n.rstd**2 * n.xhat / n.view.count
        delta = unit * ((1 + a.gamma(6)) * (1 + z.factor) ** 2 * (size + 2 * off) - size)
    expected, shape = run.case.expected["dx"], run.case.spec.shape
    assert expected is not None
    seen = (n.rstd > 2.0**-40) & (n.rstd < 2.0**40) & np.isfinite(expected.delta.reshape(n.view.shape))
    delta = np.where(seen, delta + 4 * a.tiny * (1 + np.abs(n.x)), np.inf)
    return Expected(value.reshape(shape), delta.reshape(shape), expected.dtype, expected.saturate)
