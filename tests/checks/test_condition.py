"""Condition numbers against what their definitions say of one element, in every view of the data."""

import time
from dataclasses import replace
from math import inf, isnan, prod

import numpy as np
import pytest

from verify_norm.cases import make
from verify_norm.checks import condition as conditions
from verify_norm.checks.condition import condition, of_finding, of_tally
from verify_norm.core.finding import Condition, Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Place, Tally

SPEC = CaseSpec((6, 10), offset=5.0, eps=0.5)


def exact(op, spec):
    """The exact inputs; those that are None are left out."""
    return {name: values for name, values in make.exact_inputs(spec, OPS[op]).items() if values is not None}


def of(op, output, index, spec=SPEC):
    return condition(Kernel("k", op), spec, output, index)


def row(x, eps=0.5):
    mean, var = x.mean(), x.var()
    return mean, var, 1 / np.sqrt(var + eps)


def test_an_element_of_y():
    e = exact("layernorm_fwd", SPEC)
    mean, var, r = row(e["x"][2])
    terms = e["weight"][7] * r * e["x"][2, 7], -e["weight"][7] * r * mean, e["bias"][7]
    found = of("layernorm_fwd", "y", (2, 7))
    assert found.cancellation == pytest.approx(np.abs(terms).sum() / abs(sum(terms)))
    assert (found.offset, found.variance) == pytest.approx((abs(mean) / np.sqrt(var), var / (var + 0.5)))


def test_statistics():
    x = exact("layernorm_fwd", SPEC)["x"][3]
    assert of("layernorm_fwd", "mean", (3,)).cancellation == pytest.approx(np.abs(x).sum() / abs(x.sum()))
    assert of("layernorm_fwd", "rstd", (3,)).cancellation == 1.0


def test_gradients():
    e = exact("layernorm_bwd", SPEC)
    stats = [row(x) for x in e["x"]]
    xhat = np.array([(x - mean) * r for x, (mean, _, r) in zip(e["x"], stats, strict=True)])
    terms = e["dy"][:, 4] * xhat[:, 4]
    found = of("layernorm_bwd", "dweight", (4,))
    assert found.cancellation == pytest.approx(np.abs(terms).sum() / abs(terms.sum()))
    assert found.offset == pytest.approx(max(abs(mean) / np.sqrt(var) for mean, var, _ in stats))
    assert found.variance == pytest.approx(min(var / (var + 0.5) for _, var, _ in stats))
    g = e["dy"][1] * e["weight"]
    terms = g[4], -g.mean(), -xhat[1, 4] * (g * xhat[1]).mean()
    assert of("layernorm_bwd", "dx", (1, 4)).cancellation == pytest.approx(np.abs(terms).sum() / abs(sum(terms)))
    dy = e["dy"][:, 4]
    assert of("layernorm_bwd", "dbias", (4,)) == Condition(pytest.approx(np.abs(dy).sum() / abs(dy.sum())), None, None)


def test_a_group_and_a_channel_have_numbers_of_their_own():
    spec = CaseSpec((2, 6, 5), num_groups=3, offset=2.0, eps=0.5)
    x = exact("groupnorm_fwd", spec)["x"]
    for op, part in (("groupnorm_fwd", x[1, 2:4]), ("batchnorm_fwd", x[:, 3])):
        mean, var, _ = row(part)
        found = of(op, "y", (1, 3, 4), spec)
        assert (found.offset, found.variance) == pytest.approx((abs(mean) / np.sqrt(var), var / (var + 0.5)))
    assert of("groupnorm_fwd", "mean", (1, 1), spec).offset == pytest.approx(abs(x[1, 2:4].mean()) / x[1, 2:4].std())


def test_a_fused_addition_and_a_norm_without_a_mean():
    e = exact("add_rmsnorm_fwd", SPEC)
    x, residual = e["x"][2, 7], e["residual"][2, 7]
    found = of("add_rmsnorm_fwd", "residual_out", (2, 7))
    assert found == Condition(pytest.approx((abs(x) + abs(residual)) / abs(x + residual)), None, None)
    square = np.mean((e["x"][2] + e["residual"][2]) ** 2)
    variance = pytest.approx(square / (square + 0.5), rel=1e-6)
    assert of("add_rmsnorm_fwd", "y", (2, 7)) == Condition(pytest.approx(1.0), None, variance)


def test_gradients_behind_a_gate_before_the_norm_have_the_terms_of_its_own():
    """Those of dh are multiplied by SiLU(gate), or by x·SiLU'(gate): where that is 0 nothing cancels."""
    e = exact("gate_rmsnorm_bwd", SPEC)
    h = e["x"] * e["gate"] / (1 + np.exp(-e["gate"]))
    r, g = 1 / np.sqrt(np.mean(h[1] ** 2) + 0.5), e["dy"][1] * e["weight"]
    terms = g[4], -h[1, 4] * r * np.mean(g * h[1] * r)
    cancels = pytest.approx(np.abs(terms).sum() / abs(sum(terms)))
    assert of("gate_rmsnorm_bwd", "dx", (1, 4)).cancellation == cancels
    assert of("gate_rmsnorm_bwd", "dgate", (1, 4)).cancellation == cancels
    zero = replace(SPEC, data="zero", offset=0.0)
    assert of("gate_rmsnorm_bwd", "dgate", (1, 4), zero).cancellation == 1.0


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_output_of_every_operator_has_a_condition(op):
    spec = CaseSpec((2, 4, 6), num_groups=2)
    case = make.case(spec, OPS[op], Kernel("k", op).contract)
    for name, expected in case.expected.items():
        if expected is not None:
            found = of(op, name, (0,) * expected.value.ndim, spec)
            assert found.cancellation is None or found.cancellation >= 1 - 1e-12
            assert name in ("amax", "y_scale", "running_mean", "running_var") or found.cancellation is not None


