"""Autograd: what torch promises of a differentiable function, however its gradients are asked for."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from verify_norm.cases import contents, make
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.cotangents import cotangents
from verify_norm.checks.relations.forward_mode import forward_mode
from verify_norm.checks.relations.graphs import asked, graph_of
from verify_norm.checks.relations.others import other_options
from verify_norm.checks.relations.rerun import other_shape, small
from verify_norm.checks.relations.second_order import second_order
from verify_norm.checks.relations.two_runs import Difference, beyond, first_that_differs, steady
from verify_norm.core import ways
from verify_norm.core.finding import Finding, NoData, Tried
from verify_norm.core.geometry import differentiable, refusal
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import forward_of
from verify_norm.core.run import Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import module_calls
from verify_norm.loading.gradients import Graph

Found = Iterator[Difference | NoData]
# What torch says where it refuses a second backward, and what a kernel may say.
REFUSED = re.compile(r"second time|\b(once|twice)\b|retain_graph|unpacked|checkpoint|inplace operation", re.IGNORECASE)


def _looks(run: Run) -> bool:
    has_graph = run.kernel.autograd and not run.kernel.remote
    return has_graph and "autograd" in run.case.spec.further and small(run)


def _no_graph(kernel: Kernel, _: Collection[str]) -> str:
    if kernel.remote:
        return "untrusted: the graph of the gradients is in the kernel's process"
    return "" if kernel.autograd else "the kernel is a backward of its own: torch's autograd does not call it"


@check(applies=lambda op: op.forward is not None, looks=_looks, lacks=_no_graph)
def autograd(run: Run) -> Iterator[Finding | NoData | Tried]:
    """The gradients by torch's autograd are right however they are asked for, or torch raises.

    A case tries one way, and a small case all of them: two backwards over one graph, by `grad` and by `backward`, which
    leave the outputs of the forward as they are; inputs or outputs overwritten between forward and backward; the
    gradients of each set of outputs; another forward before the backward, of other values, options or shape; a backward
    in another thread; saved tensors that come back in other memory; a sum that x and residual share, and the gradient
    of one of them alone; derivatives of the gradients; forward mode (`jvp`). Where tensors are overwritten, and for
    derivatives and forward mode, a kernel may raise instead (`save_for_backward`, `once_differentiable`). It may mark
    mean and rstd as not differentiable. What differs in the usual way too is left to `determinism`.
    """
    offered = ways.offered(run.case.op, autograd=True)["autograd"]
    tried, wrong = list[str](), list[Difference]()
    for way in ways.taken(run.case.spec, "autograd", offered):
        found = list(WAYS[way](run))
        if NoData() not in found:
            tried.append(way)
        wrong += (item for item in found if isinstance(item, Difference))
    yield from map(Tried, tried)
    if not tried:
        yield NoData()
    if wrong and steady(run):
        for difference in wrong:
            yield finding(run, "autograd", difference.output, difference.words, index=difference.index)


def _second_backward(run: Run) -> Found:
    """Yield what is wrong in a second backward over one graph, by `grad` or by `backward`, after one with other dy.

    By `grad` none writes .grad, or over what the forward returned or updated: the caller may still use y, and a forward
    that runs again in a backward moves BatchNorm's running statistics again.
    """

    def second(graph: Graph, given: Mapping[str, Any]) -> Any:
        return graph.gradients(_after_another(graph, given), retain_graph=True)

    def accumulated(graph: Graph, given: Mapping[str, Any], zeros: bool) -> Any:
        for leaf in graph.leaves.values():
            leaf.grad = torch.zeros_like(leaf) if zeros else None  # some kernels add to what is there alone
        states = {t.name: graph.inputs[t.name] for t in forward_of(graph.op).inputs if t.role == "state"}
        held = {**graph.outputs, **states}
        before = {name: tensor.detach().clone() for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}
        asks = _after_another(graph, given)
        moved = [name for name, values in before.items() if not contents.same_values(values, held[name])]
        if moved:
            raise ValueError(
                f"torch.autograd.grad changes {' and '.join(moved)}, which the forward has given the caller"
            )
        written = [
            f"{name}.grad"
            for name, leaf in graph.leaves.items()
            if leaf.grad is not None and (not zeros or leaf.grad.any())
        ]
        if written:
            raise ValueError(f"torch.autograd.grad writes {' and '.join(written)}, which belongs to the caller")
        torch.autograd.backward([graph.outputs[n] for n in asks], list(asks.values()))
        return graph.named({name: leaf.grad for name, leaf in graph.leaves.items()})

    def comparisons() -> Iterator[Iterator[Difference]]:
        for ask, words in (
            (second, "in the second backward over one graph"),
            (partial(accumulated, zeros=False), "in .grad after torch.autograd.backward"),
            (partial(accumulated, zeros=True), "in .grad, zero before torch.autograd.backward"),
        ):
            result = asked(run, ask)
            if result.problem is None or not REFUSED.search(result.problem):
                yield beyond(run, result, ("as usual", words))

    yield from first_that_differs(comparisons())


def _after_another(graph: Graph, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the cotangents, after a backward over the graph with other ones."""
    asks = graph.cotangents(given)
    graph.gradients({name: 1 - 2 * cotangent for name, cotangent in asks.items()}, retain_graph=True)
    return asks


def _data_overwritten(run: Run) -> Found:
    names = ("x", "residual", "y", "residual_out", "mean", "rstd", "running_mean", "running_var")
    return _overwritten(run, (*names, *run.case.op.stage_inputs))


