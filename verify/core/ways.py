"""The ways that checks take in further runs, by the words that name them in a case, in messages and in reports.

Where `CaseSpec.further` has a check, the case's field names the way that the check takes: "" stands for all of them, as
in a line written by hand, "quick" for those that are not `EXPENSIVE`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import prod
from typing import Any

from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

Offered = Mapping[str, tuple[str, ...]]  # the ways of each field
QUICK = "quick"
NO_GRAD, INFERENCE = "under torch.no_grad()", "under torch.inference_mode()"
AUTOCAST, DETERMINISTIC = "under autocast", "with deterministic algorithms"
THREADED = "with other numbers of threads of torch"
EVALUATING, UNTRACKED = "in evaluation, after eval()", "in evaluation, without running statistics"
COPIED, SHALLOW = "in a copy.deepcopy of the module", "in a copy.copy of the module"
SAVED, LOADED = "in the module as torch.save and torch.load return it", "in another module that loads its state_dict"
COPIES = (COPIED, SHALLOW, SAVED, LOADED)
WIDER, LOWERED = "with float64 as torch's default type", "with float32 matrix products of precision high"
COMPILED, REPLAYED = "under torch.compile", "in a CUDA graph with new values"
BATCHED, ALL_BATCHED = "under torch.func.vmap", "under torch.func.vmap of all tensors"
PARAMETERS_BATCHED = "under torch.func.vmap of the parameters"  # as of an ensemble of models
OF_VMAP = (BATCHED, ALL_BATCHED, PARAMETERS_BATCHED)
UNRECORDED = f"{NO_GRAD} where all inputs require a gradient"  # as in a checkpoint's first run
UNTRAINED = f"{NO_GRAD} where the parameters require a gradient"  # as where a trained module is evaluated
INSIDE = "where x requires a gradient and is another layer's result"
VALUES, NEW_PARAMETERS, MANY = "new values in place", "new weight and bias in place", "many calls"
TWO_THREADS, BETWEEN = "two threads", "a call of another shape between"
AS_USUAL, AS_IN_INFERENCE = "as usual", "as in inference"
AGAIN, OVERWRITTEN, PARAMETERS_OVERWRITTEN = "two backwards", "data overwritten", "weight or bias overwritten"
SECOND, SOME_OUTPUTS, FORWARD_MODE = "second derivatives", "cotangents of some outputs", "forward mode"
INTERLEAVED, MOVED = "another forward before the backward", "saved tensors moved"
ELSEWHERE = "backward in another thread"
SPLIT = "x and residual apart"
GROWTH, COUNTED, OPERATORS = "growth with each call", "count of batches", "operators of the compiled kernel"
NEW_TENSORS, SAME_TENSORS = "a series in new tensors", "a series in the same tensors"

# The check of each field that names a way.
CHECKS = {
    "mode": "modes",
    "call": "calls",
    "called": "calls",
    "autograd": "autograd",
    "effect": "effects",
    "series": "honesty",
}
WAYS = {
    "mode": (
        *(NO_GRAD, INFERENCE, AUTOCAST, DETERMINISTIC, THREADED, WIDER, LOWERED, *COPIES),
        *(EVALUATING, UNTRACKED, COMPILED),
        # A forward also has a mode for each set of inputs that alone require a gradient: see `_leaves_of`.
        *(*OF_VMAP, REPLAYED, UNRECORDED, UNTRAINED, INSIDE),
    ),
    "call": (VALUES, NEW_PARAMETERS, MANY, TWO_THREADS, BETWEEN),
    "called": (AS_USUAL, AS_IN_INFERENCE),
    "autograd": (
        *(
            AGAIN,
            OVERWRITTEN,
            PARAMETERS_OVERWRITTEN,
            SECOND,
            SOME_OUTPUTS,
            INTERLEAVED,
            FORWARD_MODE,
            MOVED,
            ELSEWHERE,
        ),
        SPLIT,
    ),
    "effect": (GROWTH, COUNTED, OPERATORS),
    "series": (NEW_TENSORS, SAME_TENSORS),
}
# What earlier versions called a way, in replay lines that still run.
OLD_NAMES = {"with 3 threads of torch": THREADED}
# Ways that cost as much as all others together: of a table's cases that choose among ways, one in this many takes it.
EXPENSIVE = {COMPILED: 5, REPLAYED: 12, OPERATORS: 4}
# The same for random cases, which come after the table and all pairs of choices: these have taken each way with every
# type, and a trace by Dynamo takes as long as some twenty random cases.
EXPENSIVE_IN_RANDOM = {**EXPENSIVE, COMPILED: 60, OPERATORS: 20}
AT_ONCE = {"mode": 2**8, "autograd": 2**7}  # elements of x: a case of so few takes all ways that are quick
PARAMETERS = ("weight", "bias")  # of a module
LEAVES = ("x", "residual", "weight", "bias", "gate", "scale", "shift")  # what a forward pass differentiates


def leaves(names: tuple[str, ...]) -> str:
    """Return the mode in which these inputs, and no others, require gradients.

    >>> leaves(("x", "weight"))
    'where x, weight alone require a gradient'
    """
    return f"where {', '.join(names)} alone require{'s' * (len(names) == 1)} a gradient"


@cache
def sets_of_leaves() -> dict[str, tuple[str, ...]]:
    """Return every set of inputs that a mode may let require gradients, by the mode."""
    sizes = range(len(LEAVES), 0, -1)
    return {leaves(names): names for size in sizes for names in combinations(LEAVES, size)}


RECORDED = frozenset({INSIDE, *(mode for mode, names in sets_of_leaves().items() if "x" in names)})  # with a graph


def known(field: str) -> tuple[str, ...]:
    """Return what a field of a case may say besides "", whatever the operator."""
    more = (*sets_of_leaves(), *OLD_NAMES) if field == "mode" else ()
    return (*WAYS[field], *more, *[QUICK] * (field in AT_ONCE))


def offered(op: Op, *, autograd: bool = False, gpu: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the ways for cases of an operator, by field, on a GPU or a CPU; `autograd`: torch makes its gradients."""
    own_backward, channels = op.forward is not None and not autograd, op.view == "channels"
    state = any(tensor.role == "state" for tensor in op.inputs)
    no_leaves = op.forward is not None  # a backward is called where nothing is recorded
    without = dict.fromkeys(WAYS["autograd"], not autograd) | {
        NO_GRAD: autograd,
        INFERENCE: autograd,
        THREADED: gpu,
        REPLAYED: autograd or not gpu,
        **dict.fromkeys(COPIES, own_backward),
        EVALUATING: own_backward or channels,  # BatchNorm evaluates something else
        UNTRACKED: own_backward or not channels,
        **dict.fromkeys(OF_VMAP, state),
        UNRECORDED: no_leaves,
        UNTRAINED: no_leaves,
        INSIDE: no_leaves and not autograd,
        AS_USUAL: op.forward is not None,
        AS_IN_INFERENCE: op.forward is not None,
        SPLIT: not autograd or op.dropout is not None or all(tensor.name != "residual_out" for tensor in op.inputs),
        COUNTED: op.forward is not None or not channels,
    }
    found = {field: tuple(way for way in ways if not without.get(way)) for field, ways in WAYS.items()}
    if not no_leaves:
        found["mode"] += _leaves_of(op)
    return found


