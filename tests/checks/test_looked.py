"""In a default run each check has something to look at in each of its ways, and passes a right kernel."""

from itertools import combinations

import pytest
from choices import default_run
from exact import differentiated, exact

from verify_norm.checks import CHECKS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER
from verify_norm.search.examine import examine

CALLS = {
    *("new values in place", "new weight and bias in place", "many calls", "two threads"),
    "a call of another shape between",
}
MODES = {"under torch.no_grad()", "under torch.inference_mode()", "under autocast", "under torch.compile"}
GRAPHS = {
    *("two backwards", "data overwritten", "weight or bias overwritten", "second derivatives"),
    "another forward before the backward",
}
FUSED = {"cotangents of some outputs", "x and residual apart"}
ONE_OF_EACH_TABLE = ["add_layernorm_fwd", "layernorm_bwd"]
ONE_OF_EACH_TABLE += [f"{norm}_{way}" for norm in ("groupnorm", "instancenorm", "batchnorm") for way in ("fwd", "bwd")]


@pytest.fixture
def looked():
    """What the checks, and the ways that some of them take, leave out in a default run of a kernel; the findings."""

    def of(kernel, left, ways=()):
        left, ways, findings = set(left), set(ways), []
        for spec in default_run(OPS[kernel.op], frozen=kernel.autograd):
            asked = {*left, *(check for check, _ in ways)}
            if not asked:
                break
            asked = tuple(name for name in CHECKS if name in asked and (name not in FURTHER or name in spec.further))
            if asked:
                examined = examine(kernel, kernel.fitted(spec), asked, "cpu")
                findings += examined.findings
                left.difference_update(examined.looked)
                ways.difference_update(examined.ways)
        return left, ways, findings

    return of


def leaves(op):
    """Return what `modes` says of the sets of inputs of a forward that require gradients, where torch allows it."""
    if op.forward or any(tensor.role == "state" for tensor in op.inputs):
        return []
    names = [tensor.name for tensor in op.inputs if tensor.name in ("x", "residual", "weight", "bias")]
    sets = [some for size in range(len(names)) for some in combinations(names, size + 1)]
    return [f"where {', '.join(some)} alone require{'s' * (len(some) == 1)} a gradient" for some in sets]


@pytest.mark.sampled(9)
@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_each_check_looks_at_a_right_kernel_and_passes_it(name, looked):
    checks = {check.name for check in CHECKS.values() if check.applies(OPS[name])}
    checks -= {"crash", "autograd"}  # which look where there is another process, and a graph
    assert looked(exact(name), checks) == (set(), set(), [])


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH_TABLE)
def test_calls_and_modes_are_tried_in_each_way(name, looked):
    ways = [("calls", way) for way in CALLS] + [("modes", way) for way in (*MODES, *leaves(OPS[name]))]
    assert looked(exact(name), (), ways) == (set(), set(), [])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.forward])
def test_a_graph_is_tried_in_each_way(name, looked):
    ways = GRAPHS | (FUSED if name.startswith("add_") else set())
    ways -= set() if OPS[name].lawful else {"second derivatives"}
    left, untried, _ = looked(differentiated(name), {"autograd"}, [("autograd", way) for way in ways])
    assert (left, untried) == (set(), set())
