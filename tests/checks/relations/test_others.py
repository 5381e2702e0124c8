"""Cases before or after a run's own: what differs from the run, and by how much."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from verify_norm.cases import make
from verify_norm.checks.relations.others import almost_the_same, nudged, one_alone, other_options, others_between
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec

SPEC = CaseSpec((2, 5), "float32")
TEN = np.arange(1.0, 11).reshape(2, 5)


def made(op="layernorm_fwd", spec=SPEC, exact=None, **kernel):
    """A run of a case with these values, or with those that the spec draws."""
    values = make.exact_inputs(spec, OPS[op]) if exact is None else exact
    return Run(Kernel("k", op, **kernel), Case(spec, OPS[op], {"x": SimpleNamespace(device="cpu")}, values, {}), {})


def places(before, after):
    return np.flatnonzero(before.ravel() != after.ravel()).tolist()


@pytest.mark.parametrize("name", ["x", "weight"])
def test_two_elements_are_swapped_one_grows_and_two_change_sign(name):
    """Neither is the first or the last, and they are half of the others apart; each has its turn."""
    firsts, exact = set(), {"x": TEN, "weight": TEN.ravel(), "bias": np.ones(10)}
    before = exact[name].ravel()
    for seed in range(60):
        cases = list(almost_the_same(made(exact=exact, spec=replace(SPEC, seed=seed)), name))
        again = list(almost_the_same(made(exact=exact, spec=replace(SPEC, seed=seed)), name))
        assert [words for _, words in cases] == [words for _, words in again]
        (swapped, how), (grown, by), (negative, signs) = ((values[name].ravel(), words) for values, words in cases)
        assert all(values.keys() == exact.keys() and values["bias"] is exact["bias"] for values, _ in cases)
        (one,), pair = places(before, grown), places(before, swapped)
        (other,) = set(pair) - {one}
        assert places(before, negative) == pair
        assert swapped[pair].tolist() == before[pair[::-1]].tolist()
        assert negative[pair].tolist() == (-before[pair]).tolist()
        assert (grown[one] / before[one], abs(other - one)) == (1 + 2.0**-12, 4)
        assert all(f"elements {one} and {other} of {name} " in words for words in (how, signs))
        assert f"element {one} of {name} " in by
        assert "1.000244" in by
        firsts.add(one)
    assert firsts == set(range(1, 9))
    assert exact["x"] is TEN
    assert TEN.ravel().tolist() == list(range(1, 11))


@pytest.mark.parametrize(
    ("name", "values", "count"),
    [("x", np.ones((1, 3)), 0), ("x", np.ones((1, 4)), 3), ("weight", None, 0), ("residual", None, 0)],
)
def test_few_elements_are_left_alone(name, values, count):
    assert len(list(almost_the_same(made(exact={name: values}), name))) == count


@pytest.mark.parametrize(("name", "dtype", "step"), [("x", "bfloat16", 2.0**-7), ("weight", "float16", 2.0**-10)])
def test_an_element_grows_by_a_number_of_its_type(name, dtype, step):
    spec = replace(SPEC, dtype="bfloat16", weight_dtype="float16")
    (_, _), (grown, _), _ = almost_the_same(made(exact={name: np.full((2, 5), 1.25)}, spec=spec), name)
    (changed,) = set(grown[name].ravel()) - {1.25}
    assert changed == FORMATS[dtype].round(np.array(1.25 * (1 + step)))
    assert abs(changed - 1.25 * (1 + step)) <= 1.25 * step / 2


def test_elements_that_share_memory_change_together():
    run = made(spec=CaseSpec((3, 5), x_layout="expanded"), exact={"x": np.tile(np.arange(1.0, 6), (3, 1))})
    changed = [values["x"] for values, _ in almost_the_same(run, "x")]
    assert all((x == x[0]).all() for x in changed)


def others_of(run):
    return make.exact_inputs(replace(run.case.spec, seed=run.case.spec.seed ^ 1), run.case.op)


def alone(run, other=None):
    """The inputs that change, one case after another, by their names in words."""
    names = []
    for spec, exact, words in one_alone(run, others_of(run) if other is None else other):
        before = run.case.exact
        changed = {
            name for name, values in exact.items() if (values is None) or not np.array_equal(values, before[name])
        }
        changed -= {name for name, values in before.items() if values is None}
        told = words[: words.index(" alone")].split(" and ")
        assert changed - {"mean", "rstd"} == set(told) - {"eps"}
        assert (spec.eps != run.case.spec.eps) == (told == ["eps"])
        assert replace(spec, eps=run.case.spec.eps) == run.case.spec
        names.append(" ".join(told))
    return names


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("layernorm_fwd", {}, ["x", "weight", "bias", "eps"]),
        ("layernorm_fwd", {"weight": False}, ["x", "bias", "eps"]),
        ("layernorm_fwd", {"alias": "weight:bias"}, ["x", "eps", "weight bias"]),
        ("layernorm_bwd", {}, ["dy", "x", "weight", "bias", "eps"]),
        ("add_rmsnorm_bwd", {}, ["dy", "dresidual_out", "residual_out", "weight", "eps"]),
    ],
)
def test_one_input_after_another_changes_alone_two_in_a_case(op, fields, expected):
    turns = [alone(made(op, replace(SPEC, variant=turn, **fields))) for turn in range(len(expected))]
    order = [first for first, _ in turns]
    assert sorted(order) == sorted(expected)
    assert [second for _, second in turns] == order[1:] + order[:1]


def test_an_eps_that_the_kernel_does_not_take_stays():
    last = replace(SPEC, variant=2)
    assert alone(made(spec=last)) == ["bias", "eps"]
    assert alone(made(spec=last, unsupported=lambda spec: "no" if spec.eps == 1.0 else None)) == ["bias", "x"]
    assert alone(made(spec=last, fit=lambda spec: replace(spec, eps=1e-5))) == ["bias", "x"]


@pytest.mark.parametrize(("eps", "another"), [(0.0, 1.0), (1e-5, 1.0), (0.5, 1e-3), (2.0, 1e-3)])
def test_another_eps_is_far_from_the_cases_own(eps, another):
    (spec, exact, _), _ = one_alone(made("layernorm_bwd", replace(SPEC, eps=eps, variant=4)), {"dy": TEN})
    assert spec.eps == another
    assert exact["rstd"].tolist() == make.saved(spec, OPS["layernorm_bwd"], exact)["rstd"].tolist()


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({}, 4),
        ({"log2_scale": 8}, 4),
        ({"log2_scale": -8}, 4),
        ({"log2_scale": 9}, 1),
        ({"log2_scale": -9}, 1),
        ({"special": "nan"}, 1),
    ],
)
def test_new_values_are_larger_where_x_is_of_a_usual_size(fields, factor):
    (_, exact, _), _ = one_alone(made(spec=replace(SPEC, **fields)), {"x": TEN, "weight": np.ones(5)})
    assert exact["x"].tolist() == (factor * TEN).tolist()


def test_new_values_are_numbers_of_their_type_and_layout():
    spec = CaseSpec((2, 2), "float16", weight_dtype="bfloat16", x_layout="expanded")
    other = {"x": np.array([[60000.0, -60000.0], [1.0, 2.0]]), "weight": np.array([1 + 2.0**-8, 3e38])}
    (_, x, _), (_, weight, _) = one_alone(made(spec=spec), other)
    assert x["x"].tolist() == [[65504.0, -65504.0]] * 2
    assert weight["weight"].tolist() == [4.0, FORMATS["bfloat16"].largest]


def test_cosines_stay_within_one_and_saved_statistics_belong_to_x():
    rotated = made("qk_norm_rope_fwd", CaseSpec((2, 8), variant=2))
    (_, exact, words), _ = one_alone(rotated, others := others_of(rotated))
    assert words.startswith("cos alone")
    assert exact["cos"].tolist() == others["cos"].tolist()
    backward = made("layernorm_bwd", replace(SPEC, variant=1))
    (_, exact, _), _ = one_alone(backward, others_of(backward))
    saved = make.saved(SPEC, OPS["layernorm_bwd"], exact)
    assert exact["mean"].tolist() == saved["mean"].tolist() != backward.case.exact["mean"].tolist()


@pytest.mark.parametrize(
    ("op", "fields", "turns"),
    [
        ("layernorm_fwd", {}, ["bias"]),
        ("layernorm_fwd", {"bias": False}, [None]),
        ("rmsnorm_fwd", {}, [None]),
        ("rmsnorm_fp8_fwd", {}, [None]),  # its scale is one number
        ("gated_rmsnorm_fwd", {}, ["gate"]),
        ("batchnorm_fwd", {}, ["bias", "running_mean", "running_var"]),
        ("layernorm_bwd", {}, ["bias"]),
        ("gated_rmsnorm_bwd", {}, [None]),  # the gate stays as x does
        ("add_rmsnorm_bwd", {}, ["dresidual_out"]),
    ],
)
def test_which_inputs_change_slightly(op, fields, turns):
    main = "dy" if op.endswith("_bwd") else "x"
    for turn, third in enumerate(turns):
        run = made(op, CaseSpec((4, 6), num_groups=3, variant=turn, **fields))
        assert nudged(run) == (main, "weight", *([] if third is None else [third]))


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("layernorm_fwd", {"eps": 0.125}, {"eps": 0.5}),
        ("layernorm_fwd", {"eps": 0.125, "variant": 1}, {"eps": 0.15625}),  # one digit of both is the same
        ("layernorm_fwd", {"eps": 0.0}, {"eps": 1e-3}),
        ("layernorm_fwd", {"eps": 1.0}, {"eps": 1e-3}),
        ("layernorm_fwd", {"eps": 0.75}, {"eps": 3.0}),
        ("layernorm_fwd", {"special": "nan"}, {"special": None}),
        ("layernorm_fwd", {}, {"x_layout": "row_strided", "weight_offset": 1.0, "num_groups": None, "dropout_p": 0.1}),
        ("layernorm_fwd", {"x_layout": "transposed"}, {"x_layout": "contiguous", "weight_layout": "contiguous"}),
        ("layernorm_bwd", {"dy_layout": "offset"}, {"x_layout": "row_strided", "dy_layout": "contiguous"}),
        ("rmsnorm_fwd", {"weight_offset": 0.25}, {"weight_offset": 0.75}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.5}, {"dropout_p": 0.25}),
        ("dropout_add_rmsnorm_fwd", {"dropout_p": 0.25}, {"dropout_p": 0.5, "residual_layout": "row_strided"}),
        ("groupnorm_fwd", {"num_groups": 3}, {"num_groups": 1}),
        ("groupnorm_fwd", {"num_groups": 1}, {"num_groups": 6}),
        ("layernorm_bwd", {"frozen": ("x",)}, {"frozen": ("x",)}),
        ("layernorm_bwd", {"frozen": ("x", "weight", "bias")}, {"frozen": ()}),
    ],
)
def test_other_options_of_the_same_shape(op, fields, expected):
    spec = CaseSpec((4, 6), **fields)
    flipped, last = other_options(made(op, spec, exact={}))
    assert {name: getattr(last, name) for name in expected} == expected
    assert (last.shape, last.dtype, last.weight, last.bias) == (spec.shape, spec.dtype, spec.weight, spec.bias)
    assert last.seed not in (spec.seed, None)
    assert not flipped.weight
    assert flipped.bias == ("bias" not in {tensor.name for tensor in OPS[op].inputs})
    assert replace(flipped, weight=True, bias=True, frozen=()) == replace(last, frozen=())


def test_without_a_weight_the_other_case_has_one_and_no_bias_stays_as_it_was():
    spec = CaseSpec((4, 6), weight=False, bias=False)
    flipped, last = other_options(made("layernorm_fwd", spec, exact={}))
    assert [(one.weight, one.bias) for one in (flipped, last)] == [(True, True), (False, False)]
    mixed, _ = other_options(made("layernorm_fwd", replace(spec, bias=True), exact={}))
    assert (mixed.weight, mixed.bias) == (True, True)


def test_options_that_the_kernel_does_not_take_are_passed_over():
    def weighted(spec):
        return None if spec.weight else "no"

    assert [spec.weight for spec in other_options(made(exact={}, unsupported=weighted))] == [True]
    assert list(other_options(made(exact={}, fit=lambda spec: replace(spec, shape=(2, 6))))) == []
    fitted = list(other_options(made(exact={}, fit=lambda spec: replace(spec, eps=1e-6))))
    assert [spec.eps for spec in fitted] == [1e-6, 1e-6]
    constant = made("batchnorm_fwd", replace(SPEC, running=False), exact={}, fit=lambda s: replace(s, training=False))
    assert list(other_options(constant)) == []  # the operator has no such case


def test_a_case_of_another_shape_and_one_of_another_type_come_between():
    found = {words: spec for spec, words in others_between(made(exact={}))}
    assert list(found) == ["of (5, 5)", "in float16"]
    shaped, typed = found.values()
    assert (shaped.shape, shaped.dtype) == ((5, 5), "float32")
    assert (typed.shape, typed.dtype) == ((2, 5), "float16")
    assert typed.seed not in (SPEC.seed, None)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ({"dtypes": ("float32",)}, ["of (5, 5)"]),
        ({"dtypes": ("bfloat16", "float32", "float16")}, ["of (5, 5)", "in bfloat16"]),
        ({"unsupported": lambda spec: "no" if spec.dtype == "float16" else None}, ["of (5, 5)"]),
        ({"unsupported": lambda spec: "no" if spec.shape != (2, 5) else None}, ["in float16"]),
    ],
)
def test_only_what_the_kernel_takes_comes_between(kernel, words):
    assert [said for _, said in others_between(made(exact={}, **kernel))] == words