def every(op: Op) -> Offered:
    """Return the ways of all kernels of an operator, by field."""
    some = [offered(op, autograd=autograd, gpu=gpu) for autograd in (False, True) for gpu in (False, True)]
    return {field: tuple(dict.fromkeys(way for one in some for way in one[field])) for field in WAYS}


def _leaves_of(op: Op) -> tuple[str, ...]:
    """Return a mode for each set of inputs that require gradients: of 5 and more all, all but one, and one alone."""
    own = {"x", "residual", "weight", "bias", *op.trained_inputs}
    names = [tensor.name for tensor in op.inputs if tensor.name in own]
    some = [name for name in LEAVES if name in names]
    sizes = range(len(some), 0, -1) if len(some) < 5 else (len(some), len(some) - 1, 1)  # all would be 31 and more
    return tuple(leaves(names) for size in sizes for names in combinations(some, size))


def fits(way: str, spec: CaseSpec) -> bool:
    """Return whether a case can take a way of its operator's."""
    if way == AUTOCAST:
        return spec.dtype != "float16"  # one 16-bit type
    if way == UNTRACKED:
        return not spec.running
    if way == PARAMETERS_BATCHED and not spec.weight:
        return False
    if way in OF_VMAP:  # in 16 bits torch's own norms round once more there, between x̂ and the weight
        return {spec.dtype, spec.weight_dtype} <= {"float32", None}
    if way == UNTRAINED:
        return spec.weight or spec.bias
    names = sets_of_leaves().get(way, ())
    return (spec.weight or "weight" not in names) and (spec.bias or "bias" not in names)


def taken(spec: CaseSpec, field: str, ways: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the ways of a field that the case names.

    >>> taken(CaseSpec((2, 3), mode="quick"), "mode", ("under autocast", "under torch.compile"))
    ('under autocast',)
    """
    return meant(getattr(spec, field), ways)


def meant(value: str, ways: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the ways of a field that its value names."""
    value = OLD_NAMES.get(value, value)
    return tuple(way for way in ways if value in ("", way) or (value == QUICK and way not in EXPENSIVE))


def named(spec: CaseSpec, offered: Offered, choose: Callable[[str, tuple[str, ...]], str]) -> CaseSpec:
    """Return the case with what `choose` makes of a field and its values, for each of its further runs with ways."""
    chosen: dict[str, Any] = {}
    for field, some in offered.items():
        able = tuple(way for way in some if fits(way, spec)) if CHECKS[field] in spec.further else ()
        if able:
            few = 0 < prod(spec.shape) <= AT_ONCE.get(field, 0)
            chosen[field] = choose(field, (QUICK, *(way for way in able if way in EXPENSIVE)) if few else able)
    return replace(spec, **chosen)


def pick(values: tuple[str, ...], number: int, shares: Mapping[str, int] = EXPENSIVE) -> str:
    """Return the value that a number stands for: an expensive one in its share of them, the others equally often.

    >>> [pick(("a", "b", COMPILED), number) for number in range(5)]
    ['a', 'b', 'under torch.compile', 'a', 'b']
    """
    for way, share in shares.items():
        if way in values:
            turns, place = divmod(number, share)
            if place == share // 2:
                return way
            number -= turns + (place > share // 2)
    usual = [way for way in values if way not in EXPENSIVE]
    return usual[number % len(usual)]