def test_without_an_element_the_worst_row_counts():
    x = exact("layernorm_fwd", SPEC)["x"]
    found = of("layernorm_fwd", "y", None)
    assert found.cancellation is None
    assert found.offset == pytest.approx(max(abs(r.mean()) / r.std() for r in x))
    assert of("layernorm_fwd", "y", (3,)) == of("layernorm_fwd", "y", (9, 9)) == found  # no elements of y


def test_data_without_a_variance_and_without_numbers():
    constant = of("layernorm_fwd", "y", (0, 0), CaseSpec((3, 8), data="constant", eps=1e-3))
    assert constant.offset > 1e6
    assert constant.variance < 1e-6
    assert of("layernorm_bwd", "dx", (0, 0), CaseSpec((3, 8), data="zero")).offset == 0
    assert isnan(of("layernorm_fwd", "y", (0, 0), CaseSpec((3, 8), special="nan")).cancellation)
    assert of("layernorm_fwd", "y", (0, 0), CaseSpec((0, 8))) is None
    assert of("batchnorm_fwd", "y", (0, 0), CaseSpec((3, 8), training=False)) is None


def test_tallies_and_findings_about_values_get_them():
    kernel = Kernel("k", "layernorm_fwd")
    tally = Tally("y", "float32", worst=SPEC, index=(2, 7), farthest=Place(SPEC, (1, 1)))
    found = of_tally(kernel, tally)
    assert found.condition == of("layernorm_fwd", "y", (2, 7))
    assert found.farthest.condition == of("layernorm_fwd", "y", (1, 1))
    assert of_tally(kernel, Tally("y", "float32")).condition is None
    finding = Finding("k", "accuracy", "y", "fail", "wrong", SPEC, index=(2, 7), ulp=inf)
    assert of_finding(kernel, finding).condition == found.condition
    for other in (Finding("k", "crash", None, "error", "", SPEC), Finding("k", "signature", "y", "fail", "", SPEC)):
        assert of_finding(kernel, other) == other


@pytest.mark.parametrize("numbers", [{"index": (2, 7)}, {"ulp": 3.0}, {"index": (2, 7), "ulp": 3.0}])
def test_a_finding_about_values_has_an_index_or_a_distance(numbers):
    kernel, finding = Kernel("k", "layernorm_fwd"), Finding("k", "accuracy", "y", "fail", "wrong", SPEC, **numbers)
    assert of_finding(kernel, finding).condition == of("layernorm_fwd", "y", numbers.get("index"))


def test_conditions_of_several_come_in_their_order(monkeypatch):
    """In threads, but for large cases, of which one at a time has its arrays."""
    monkeypatch.setattr(conditions, "LARGE", 16)
    at_once, most, norm = [], [], conditions.norm
    kernel, shapes = Kernel("k", "rmsnorm_fwd"), [(2, 3), (2, 9), (3, 9), (1, 4), (4, 9)]

    def watched(run):
        large = prod(run.case.spec.shape) > 16
        at_once.append(large)
        time.sleep(0.01)
        most.append(sum(at_once))
        at_once.remove(large)
        return norm(run)

    monkeypatch.setattr(conditions, "norm", watched)
    findings = [Finding("k", "accuracy", "y", "fail", "", CaseSpec(shape), index=(0, 1)) for shape in shapes]
    found = conditions.each(of_finding, kernel, findings)
    assert [one.spec.shape for one in found] == shapes
    assert [one.condition for one in found] == [of("rmsnorm_fwd", "y", (0, 1), one.spec) for one in findings]
    assert max(most) == 1


def test_what_is_no_output_has_no_condition():
    assert of("layernorm_fwd", "z", None) is None


def test_y_without_a_weight_has_terms_of_x_alone():
    spec = replace(SPEC, weight=False, bias=False)
    x = exact("layernorm_fwd", spec)["x"][2]
    found = of("layernorm_fwd", "y", (2, 7), spec)
    assert found.cancellation == pytest.approx((abs(x[7]) + abs(x.mean())) / abs(x[7] - x.mean()))


