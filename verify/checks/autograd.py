"""Autograd: what torch promises of a differentiable function, however its gradients are asked for."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases import make, placement, turns
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import Difference, beyond, element, rerun, small, steady
from verify_norm.checks.relations.second_order import second_order
from verify_norm.checks.relations.stages import has_mean, normalized, own_statistics, stages, view_of
from verify_norm.core import judge
from verify_norm.core.dtypes import Array
from verify_norm.core.spec import Expected, Finding, Kernel, NoData, Op, Run
from verify_norm.loading import gradients
from verify_norm.loading.gradients import Graph

FEW = 2**7  # elements of x: a case of so few tries all ways
Asked = Callable[[Graph, Mapping[str, Any]], Any]  # from a graph and what the backward is given to its outputs
Found = Iterator[Difference | NoData]


def _looks(run: Run) -> bool:
    return run.kernel.autograd and "autograd" in run.case.spec.further and small(run)


def _no_graph(kernel: Kernel, _: Collection[str]) -> str:
    return "" if kernel.autograd else "the kernel is a backward of its own: torch's autograd does not call it"


@check(applies=lambda op: op.forward is not None, looks=_looks, lacks=_no_graph)
def autograd(run: Run) -> Iterator[Finding | NoData]:
    """The gradients by torch's autograd are right however they are asked for, or torch raises.

    A case tries one way, and a small case all of them: a second forward before the backward, two backwards over one
    graph, by `grad` and by `backward`; inputs or outputs overwritten between forward and backward; the gradients of
    residual_out, mean or rstd alone; a sum that x and residual share; derivatives of the gradients. Where tensors are
    overwritten, and for derivatives, a kernel may raise instead (`save_for_backward`, `once_differentiable`). It may
    mark mean and rstd as not differentiable. What differs in the usual way too is left to `determinism`.
    """
    ways = turns.from_variant(run.case.spec, _ways(run.case.op))
    found = [one for way in ways[: None if prod(run.case.spec.shape) <= FEW else 1] for one in way(run)]
    seen = [difference for difference in found if isinstance(difference, Difference)]
    if not found:
        return
    if not seen:
        yield NoData()
    elif steady(run):
        for difference in seen:
            yield finding(run, "autograd", difference.output, difference.words, index=difference.index)


def _ways(op: Op) -> tuple[Callable[[Run], Found], ...]:
    data = ("x", "residual", "y", "residual_out")
    ways = (_again, partial(_overwritten, names=data), partial(_overwritten, names=("weight", "bias")))
    fused = any(tensor.name == "residual_out" for tensor in op.inputs)
    return (*ways, second_order, _others, *((_split,) if fused else ()))


def _graph(run: Run, given: Mapping[str, Any]) -> Graph:
    """Return the graph of the kernel's forward at what its backward is given."""
    assert run.kernel.forward_run is not None
    call = partial(make.call, run.kernel.forward_run)
    return gradients.recorded(call, run.case.op, given, run.case.spec.frozen)


def _asked(run: Run, ask: Asked, before: Callable[[Mapping[str, Any]], Any] = dict, **changed: Any) -> Run:
    """Run the case once more, with gradients as `ask` takes them of the graph; `before` and `changed` change inputs."""

    def asked(**given: Any) -> Any:
        given = before(given)
        return ask(_graph(run, given), given)

    return rerun(replace(run, kernel=replace(run.kernel, run=asked)), truth=True, **changed)


def _again(run: Run) -> Found:
    """Yield what is wrong after a second forward, and in a second backward over one graph, by `grad` and `backward`."""

    def second(graph: Graph, given: Mapping[str, Any]) -> Any:
        return _first(graph, given)(lambda asks: graph.gradients(asks, retain_graph=True))

    def accumulated(graph: Graph, given: Mapping[str, Any]) -> Any:
        then = _first(graph, given)
        written = [f"{name}.grad" for name, leaf in graph.leaves.items() if leaf.grad is not None]
        if written:
            raise ValueError(f"torch.autograd.grad leaves {' and '.join(written)} set, which belongs to the caller")
        then(lambda asks: torch.autograd.backward([graph.outputs[n] for n in asks], list(asks.values())))
        return graph.named({name: leaf.grad for name, leaf in graph.leaves.items()})

    def interleaved(graph: Graph, given: Mapping[str, Any]) -> Any:
        data = {name: 1 - 2 * given[name] for name in ("x", "residual_out") if given.get(name) is not None}
        _graph(run, {**given, **data})
        return graph.gradients(graph.cotangents(given))

    for ask, words in (
        (interleaved, "after a second forward with other values"),
        (second, "in the second backward over one graph"),
        (accumulated, "in .grad after torch.autograd.backward"),
    ):
        other = _asked(run, ask)
        if other.problem is not None and other.problem.startswith("RuntimeError"):
            continue  # as torch refuses a second backward
        found = list(beyond(run, other, ("as usual", words)))
        if found:
            yield from found
            return


def _first(graph: Graph, given: Mapping[str, Any]) -> Callable[[Callable[[dict[str, torch.Tensor]], Any]], Any]:
    """Make a first backward; return what makes another with the same cotangents, which a contract may overwrite."""
    asks = graph.cotangents(given)
    kept = {name: cotangent.clone() for name, cotangent in asks.items()}
    graph.gradients(asks, retain_graph=True)

    def then(ask: Callable[[dict[str, torch.Tensor]], Any]) -> Any:
        for name, cotangent in asks.items():
            placement.overwrite(cotangent, kept[name])
        return ask(asks)

    return then


