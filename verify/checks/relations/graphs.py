"""The graph of a kernel's forward, and runs whose gradients are asked of it in another way than usual."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from verify_norm.cases import make
from verify_norm.checks.relations.rerun import rerun
from verify_norm.core.run import Run
from verify_norm.loading import gradients
from verify_norm.loading.gradients import Graph

Asked = Callable[[Graph, Mapping[str, Any]], Any]  # from a graph and what the backward is given to its outputs


def graph_of(run: Run, given: Mapping[str, Any], alone: str = "") -> Graph:
    """Return the graph of the kernel's forward at what its backward is given; `alone` is as of `gradients.recorded`."""
    assert run.kernel.forward_run is not None
    call = partial(make.call, run.kernel.forward_run)
    return gradients.recorded(call, run.case.op, given, run.case.spec.frozen, alone)


def asked(run: Run, ask: Asked, before: Callable[[Mapping[str, Any]], Any] = dict, **changed: Any) -> Run:
    """Run the case once more, with gradients as `ask` takes them of the graph; `before` and `changed` change inputs."""

    def run_asked(**given: Any) -> Any:
        given = before(given)
        return ask(graph_of(run, given), given)

    return rerun(replace(run, kernel=replace(run.kernel, run=run_asked)), truth=True, **changed)
