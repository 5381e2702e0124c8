"""What a finding says: which element, what it is, what was expected, how far that is; the worst one is named."""

import re
from dataclasses import replace

import numpy as np
import pytest
from counted import PLAIN, SPEC, TWO_PASS, N, X, case_of, run_of

from verify_norm.cases import make
from verify_norm.checks import CHECKS, degenerate, gradient, identities, sums
from verify_norm.checks.relations.forward import Moved
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

LONG, WIDE = CaseSpec((512, 3)), CaseSpec((3, 512), weight=False, bias=False)


def off(shape, *errors):
    """So much in these places: two elements are wrong, and the second more."""
    array = np.zeros(shape)
    for place, error in errors:
        array[place] = error
    return array


def run_with(spec, op, **errors):
    case = make.case(spec, OPS[op], TWO_PASS)
    return run_of(case, **{name: off(case.expected[name].value.shape, *some) for name, some in errors.items()})


# Of a check: the run, the output that is wrong, the place that it names, whether that is an element, and in words.
NAMED = {
    "accuracy": (run_with(SPEC, "layernorm_fwd", y=[((0, 1), 0.1), ((2, 3), -0.5)]), "y", (2, 3), True, "y[2, 3]"),
    "statistics": (run_with(SPEC, "layernorm_fwd", rstd=[((1,), 0.1), ((3,), -0.5)]), "rstd", (3,), True, "rstd[3]"),
    "sums": (run_with(LONG, "layernorm_bwd", dweight=[((0,), 0.1), ((1,), -9.0)]), "dweight", (1,), True, "dweight[1]"),
    "sums of rows": (
        run_with(WIDE, "layernorm_bwd", dx=[((0, 1), 0.1), ((1, 7), -9.0)]),
        "dx",
        (1,),
        False,
        "Σdx of row 1",
    ),
    "identities": (
        run_with(PLAIN, "layernorm_bwd", dx=[((0, 1), 0.1), ((2, 1), -9.0)]),
        "dx",
        (2,),
        False,
        "dx of row 2",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_finding_names_the_worst_element_and_its_numbers(name):
    run, output, index, of_element, place = NAMED[name]
    check = name.partition(" ")[0]
    found = next(one for one in CHECKS[check].function(run) if isinstance(one, Finding))
    assert (found.kernel, found.check, found.output, found.status) == ("k", check, output, "fail")
    assert (found.spec, found.index) == (run.case.spec, index)
    assert found.message.startswith(f"{place} is " if check in ("accuracy", "statistics") else f"{place}: expected ")
    got, want = run.outputs[output].got, run.case.expected[output].value
    error = abs(found.got - found.want)
    if of_element:
        assert (found.got, found.want) == (got[index], want[index])
        unit = float(FORMATS["float32"].ulp(np.array(want[index])))
        assert found.ulp == pytest.approx(error / unit)
        assert 0 < found.allowed < found.ulp
        if check == "sums":
            assert f"{found.allowed * unit:.3g} allowed" in found.message
    else:
        assert found.ulp is None
        assert error == pytest.approx(9.0, rel=0.01)
        assert 0 < found.allowed < error / 1e3
    if check in ("sums", "identities"):
        assert f"{error:.3g} apart" in found.message
        counts = [int(one) for one in re.search(r"(\d+) of (\d+) are off", found.message).groups()]
        assert counts == [2, run.case.expected[output].value.size if of_element else run.case.spec.shape[0]]


def test_a_rule_names_the_element_that_breaks_it():
    run = run_of(make.case(replace(PLAIN, data="zero", eps=0.0), OPS["rmsnorm_fwd"], Contract()))
    right = {name: replace(one, got=np.full(one.shape, np.nan)) for name, one in run.outputs.items()}
    wrong = {"y": replace(right["y"], got=off(X.shape, ((0, 0), np.nan), ((0, 1), 7.0)))}
    for outputs, index in ((right, None), (right | wrong, (0, 1))):
        found = [one for one in degenerate.degenerate(replace(run, outputs=outputs)) if isinstance(one, Finding)]
        assert [one.index for one in found] == [index] * (index is not None)
        assert all(one.got == 7.0 and np.isnan(one.want) and "7" in one.message for one in found)


def test_few_lanes_are_proposed_where_they_would_explain_it():
    for error, proposed in ((1e-3, True), (9.0, False)):
        run = run_with(LONG, "layernorm_bwd", dbias=[((2,), error)])
        (found,) = (one for one in CHECKS["sums"].function(run) if isinstance(one, Finding))
        assert ("declare lanes" in found.message) == proposed
        assert ("--contract summation=sequential" in found.message) == proposed
    row = run_with(WIDE, "layernorm_bwd", dx=[((1, 7), 1e-3)])
    (found,) = (one for one in CHECKS["sums"].function(row) if isinstance(one, Finding))
    assert "declare lanes" not in found.message


@pytest.mark.parametrize("worse", ["Σdx = ", "Σdx·x̂ = "])
def test_of_two_sums_the_worse_one_is_named(worse):
    run = run_of(case_of(PLAIN, "layernorm_bwd"))
    towards = {"Σdx = ": np.ones(N), "Σdx·x̂ = ": X[0]}
    dx = run.outputs["dx"]
    error = sum((1.0 if name == worse else 0.1) * direction for name, direction in towards.items())
    wrong = replace(run, outputs=run.outputs | {"dx": replace(dx, got=dx.got + error)})
    (found,) = (one for one in identities.identities(wrong) if isinstance(one, Finding))
    assert f"allowed: {worse}" in found.message


def hole(case, output="dx"):
    """The case, with one element of its first row that nobody judges, since it may overflow."""
    expected, largest = case.expected[output], FORMATS["float32"].largest
    value, delta = (np.array(np.broadcast_to(one, expected.value.shape)) for one in (expected.value, expected.delta))
    value[0, 0], delta[0, 0] = largest, largest / 8
    return replace(case, expected=case.expected | {output: replace(expected, value=value, delta=delta)})


def test_a_row_with_an_element_that_is_not_judged_has_no_sum():
    """And no other row loses its own."""
    case = hole(case_of(PLAIN, "layernorm_bwd"))
    found = [one.tolerance for one in identities._sums(run_of(case))]
    x, dy = np.tile([-1.0, 1.0], (3, 128)), np.tile([-1.0, -1.0, 1.0, 1.0], (3, 64))
    long = hole(case_of(CaseSpec((3, 256), eps=1e-12, weight=False, bias=False), "layernorm_bwd", x=x, dy=dy))
    found += [one.tolerance for one in sums.equations(run_of(long)) if one.name]
    still = np.zeros(X.shape)
    moved = Moved(still, still, still, still)
    found.append(gradient._identity(run_of(case), still + 1, moved, np.full(len(X), gradient.SIGNS), 1.5)[1])
    assert len(found) == 2 + 2 + 1
    assert [np.isfinite(tolerance).tolist() for tolerance in found] == [
        [False, *[True] * (len(one) - 1)] for one in found
    ]


@pytest.mark.parametrize("turn", [0, 1])
def test_the_gradient_is_tried_along_random_signs_and_each_structure(turn):
    spec = replace(PLAIN, shape=(20, N), variant=turn)
    run, n = run_of(make.case(spec, OPS["layernorm_bwd"], TWO_PASS)), N
    v, names = gradient._directions(run, 20, n, np.ones((20, 1)))
    x, g = run.case.exact["x"], run.case.exact["dy"]
    assert [name == gradient.SIGNS for name in names] == [row % 2 == turn for row in range(20)]
    assert set(names) == {gradient.SIGNS, *gradient.STRUCTURED}
    for row, name in enumerate(names):
        shapes = {
            gradient.SIGNS: (np.abs(v[row]) == 1).all() and len(set(v[row])) == 2,
            "one coordinate": np.count_nonzero(v[row]) == 1,
            "the row mean": (v[row] == 1).all(),
            "x̂": np.allclose(v[row], x[row] - x[row].mean()),
            gradient.ALIGNED: (v[row] == np.sign(g[row])).all(),
            "half the row": not v[row, n // 2 :].any() and (np.abs(v[row, : n // 2]) == 1).all(),
        }
        assert shapes[name], name


BOTH = ["Σdx", "Σdx·x̂"]
OF_ROWS = {  # operator, fields of the case and of the contract: the sums over long rows that are compared
    "LayerNorm": ("layernorm_bwd", {}, {}, BOTH),
    "RMSNorm": ("rmsnorm_bwd", {}, {}, BOTH[1:]),  # which subtracts no mean
    "a short row": ("layernorm_bwd", {"shape": (3, 255)}, {}, []),
    "a row of 256": ("layernorm_bwd", {"shape": (3, 256)}, {}, BOTH),
    "a rounding to 16 bits": ("layernorm_bwd", {"dtype": "bfloat16"}, {}, []),
    "x·a + b": ("layernorm_bwd", {}, {"expanded": True}, []),
    "a fused addition": ("add_layernorm_bwd", {}, {}, []),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_which_sums_of_rows_are_compared(name):
    op, fields, contract, names = OF_ROWS[name]
    contract = Contract(**contract)
    run = run_of(make.case(replace(WIDE, **fields), OPS[op], contract), contract)
    assert [one.name for one in sums.equations(run) if one.name] == names


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        ({}, ""),
        ({"partials": "float64", "stats": "float64"}, ""),
        ({"partials": "bfloat16"}, "partials=bfloat16"),
        ({"xhat": "x", "stats": "float16"}, "xhat=x, stats=float16"),
    ],
)
def test_where_sums_round_to_fewer_bits_inside_nothing_is_judged_by_chance(contract, said):
    kernel = Kernel("k", "layernorm_bwd", contract=Contract(**contract))
    words = CHECKS["sums"].lacks(kernel, ())
    assert words.endswith(f"the contract has {said}" if said else "")
    assert bool(words) == bool(said)