def test_the_scale_and_shift_of_a_sample_serve_its_tokens_alone():
    spec = replace(SPEC, shape=(2, 3, 10))
    e = exact("modulate_layernorm_bwd", spec)
    stats = [row(x) for x in e["x"][1]]
    found = of("modulate_layernorm_bwd", "dscale", (1, 4), spec)
    assert found.offset == pytest.approx(max(abs(mean) / np.sqrt(var) for mean, var, _ in stats))
    assert found.variance == pytest.approx(min(var / (var + 0.5) for _, var, _ in stats))
    dy = e["dy"][1, :, 4]
    cancels = pytest.approx(np.abs(dy).sum() / abs(dy.sum()))
    assert of("modulate_layernorm_bwd", "dshift", (1, 4), spec) == Condition(cancels, None, None)


def test_a_scale_of_a_block_has_the_statistics_of_its_row():
    spec = replace(SPEC, shape=(2, 200))
    e = exact("add_rmsnorm_quant_group_fwd", spec)
    squares = np.mean((e["x"] + e["residual"]) ** 2, axis=1)
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        found = of("add_rmsnorm_quant_group_fwd", "y_scale", place, spec)
        assert found.variance == pytest.approx(squares[place[0]] / (squares[place[0]] + 0.5), rel=1e-6)


def test_the_largest_of_all_has_the_worst_statistics():
    x = exact("layernorm_fp8_fwd", SPEC)["x"]
    offsets = [abs(one.mean()) / one.std() for one in x]
    assert offsets[0] < max(offsets)
    for index in ((0,), None):
        assert of("layernorm_fp8_fwd", "amax", index).offset == pytest.approx(max(offsets))


def test_eps_beside_a_sum_of_squares():
    x = exact("l2norm_fwd", SPEC)["x"][3]
    found = of("l2norm_fwd", "y", (3, 1), replace(SPEC, eps=40.0))
    assert found.variance == pytest.approx((x @ x) / (x @ x + 40.0))


def test_a_gradient_that_is_passed_on_is_a_term_of_dx():
    e = exact("add_rmsnorm_bwd", SPEC)
    h, g = e["residual_out"][1], e["dy"][1] * e["weight"]
    r = 1 / np.sqrt(np.mean(h**2) + 0.5)
    terms = r * g[4], -r * h[4] * r * np.mean(g * h * r), e["dresidual_out"][1, 4]
    found = of("add_rmsnorm_bwd", "dx", (1, 4))
    assert found.cancellation == pytest.approx(np.abs(terms).sum() / abs(sum(terms)))


def test_behind_an_activation_the_terms_of_dbias_are_its_gradients():
    spec = replace(SPEC, shape=(6, 2, 5), num_groups=1)
    e = exact("groupnorm_silu_bwd", spec)
    z = [((x - x.mean()) * row(x)[2])[1] * e["weight"][1] + e["bias"][1] for x in e["x"]]
    s = 1 / (1 + np.exp(-np.array(z)))
    dz = e["dy"][:, 1] * s * (1 + z * (1 - s))
    found = of("groupnorm_silu_bwd", "dbias", (1,), spec)
    assert found.cancellation == pytest.approx(np.abs(dz).sum() / abs(dz.sum()))


def test_a_gradient_that_a_factor_of_0_makes_0_has_no_terms_that_cancel():
    """dgate has the factor x, dx has not."""
    spec = replace(SPEC, data="integers", offset=0.0)
    e = exact("gate | layernorm_bwd", spec)
    indices = [tuple(map(int, index)) for index in np.argwhere((e["x"] == 0) & (e["gate"] != 0))]
    dgate, dx = ([of("gate | layernorm_bwd", name, i, spec).cancellation for i in indices] for name in ("dgate", "dx"))
    assert {*dgate} == {1.0}
    assert max(dx) > 1.1


def test_a_gate_is_multiplied_by_all_terms_of_what_it_is_applied_to():
    op = "layernorm | gate_bwd"
    e = exact(op, SPEC)
    mean, _, r = row(e["x"][2])
    terms = e["weight"][7] * r * e["x"][2, 7], -e["weight"][7] * r * mean, e["bias"][7]
    assert of(op, "dgate", (2, 7)).cancellation == pytest.approx(np.abs(terms).sum() / abs(sum(terms)))


def test_a_gate_behind_another_stage_is_multiplied_by_the_terms_of_that():
    op = "layernorm | modulate | gate_bwd"
    e = exact(op, SPEC)
    mean, _, r = row(e["x"][2])
    terms = e["weight"][7] * r * e["x"][2, 7], -e["weight"][7] * r * mean, e["bias"][7]
    scale, shift = (np.broadcast_to(e[name], e["x"].shape)[2, 7] for name in ("scale", "shift"))
    terms = *terms, *(scale * term for term in terms), shift
    assert of(op, "dgate", (2, 7)).cancellation == pytest.approx(np.abs(terms).sum() / abs(sum(terms)))
    assert of("layernorm | silu | gate_bwd", "dgate", (2, 7)).cancellation == 1.0


def test_a_stage_behind_a_gate_leaves_what_cancels_before_it():
    """It multiplies dy, and so all terms alike."""
    alone, before = (of(op, "dgate", (2, 7)) for op in ("layernorm | gate_bwd", "layernorm | gate | silu_bwd"))
    assert before.cancellation == pytest.approx(alone.cancellation)
    assert alone.cancellation > 1.0