def _overwritten(run: Run, names: tuple[str, ...]) -> Found:
    """Yield what is wrong where a tensor is overwritten between forward and backward, and torch does not raise."""
    for name in names:

        def ask(graph: Graph, given: Mapping[str, Any], name: str = name) -> Any:
            tensor = {**graph.inputs, **graph.outputs}.get(name)
            asks = {cotangent.untyped_storage().data_ptr() for cotangent in graph.cotangents(given).values()}
            if tensor is not None and tensor.untyped_storage().data_ptr() not in asks:  # else they would change
                with torch.no_grad():
                    contents.overwrite(tensor, 1 - 2 * tensor)
            return graph.gradients(graph.cotangents(given))

        result = asked(run, ask)
        if result.problem is None:
            why = f"where {name} is overwritten between forward and backward and no error is raised (save_for_backward)"
            yield from beyond(run, result, ("as usual", why))


def _moved(run: Run) -> Found:
    """Yield what is wrong where saved tensors come back in other memory, for example if activations are offloaded."""

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
            graph = graph_of(run, given)
        return graph.gradients(graph.cotangents(given))

    words = "where saved tensors come back in other memory (torch.autograd.graph.save_on_cpu)"
    yield from beyond(run, asked(run, ask), ("as usual", words))


def _elsewhere(run: Run) -> Found:
    """Yield what is wrong where the backward runs in another thread than the forward, as on a GPU it always does."""

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: graph.gradients(graph.cotangents(given))).result()

    words = "where the backward runs in another thread than the forward, as torch's does on a GPU"
    yield from beyond(run, asked(run, ask), ("as usual", words))


def _interleaved(run: Run) -> Found:
    """Yield what is wrong where another forward, with or without its backward, comes before the backward."""
    tensors = ("residual_out", *differentiable(run.case.op))

    def with_one_module() -> Run:
        assert run.kernel.forward_run is not None
        serving = module_calls.Instance(writes=False).serving(run.kernel.forward_run)  # one module for both forwards
        return replace(run, kernel=replace(run.kernel, forward_run=serving))

    def comparison(backward: bool, words: str) -> Iterator[Difference]:
        run_of_one = with_one_module()

        def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
            others = {name: 1 - 2 * given[name] for name in tensors if given.get(name) is not None}
            between = graph_of(run_of_one, {**given, **others})
            if backward:
                between.gradients(between.cotangents(given))
            return graph.gradients(graph.cotangents(given))

        result = asked(run_of_one, ask)
        return beyond(run, result, ("as usual", f"where {words} of other values comes before the backward"))

    def comparisons() -> Iterator[Iterator[Difference]]:
        yield comparison(False, "a forward")
        yield comparison(True, "a forward and its backward")
        for other, words in _other_forwards(run):
            yield _after_another_forward(with_one_module(), other, words)

    yield from first_that_differs(comparisons())


def _other_forwards(run: Run) -> Iterator[tuple[CaseSpec, str]]:
    """Yield a case of the run's shape with other options, and one of another shape, each in words."""
    for spec in list(other_options(run))[-1:]:  # the one with the run's weight
        mode = replace(spec, training=not spec.training)
        takes = "training" in run.case.op.attrs and (refusal(mode, run.case.op) or run.kernel.refuses(mode)) is None
        yield mode if takes else spec, "with other options"
    shaped = other_shape(run)
    if shaped is not None:
        yield shaped, f"of {shaped.shape}"


def _after_another_forward(run: Run, spec: CaseSpec, words: str) -> Iterator[Difference]:
    """Yield what is wrong where a forward of this case comes before the backward, as of another layer."""
    op, device = run.case.op, run.case.device
    other = make.build(spec, op, run.kernel.contract, device, make.exact_inputs(spec, op, device))

    def ask(graph: Graph, given: Mapping[str, Any]) -> Any:
        with suppress(Exception):  # a limit of the kernel, which other cases show
            graph_of(replace(run, case=other), other.arguments)
        return graph.gradients(graph.cotangents(given))

    return beyond(run, asked(run, ask), ("as usual", f"where a forward {words} comes before the backward"))


def _split(run: Run) -> Found:
    """Yield what is wrong where the sum is exactly x + residual, not x alone, or where one of them needs a gradient."""
    rng = np.random.default_rng(run.case.spec.seed)
    parts = rng.choice((0.0, 0.5, 2.0), size=run.case.spec.shape)

    def before(given: Mapping[str, Any]) -> Any:
        summed = given["residual_out"]
        x = summed * torch.tensor(parts).to(summed)
        residual = summed - x
        exact = x + residual == summed
        return {**given, "x": torch.where(exact, x, summed), "residual": torch.where(exact, residual, 0)}

    result = asked(run, lambda graph, given: graph.gradients(graph.cotangents(given)), before)
    yield from beyond(run, result, ("where residual is 0", "where x and residual share the same sum"))
    if "x" in run.case.spec.frozen:
        return
    for summand in ("x", "residual"):

        def ask(_: Graph, given: Mapping[str, Any], summand: str = summand) -> Any:
            graph = graph_of(run, given, summand)
            return graph.gradients(graph.cotangents(given))

        words = ("where x and residual need a gradient", f"where of x and residual {summand} alone needs a gradient")
        yield from beyond(run, asked(run, ask), words)


WAYS: dict[str, Callable[[Run], Found]] = {
    ways.AGAIN: _second_backward,
    ways.OVERWRITTEN: _data_overwritten,
    ways.PARAMETERS_OVERWRITTEN: partial(_overwritten, names=("weight", "bias")),
    ways.SECOND: second_order,
    ways.SOME_OUTPUTS: cotangents,
    ways.INTERLEAVED: _interleaved,
    ways.FORWARD_MODE: forward_mode,
    ways.MOVED: _moved,
    ways.ELSEWHERE: _elsewhere,
    ways.SPLIT: _split,
}
