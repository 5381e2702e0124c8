"""The backward of a forward pass, by torch's autograd."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify_norm.cases.contents import same_values
from verify_norm.core.geometry import differentiable, summands
from verify_norm.core.op import Op
from verify_norm.core.ops import forward_of
from verify_norm.core.ways import PARAMETERS
from verify_norm.loading.returned import RefusedError, named

Call = Callable[[Mapping[str, Any]], Any]  # from an operator's values, by name, to what the callable returns
UNRECORDED = "has no gradient: autograd does not know"  # what is said of a y that torch did not record
GIVEN = "whose gradient is given"  # and of one that is not returned
MOMENTUM = 0.1  # for a forward that runs in a backward: a backward has no momentum, and no result depends on it


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward pass that torch has recorded: its inputs, those that need a gradient, and its outputs, by name.

    `op` is the backward, whose outputs are the gradients.
    """

    op: Op
    inputs: Mapping[str, Any]
    leaves: Mapping[str, Tensor]
    outputs: Mapping[str, Any]

    def cotangents(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the cotangents that the backward is given, by output; without that of a sum of frozen tensors."""
        pairs = {"y": given["dy"], "residual_out": given.get("dresidual_out")}
        if "x" not in self.leaves and self.outputs.get("residual_out") is not None:
            pairs |= {} if self.outputs["residual_out"].requires_grad else {"residual_out": None}
        return {n: cotangent for n, cotangent in pairs.items() if cotangent is not None}

    def gradients(self, cotangents: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor | None]:
        """Return the gradients by torch.autograd.grad, which takes the options; `cotangents` has names of outputs."""
        outs = [self.outputs[n] for n in cotangents]
        leaves, weights = list(self.leaves.values()), list(cotangents.values())
        found = torch.autograd.grad(outs, leaves, weights, allow_unused=True, **options)
        return self.named(dict(zip(self.leaves, found, strict=True)))

    def has_functions(self) -> bool:
        """Return whether an autograd.Function makes an output."""
        return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in self._nodes())

    def uses(self, leaf: str) -> int:
        """Return how many operations take this leaf; torch adds up their gradients in its type."""
        edges = (edge for node in self._nodes() for edge, _ in node.next_functions)
        return sum(getattr(edge, "variable", None) is self.leaves[leaf] for edge in edges)

    def _nodes(self) -> set[Any]:
        """Return the nodes that the outputs depend on."""
        nodes: list[Any] = [t.grad_fn for t in self.outputs.values() if isinstance(t, Tensor)]
        seen: set[Any] = set()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen:
                seen.add(node)
                nodes += [one for one, _ in node.next_functions]
        return seen

    def named(self, by_leaf: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Return the gradients of leaves as outputs of the backward; raises ValueError if x and residual have two.

        Where x is dropped out first, each has its own.
        """
        by_leaf = dict(by_leaf)
        if self.op.dropout is None and not self.op.user_defined:
            found = [by_leaf.pop(name) for name in ("x", "residual") if name in by_leaf]
            if len(found) == 2 and not _same(*found):
                raise ValueError("the gradients of x and residual differ; both are that of their sum")
            by_leaf |= {"x": found[0]} if found else {}
        return {t.name: None for t in self.op.outputs} | {f"d{n}": gradient for n, gradient in by_leaf.items()}


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and same_values(one, other))


def offered(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a forward pass is offered at what its backward `op` is given.

    The backward of a fused addition knows only the sum: x is the sum, and residual is zero, unless both are given; the
    other way round where x is dropped out first.
    BatchNorm's forward changes the running statistics, so it gets copies.
    """
    offer = {**given, "momentum": MOMENTUM}
    if "residual_out" in given and "residual" not in given:
        summed, zero = summands(op)
        offer |= {summed: given["residual_out"], zero: torch.zeros_like(given["residual_out"])}
    return offer | {n: offer[n].clone() for n in ("running_mean", "running_var") if offer.get(n) is not None}


def recorded(
    call: Call, op: Op, given: Mapping[str, Any], frozen: tuple[str, ...], alone: str = "", *, inside: bool = False
) -> Graph:
    """Return the graph of a forward pass at what the backward `op` is given; raises TypeError as `returned.named`.

    `alone`, x or residual, is that of the two which needs a gradient. `inside` a model weight and bias are parameters,
    and other inputs are results of another layer.
    """
    offer = offered(op, given)
    leaves, shared = {}, op.dropout is None and not op.user_defined  # one gradient of x and residual
    for n in dict.fromkeys(("x", "residual", *differentiable(op)[1:])):
        if offer.get(n) is not None:
            offer[n] = offer[n].detach()
            other = bool(alone) and n in ("x", "residual") and n != alone
            if ("x" if n == "residual" and shared else n) not in frozen and not other:
                leaves[n] = offer[n] = offer[n].requires_grad_()
                if inside and n in PARAMETERS:
                    leaves[n] = offer[n] = torch.nn.Parameter(offer[n])
    with torch.enable_grad():
        if inside:
            offer |= {n: leaf.clone() for n, leaf in leaves.items() if n not in PARAMETERS}
        outputs = named(call(offer), forward_of(op))
    if isinstance(outputs, str):
        raise TypeError(outputs)
    return Graph(op, offer, leaves, outputs)


def backward(call: Call, op: Op, *, inside: bool = False) -> Call:
    """Return the backward `op` of a forward pass; it also takes `frozen`. `inside` is as of `recorded`."""

    def gradients(given: Mapping[str, Any]) -> dict[str, Tensor | None]:
        frozen = given["frozen"]
        graph = recorded(call, op, given, frozen, inside=inside)
        if not graph.leaves:
            return graph.named({})
        for n in graph.cotangents(given):
            output = graph.outputs.get(n)
            if output is None:
                raise RefusedError(f"it returns no {n}, {GIVEN}")
            if not output.requires_grad:
                problem = f"its {n} {UNRECORDED} how it was made"
                if not recorded(call, op, given, ()).outputs[n].requires_grad:
                    raise RefusedError(f"{problem}; --op {forward_of(op).name} checks the forward alone")
                raise TypeError(f"{problem} if {' and '.join(frozen)} need none")
        return graph.gradients(graph.cotangents(given))

    return gradients