def _overwritten(run: Run, names: tuple[str, ...]) -> Found:
    """Yield what is wrong where a tensor is overwritten between forward and backward, and torch does not raise."""
    for name in names:

        def ask(graph: Graph, given: Mapping[str, Any], name: str = name) -> Any:
            tensor = {**graph.outputs, **graph.inputs}.get(name)
            if tensor is not None:
                with torch.no_grad():
                    placement.overwrite(tensor, 1 - 2 * tensor)
            return graph.gradients(graph.cotangents(given))

        other = _asked(run, ask)
        if other.problem is None:
            why = f"where {name} is overwritten between forward and backward and no error is raised (save_for_backward)"
            yield from beyond(run, other, ("as usual", why))


def _split(run: Run) -> Found:
    """Yield what is wrong where the sum is not x alone, but exactly x + residual."""
    rng = np.random.default_rng(run.case.spec.seed)
    parts = rng.choice((0.0, 0.5, 2.0), size=run.case.spec.shape)

    def before(given: Mapping[str, Any]) -> Any:
        summed = given["residual_out"]
        x = summed * torch.tensor(parts).to(summed)
        residual = summed - x
        exact = x + residual == summed
        return {**given, "x": torch.where(exact, x, summed), "residual": torch.where(exact, residual, 0)}

    other = _asked(run, lambda graph, given: graph.gradients(graph.cotangents(given)), before)
    yield from beyond(run, other, ("where residual is 0", "where x and residual share the same sum"))


def _others(run: Run) -> Found:
    """Yield what is wrong with the gradients of residual_out alone, of mean and of rstd."""
    graphs: list[Graph] = []

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        graphs.append(graph)
        return graph.gradients(graph.cotangents(given))

    _asked(run, ask)
    outputs = graphs[0].outputs if graphs else {}
    names = [name for name in ("residual_out", "mean", "rstd") if _differentiable(outputs.get(name))]
    if not names:
        yield NoData()
    for name in names:
        yield from _sum_alone(run) if name == "residual_out" else _statistic(run, name, outputs[name].numel())


def _differentiable(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and output.requires_grad


def _sum_alone(run: Run) -> Found:
    """Yield what differs from dx = dresidual_out, where nothing depends on y."""
    spec, op = replace(run.case.spec, dresidual_out=True), run.case.op
    exact = make.exact_inputs(spec, op)
    exact["dy"] = np.zeros(spec.shape)

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        return graph.gradients({"residual_out": given["dresidual_out"]}, materialize_grads=True)

    other = _asked(run, ask, exact=exact, spec=spec)
    if other.problem is not None:
        yield Difference(None, f"asked for the gradients of residual_out alone it fails: {other.problem}")
    for name, output in other.outputs.items():
        if output is not None and output.ratio is not None and output.ratio.max(initial=0.0) > 1:
            yield _beyond(name, output.got, output.ratio, other.case.expected[name], "residual_out alone")


def _statistic(run: Run, name: str, size: int) -> Found:
    """Yield where dx is not the gradient of a statistic that torch takes for differentiable; dy is 0."""
    case, spec = run.case, run.case.spec
    u = np.random.default_rng(spec.seed).choice((-2.0, -1.0, 1.0, 2.0), size=size)
    alien = size != prod(view_of(case, normalized(run)).statistic) or (name == "mean" and not has_mean(case))
    if alien or not own_statistics(case) or "x" in spec.frozen:
        yield NoData()
        return

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        weights = torch.tensor(u).to(graph.outputs[name]).reshape(graph.outputs[name].shape)
        asks = {"y": torch.zeros_like(graph.outputs["y"]), name: weights}
        return graph.gradients(asks, materialize_grads=True)

    output, want = _asked(run, ask).outputs.get("dx"), _of_statistic(run, name, u)  # no output if it raises
    if output is not None and output.got.shape == want.value.shape:
        ratio = judge.ratio(output.got, want)
        if ratio.max(initial=0.0) > 1:
            yield _beyond("dx", output.got, ratio, want, f"{name}, which is not marked as not differentiable")


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
        size, unit = np.abs(n.xhat), np.abs(u) * n.rstd**2 / n.view.count
        off = z.shift + z.factor * size + z.unit * z.magnitude + z.floor
        value = -u * n.rstd**2 * n.xhat / n.view.count
        delta = unit * ((1 + a.gamma(6)) * (1 + z.factor) ** 2 * (size + 2 * off) - size)
    expected, shape = run.case.expected["dx"], run.case.spec.shape
    assert expected is not None
    seen = (n.rstd > 2.0**-40) & (n.rstd < 2.0**40) & np.isfinite(expected.delta.reshape(n.view.shape))
    delta = np.where(seen, delta + 4 * a.tiny * (1 + np.abs(n.x)), np.inf)
    return Expected(value.reshape(shape), delta.reshape(shape), expected.dtype, expected.saturate)


def _beyond(name: str, got: Array, ratio: Array, want: Expected | None, of: str) -> Difference:
    assert want is not None
    index = judge.worst(ratio)
    words = f"{element(name, index)} is {got[index]:.9g}, expected {want.value[index]:.9g}"
    return Difference(name, f"{words}, asked for the gradient of {of}", index, int((ratio > 1).sum()))
