"""Further runs: which rows are taken, and what counts as a difference between two runs of one case."""

import re
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checking import run_of
from counted import ATOMIC, PLAIN, QUIET, U, X, case_of
from norms import layernorm, layernorm_bwd

from verify_norm.cases import make
from verify_norm.checks.relations.rerun import (
    NearbyError,
    cheap,
    crowded,
    has_rows,
    lasting,
    nearby,
    on_rows,
    once_more,
    other_shape,
    rerun,
    rows_of,
    slow,
    small,
)
from verify_norm.checks.relations.two_runs import beyond, differences, reordering, steady
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Expected, Output, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute, results

ONCE = ("once", "again")


def made(spec, op="layernorm_fwd", device="cpu", exact=None, expected=None, contract=ATOMIC, **fields):
    """A run without outputs, of a case that has no tensors."""
    somewhere = {"x": SimpleNamespace(device=device)}
    case = Case(spec, OPS[op], somewhere, exact or {}, expected or {})
    return Run(Kernel("k", op, contract=contract), case, {}, **fields)


def with_output(run, name, values, dtype="float32", ratio=None):
    values = np.array(values, dtype=float)
    return replace(run, outputs={name: Output(dtype, values.shape, values, ratio)})


def differing(run, name, one, other):
    """What differs between two runs with these values of an output."""
    return list(differences(with_output(run, name, one), with_output(run, name, other), ONCE))


def numbers(words):
    """The numbers in a message, other than indices."""
    return [float(number) for number in re.findall(r"-?[\d.]+(?:e[-+]\d+)?", re.sub(r"\[.*?\]", "", words))]


def test_a_further_run_has_the_truth_of_the_run_where_its_values_and_contract_are_the_same():
    run = run_of(layernorm(), CaseSpec((5, 3)), "layernorm_fwd")
    case, x = run.case, {"x": 2 * run.case.exact["x"]}
    coarse = replace(run.kernel, contract=replace(run.kernel.contract, products="tf32"))
    assert rerun(run).case.expected == {}
    assert rerun(run, truth=True).case.expected["y"] is case.expected["y"]
    other = rerun(run, x, truth=True).case.expected["y"]
    assert (other.value != case.expected["y"].value).any()
    wider = rerun(replace(run, kernel=coarse), truth=True).case.expected["y"]
    assert (wider.delta > case.expected["y"].delta).all()
    half = rerun(run, spec=replace(case.spec, dtype="bfloat16"), truth=True).case.expected["y"]
    assert half.dtype == "bfloat16"


def test_infinities_and_nan_are_compared_as_what_they_are():
    def outputs(*dbias):
        rows = iter(dbias)

        def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
            dx, dweight, _ = layernorm_bwd("recomputed")(
                dy, x, weight, bias, torch.zeros(5), torch.zeros(5), eps, normalized_shape
            )
            return dx, dweight, torch.tensor(next(rows), dtype=bias.dtype)

        first = run_of(kernel, CaseSpec((5, 3), "float16"), "layernorm_bwd", deterministic=False, summation="atomic")
        return [d.count for d in differences(first, rerun(first), ("once", "again"))]

    nan, inf, top = float("nan"), float("inf"), 65504.0
    assert outputs([nan, inf, -inf], [nan, inf, -inf]) == []
    assert outputs([nan, 1.0, inf], [1.0, inf, -inf]) == [3]
    assert outputs([top, 0.0, 1.0], [inf, 0.0, 1.0]) == [1]  # the terms are too small to reach 65520


@pytest.mark.parametrize(
    ("spec", "further", "left_out"),
    [
        (CaseSpec((8, 512), further=("calls",)), 0.0, ()),  # so few elements always run again
        (CaseSpec((8, 513), further=("calls", "memory", "power")), 0.0, ("memory", "calls")),
        (CaseSpec((8, 513), further=("calls",)), 1.0, ("calls",)),  # as long as it may take, and no less
        (CaseSpec((8, 513), further=("calls",)), 10.0, ()),
        (CaseSpec((8, 513), further=("determinism", "batch_invariance")), 0.0, ("determinism", "batch_invariance")),
        (CaseSpec((8, 513), further=("determinism", "effects"), batch=16), 0.0, ("effects",)),
    ],
)
def test_a_large_case_runs_again_if_its_run_was_fast(spec, further, left_out):
    run = replace(run_of(layernorm(), spec), seconds=1.0, rerun_seconds=further)
    assert slow(run) == left_out
    assert cheap(run) is not bool(left_out)


def test_a_large_case_on_a_gpu_runs_several_times_whatever_it_takes():
    """`determinism` looks for races in it; what else would run again takes too long."""
    spec = CaseSpec((2**10, 2**10), further=("determinism", "calls"))
    assert slow(made(spec, device="cuda", seconds=1.0, rerun_seconds=1.0)) == ("calls",)
    assert slow(made(spec, device="cpu", seconds=1.0, rerun_seconds=1.0)) == ("determinism", "calls")
    assert slow(made(spec, device="cuda", seconds=1.0, rerun_seconds=1.0, problem="it fails")) == ()


@pytest.mark.parametrize(
    ("device", "shape", "expected"),
    [
        ("cuda:0", (2**19,), False),
        ("cuda:0", (2**19 + 1,), True),
        ("cuda", (2**20, 2**3), True),
        ("cuda", (2**23 + 1,), False),
        ("cpu", (2**12,), False),
        ("cpu", (2**12 + 1,), False),
    ],
)
def test_which_cases_are_large_enough_for_races(device, shape, expected):
    assert crowded(made(CaseSpec(shape), device=device)) is expected


@pytest.mark.parametrize(
    ("shape", "fields", "most", "expected"),
    [
        ((1,), {}, 2**12, True),
        ((0, 5), {}, 2**12, False),
        ((64, 64), {}, 2**12, True),
        ((64, 65), {}, 2**12, False),
        ((64, 65), {}, 2**13, True),
        ((4, 5), {"special": "nan"}, 2**12, False),
        ((4, 5), {"problem": "it fails"}, 2**12, False),
    ],
)
def test_which_runs_are_small(shape, fields, most, expected):
    spec = CaseSpec(shape, special=fields.get("special"))
    assert small(made(spec, problem=fields.get("problem")), most) is expected
    assert small(made(spec, problem=fields.get("problem"))) is (expected and most == 2**12)


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_another_shape_is_one_that_the_kernel_takes(variant):
    """More rows, longer ones, or both, from the case's variant on; a smaller case would find what a larger one left."""
    shapes = {"rows": (9, 6), "length": (4, 13), "both": (9, 13)}
    order = [*shapes, *shapes][variant : variant + 3]
    spec = CaseSpec((4, 6), variant=variant)
    for refused in range(4):
        none = {shapes[way] for way in order[:refused]}
        run = run_of(layernorm(), spec)
        run = replace(
            run, kernel=replace(run.kernel, unsupported=lambda s, none=none: "no" if s.shape in none else None)
        )
        other = other_shape(run)
        assert (other and other.shape) == (shapes[order[refused]] if refused < 3 else None)
        assert other is None or other.seed not in (spec.seed, None)


@pytest.mark.parametrize(
    ("op", "fields", "shapes"),
    [
        ("layernorm_fwd", {"shape": (6,)}, [(3, 6), (1, 13), (3, 13)]),  # all of x is one row
        ("layernorm_fwd", {"shape": (2, 6, 4)}, [(5, 6, 4), (2, 6, 9), (5, 6, 9)]),
        ("layernorm_fwd", {"shape": (2, 6, 4), "normalized_ndim": 3}, [(3, 2, 6, 4), (1, 2, 6, 9), (3, 2, 6, 9)]),
        ("groupnorm_fwd", {"shape": (2, 6), "num_groups": 3}, [(5, 6), (2, 12), (5, 12)]),  # in whole groups
        ("groupnorm_fwd", {"shape": (2, 6), "num_groups": 3, "normalized_ndim": 2}, [(5, 6), (2, 12), (5, 12)]),
        ("groupnorm_fwd", {"shape": (2, 6, 4), "num_groups": 3}, [(5, 6, 4), (2, 6, 9), (5, 6, 9)]),
    ],
)
def test_another_shape_has_more_rows_or_longer_ones(op, fields, shapes):
    assert [other_shape(made(CaseSpec(**fields, variant=turn), op)).shape for turn in range(3)] == shapes


def test_the_taken_rows_bring_their_statistics_and_not_the_parameters():
    run = run_of(layernorm_bwd(), CaseSpec((4, 3, 5)), "layernorm_bwd")  # 12 rows, three for each of the first four
    some, exact = rows_of(run.case, np.array([2, 0])), run.case.exact
    assert (some["x"] == exact["x"][[2, 0]]).all()
    assert some["rstd"].tolist() == [*exact["rstd"][6:9], *exact["rstd"][:3]]
    assert some["weight"] is exact["weight"]


def test_all_rows_of_a_sample_are_taken_and_nothing_that_belongs_to_no_row():
    exact = {name: np.arange(24.0).reshape(4, 2, 3) for name in ("dy", "x")}
    exact |= {name: np.arange(3.0) for name in ("weight", "bias", "running_mean", "running_var")}
    per_channel = exact | {name: np.arange(4.0) for name in ("mean", "rstd")}  # as many as there are samples
    of_channels = rows_of(made(CaseSpec((4, 4)), "batchnorm_bwd", exact=per_channel).case, np.array([3, 1]))
    assert of_channels["mean"].tolist() == per_channel["mean"].tolist()
    assert of_channels["x"].tolist() == exact["x"][[3, 1]].tolist()
    per_group = exact | {name: np.arange(8.0).reshape(4, 2) for name in ("mean", "rstd")}
    of_groups = rows_of(made(CaseSpec((4, 2, 3)), "groupnorm_bwd", exact=per_group).case, np.array([3, 1, 3]))
    assert of_groups["rstd"].tolist() == [[6, 7], [2, 3], [6, 7]]
    modulated = {**dict.fromkeys(("x", "weight", "bias")), "scale": np.arange(8.0).reshape(4, 2), "shift": None}
    of_samples = rows_of(made(CaseSpec((4, 3, 2)), "modulate_layernorm_fwd", exact=modulated).case, np.array([2]))
    assert of_samples["scale"].tolist() == [[4.0, 5.0]]
    assert {name for name, values in of_samples.items() if values is None} == modulated.keys() - {"scale"}


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("rmsnorm_fwd", {"shape": (2, 5)}, True),
        ("groupnorm_fwd", {"shape": (4, 6), "num_groups": 3, "normalized_ndim": 2}, True),  # which belongs to rows
        ("rmsnorm_fwd", {"shape": (4, 5)}, True),
        ("rmsnorm_fwd", {"shape": (1, 5)}, False),
        ("rmsnorm_fwd", {"shape": (5,)}, False),
        ("rmsnorm_fwd", {"shape": (4, 5), "normalized_ndim": 2}, False),  # all of x is one row
        ("groupnorm_fwd", {"shape": (4, 6), "num_groups": 3}, True),
        ("rmsnorm_fwd", {"shape": (4, 0, 5)}, False),
    ],
)
def test_which_first_dimension_counts_rows(op, fields, expected):
    assert has_rows(run_of(lambda x: x, CaseSpec(**fields), op).case) == expected


def test_a_rerun_is_of_fresh_buffers_and_of_the_given_values():
    seen = []

    def kernel(x, weight, bias, eps, normalized_shape):
        seen.append(x.clone())
        x.zero_()  # which the next run must not see
        return layernorm()(seen[-1], weight, bias, eps, normalized_shape)

    run = run_of(kernel)
    again = rerun(run)
    assert list(differences(run, again, ("once", "again"))) == []
    assert torch.equal(*seen)
    doubled = rerun(run, {"x": 2 * run.case.exact["x"]})
    assert torch.equal(seen[2], 2 * seen[0])
    assert {d.output for d in differences(run, doubled, ("once", "doubled"))} == {"y", "mean", "rstd"}
    assert again.outputs["y"].ratio is None  # without the truth nothing is judged
    assert doubled.case.expected == {}


def test_a_further_run_has_the_poison_of_the_run_unless_it_is_given_another():
    run = run_of(layernorm())
    poisoned = rerun(run, poison=7.0)
    assert (run.case.poison, poisoned.case.poison) != (7.0, run.case.poison)
    assert poisoned.case.poison == 7.0
    assert rerun(poisoned).case.poison == 7.0


def test_a_further_run_is_within_the_context_of_its_case():
    seen = []

    @contextmanager
    def within(case):
        seen.append(case)
        yield
        seen.append("left")

    again = rerun(run_of(layernorm()), within=within)
    assert again.problem is None
    assert seen == [again.case, "left"]


def test_only_a_whole_run_or_one_of_a_kernel_with_effects_says_what_the_call_damaged():
    def zeroing(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm()(x, weight, bias, eps, normalized_shape)
        x.zero_()
        return y, mean, rstd

    run = replace(run_of(zeroing), effects=())
    assert {damage.buffer for damage in rerun(run, whole=True).damage} == {"x"}
    assert rerun(run).damage == ()
    assert once_more(run) is results
    assert once_more(run, whole=True) is execute
    assert once_more(replace(run, effects=("a thread",))) is execute


@pytest.mark.parametrize(
    ("words", "in_the_next", "stay"),
    [
        (("sys.path has a", "a thread"), (), ("a thread",)),
        (("sys.path has a", "a thread"), ("sys.path has a",), ("sys.path has a", "a thread")),
        (("sys.path has a", "os.environ has b"), ("os.environ has b",), ("os.environ has b",)),
        (("a thread",), None, ("a thread",)),  # there is no next call
        ((), None, ()),
    ],
)
def test_what_an_import_changes_counts_if_the_next_call_changes_it_again(words, in_the_next, stay):
    def again():
        assert in_the_next is not None
        return SimpleNamespace(effects=in_the_next)

    assert lasting(words, again) == stay


def test_rows_are_run_in_the_given_order_and_number_if_the_kernel_takes_so_many():
    run = run_of(layernorm(), CaseSpec((4, 3, 5)))
    other = on_rows(run, np.array([3, 1, 3, 0, 2, 2]))
    assert other.case.spec.shape == (6, 3, 5)
    assert (other.case.exact["x"] == run.case.exact["x"][[3, 1, 3, 0, 2, 2]]).all()
    assert (other.outputs["y"].got[1] == run.outputs["y"].got[1]).all()
    few = replace(run, kernel=replace(run.kernel, unsupported=lambda spec: "no" if spec.shape[0] > 5 else None))
    assert on_rows(few, np.arange(6) % 4) is None
    assert on_rows(few, np.arange(5) % 4).case.spec.shape == (5, 3, 5)


def test_a_kernel_is_steady_if_a_second_run_gives_the_same_bits():
    calls = []

    def alternating(x, weight, bias, eps, normalized_shape):
        calls.append(x)
        y, mean, rstd = layernorm()(x, weight, bias, eps, normalized_shape)
        return y * (1.0 + len(calls) % 2), mean, rstd

    assert steady(run_of(layernorm()))
    assert not steady(run_of(alternating))


def test_a_case_nearby_that_fails_says_why_and_one_that_is_not_offered_says_nothing():
    def few(x, weight, bias, eps, normalized_shape):
        if len(x) == 9:
            raise IndexError("row 8 is out of bounds")
        assert len(x) < 9, "more than nine rows are not supported"
        return layernorm()(x, weight, bias, eps, normalized_shape)

    run = run_of(few, CaseSpec((4, 8)))
    nine = {"x": np.zeros((9, 8))}
    with pytest.raises(NearbyError, match="row 8 is out of bounds"):
        nearby(run, nine, CaseSpec((9, 8)))
    picky = replace(run, kernel=replace(run.kernel, unsupported=lambda spec: "no" if spec.shape == (9, 8) else None))
    with pytest.raises(NearbyError, match=r"^$"):
        nearby(picky, nine, CaseSpec((9, 8)))
    with pytest.raises(NearbyError, match=r"^$"):  # refused in words
        nearby(run, {"x": np.zeros((10, 8))}, CaseSpec((10, 8)))


def test_a_case_nearby_has_the_given_values_and_shape_and_a_truth_if_asked():
    run = run_of(layernorm(), CaseSpec((4, 8)))
    three = {"x": run.case.exact["x"][:3]}
    other = nearby(run, three, CaseSpec((3, 8)))
    assert (other.case.spec.shape, other.case.expected) == ((3, 8), {})
    assert nearby(run, three, CaseSpec((3, 8)), truth=True).case.expected["y"].value.shape == (3, 8)


def test_a_run_that_fails_differs_in_no_output():
    run = made(PLAIN)
    (one,) = differences(with_output(run, "y", [1.0]), replace(run, problem="a fault"), ONCE)
    assert (one.output, one.index) == (None, None)
    assert "again" in one.words
    assert "a fault" in one.words


@pytest.mark.parametrize(
    ("second", "form"),
    [({}, "missing"), (None, "missing"), (("float16", (2,)), "float16 (2,)"), (("float32", (1, 2)), "float32 (1, 2)")],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_an_output_of_another_type_or_shape_differs(second, form, swapped):
    first = with_output(made(PLAIN), "y", [1.0, 2.0])
    outputs = second if second == {} else {"y": second and Output(*second, np.ones(second[1]), None)}
    runs = [first, replace(first, outputs=outputs)]
    (one,) = differences(*(runs[::-1] if swapped else runs), ONCE)
    assert (one.output, one.index) == ("y", None)
    forms = ["float32 (2,)", form]
    before, after = forms[::-1] if swapped else forms
    assert re.search(f"y .*{re.escape(before)} once.*{re.escape(after)} again", one.words)


@pytest.mark.parametrize(
    ("one", "other", "index", "count"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]], None, 0),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.25], [3.5, 4.0]], (1, 0), 2),
        ([[0.0, 0.0]], [[-0.0, -0.0]], (0, 0), 2),
        ([[-0.0, -0.0]], [[0.0, 0.0]], (0, 0), 2),
        ([[np.inf, np.nan, 1.0]], [[np.inf, np.nan, 2.0]], (0, 2), 1),  # equal infinities, and NaN, are the same
        ([[1.0, np.inf]], [[2.0, 1.0]], (0, 1), 2),
        ([[1.0, 0.5]], [[9.0, np.nan]], (0, 1), 2),
    ],
)
def test_the_element_that_differs_most_is_named(one, other, index, count):
    found = differing(made(PLAIN), "y", one, other)
    assert [(d.output, d.index, d.count) for d in found] == [("y", index, count)] * (count > 0)
    if index:
        a, b = one[index[0]][index[1]], other[index[0]][index[1]]
        words, values = found[0].words, (a, b, abs(a - b))
        assert f"y[{index[0]}, {index[1]}]" in words
        assert re.search(r"{:.9g} once.* {:.9g} again.*{:.3g}".format(*values).replace("nan", "(nan|inf)"), words)
        assert words.endswith(f"{count} of {np.size(one)} elements differ")


HALF = np.full((2, 3), 0.5)
MODULATED = {"dy": np.ones((2, 3))}


@pytest.mark.parametrize("name", ["dscale", "dshift"])
def test_sums_of_which_only_the_truth_is_known_may_differ_by_two_bounds(name):
    """δ is 0.5, and the last rounding half of float32's ulp at 1.5."""
    expected = {name: Expected(np.ones((2, 3)), HALF, "float32")}
    run = made(CaseSpec((2, 3)), "modulate_layernorm_bwd", exact=MODULATED, expected=expected)
    allowed = reordering(run, name, "float32", np.ones(6), np.ones(6))
    assert allowed.tolist() == [1.0 + 2.0**-23] * 6
    one, nan, inf = np.zeros((2, 3)), np.nan, np.inf
    assert differing(run, name, one, one + allowed[0]) == []
    (found,) = differing(run, name, one, [[0.0, 0.0, 1.5], [0.0, 2.0, 0.0]])
    assert (found.index, found.count) == ((1, 1), 2)
    assert numbers(found.words) == [0, 2, 2, 1, 2, 6]  # once, again, apart, allowed, and 2 of 6
    assert differing(run, name, [[nan, inf, 1, 1, 1, 1]], [[nan, inf, 1, 1, 1, 1.5]]) == []
    strict = replace(run, kernel=replace(run.kernel, contract=Contract()))
    assert differing(strict, name, one, one + 1e-9)[0].count == 6


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [(65472.0, np.inf, 0), (np.inf, 65472.0, 0), (-65472.0, np.inf, 6), (0.0, -np.inf, 6), (-np.inf, np.inf, 6)],
)
def test_a_sum_within_its_bound_of_an_overflow_may_be_an_infinity(one, other, count):
    """float16 rounds from 65520 on to infinity."""
    expected = {"dscale": Expected(np.full((2, 3), 65490.0), np.full((2, 3), 40.0), "float16")}
    run = made(CaseSpec((2, 3)), "modulate_layernorm_bwd", exact=MODULATED, expected=expected)
    runs = (with_output(run, "dscale", np.full((2, 3), value), "float16") for value in (one, other))
    found = list(differences(*runs, ONCE))
    assert [each.count for each in found] == [count] * bool(count)


@pytest.mark.parametrize("extent", ["affine", "one"])
def test_a_sum_of_a_users_own_operator_may_differ_by_two_bounds(extent):
    own = replace(OPS["layernorm_bwd"], user_defined=True)
    own = replace(own, outputs=(own.outputs[0], replace(own.outputs[1], extent=extent), own.outputs[2]))
    run = made(CaseSpec((2, 3)), "layernorm_bwd", expected={"dweight": Expected(np.ones(3), HALF[0], "float32")})
    run = replace(run, case=replace(run.case, op=own))
    assert differing(run, "dweight", np.zeros(3), np.full(3, 1.0 + 2.0**-23)) == []
    assert differing(run, "dweight", np.zeros(3), np.full(3, 1.0 + 2.0**-22))[0].count == 3


@pytest.mark.parametrize(
    ("op", "shape", "axes", "repeated", "roundings"),
    [
        ("layernorm_bwd", (2, 3, 2), (0, 1), 1, 5),  # a sum of six terms rounds five times
        ("layernorm_bwd", (2, 2, 3), (0, 1), 2, 7),
        ("layernorm_bwd", (4, 1), (0,), 1, 3),
        ("groupnorm_bwd", (2, 3, 4), (0, 2), 1, 7),
        ("batchnorm_bwd", (2, 3, 2, 2), (0, 2, 3), 1, 7),
    ],
)
def test_a_sum_in_another_order_is_off_by_the_roundings_of_both(op, shape, axes, repeated, roundings):
    dy = np.arange(np.prod(shape), dtype=float).reshape(shape) - 3.0
    run = made(CaseSpec(shape), op, exact={"dy": dy})
    zeros = np.zeros(np.abs(dy).sum(axes).size)
    allowed = reordering(run, "dbias", "float32", zeros, zeros, repeated)
    np.testing.assert_allclose(allowed, 2 * roundings * U * np.abs(dy).sum(axes), rtol=1e-5)


@pytest.mark.parametrize("op", ["layernorm_bwd", "add_layernorm_bwd", "dropout_add_rmsnorm_bwd"])
def test_a_term_of_dweight_has_the_largest_x_that_a_kernel_may_have_normalized(op):
    """That is the forward without weight and bias, and what it may be off by: much in bfloat16."""
    contract = replace(ATOMIC, accumulate="bfloat16")
    spec = replace(PLAIN, weight=True, bias=True)
    case = case_of(spec, op, contract, weight=np.full(8, 3.0), bias=np.full(8, 7.0))
    plain = make.truths(
        PLAIN, OPS["rmsnorm_fwd" if "rms" in op else "layernorm_fwd"], contract, {"x": X, "weight": None, "bias": None}
    )
    largest = np.abs(plain["y"].value) + plain["y"].delta
    assert (largest > 1.02).all()
    run = Run(Kernel("k", op, contract=contract), case, {})
    allowed = reordering(run, "dweight", "float32", np.zeros(8), np.zeros(8))
    lost = 4 * 2.0**-8
    np.testing.assert_allclose(allowed, 2 * lost / (1 - lost) * (np.abs(QUIET) * largest).sum(0), rtol=1e-5)
    assert (allowed > reordering(run, "dbias", "float32", np.zeros(8), np.zeros(8))).all()


@pytest.mark.parametrize("output", ["dweight", "dbias"])
@pytest.mark.parametrize(
    ("op", "shape", "axes"), [("rmsnorm_silu_bwd", (2, 3, 4), (0, 1)), ("groupnorm_silu_bwd", (2, 4, 3), (0, 2))]
)
def test_a_term_behind_an_activation_is_what_it_makes_of_dy_at_most(op, shape, axes, output):
    contract = replace(ATOMIC, accumulate="bfloat16")
    spec = CaseSpec(shape, num_groups=2)
    case = make.case(spec, OPS[op], contract)
    x, dy, weight, bias = (
        None if (v := case.exact.get(n)) is None else torch.tensor(v) for n in ("x", "dy", "weight", "bias")
    )
    if op.startswith("rms"):
        xhat = torch.nn.functional.rms_norm(x, shape[-1:], eps=spec.eps)
        z = xhat * weight
    else:
        xhat = torch.nn.functional.group_norm(x, 2, eps=spec.eps)
        z = xhat * weight[:, None] + bias[:, None]
    z.requires_grad_()
    (dz,) = torch.autograd.grad(torch.nn.functional.silu(z), z, dy)
    terms = (dz * (xhat if output == "dweight" else 1.0)).abs().sum(axes).numpy()
    zeros = np.zeros(terms.shape)
    allowed = reordering(Run(Kernel("k", op, contract=contract), case, {}), output, "float32", zeros, zeros)
    count = np.prod(shape) // zeros.size
    lost = (count if output == "dweight" else count - 1) * 2.0**-8
    share = allowed / (2 * lost / (1 - lost) * terms)
    assert ((share > 1.01) & (share < 2.0)).all()


@pytest.mark.parametrize(
    ("a", "b", "reached"),
    [
        (65504.0, np.inf, True),
        (np.inf, 65504.0, True),
        (-65504.0, -np.inf, True),
        (-np.inf, -65504.0, True),
        (65504.0, -np.inf, False),
        (-np.inf, 65504.0, False),
        (0.0, np.inf, False),
        (np.inf, 0.0, False),
        (65504.0, 65504.0, False),
    ],
)
def test_an_infinity_is_like_a_number_near_it(a, b, reached):
    dy = np.full((32, 1), 2048.0)  # 65536 in all: in bfloat16, orders of them are up to 16384 apart
    run = made(
        CaseSpec((32, 1), "float16"), "layernorm_bwd", exact={"dy": dy}, contract=replace(ATOMIC, partials="bfloat16")
    )
    allowed = reordering(run, "dbias", "float16", np.array([a]), np.array([b]))
    assert (allowed == np.inf).tolist() == [reached]
    if np.isfinite([a, b]).all():
        assert 16384 < allowed[0] < 17000


@pytest.mark.parametrize(
    ("dy", "judged"),
    [([1.0, 2.0], True), ([0.5, 0.25], True), ([1.0, 0.0], False), ([1.0, 1.0], False), ([np.nan, 0.0], False)],
)
def test_a_sum_that_may_overflow_is_not_judged(dy, judged):
    """Its terms are so many times float32's largest number, or 1 and 2."""
    largest = 1.0 if dy == [1.0, 2.0] else float(np.finfo(np.float32).max)
    run = made(CaseSpec((2, 1)), "layernorm_bwd", exact={"dy": np.array(dy)[:, None] * largest})
    with np.errstate(invalid="ignore"):
        assert np.isfinite(reordering(run, "dbias", "float32", np.zeros(1), np.zeros(1))).all() == judged


@pytest.mark.parametrize(
    ("before", "after", "tells"),
    [
        (0.5, 1.0, False),
        (0.5, 1.5, True),
        (1.0, 1.5, True),
        (1.5, 1.6, False),  # it was beyond its bound before
        (None, 0.5, True),
        (0.5, None, True),
    ],
)
def test_a_difference_counts_where_only_the_second_run_is_beyond_its_bound(before, after, tells):
    first, second = (
        with_output(made(PLAIN), "y", [value, 0.0], ratio=ratio and np.array([ratio, 0.0]))
        for value, ratio in ((1.0, before), (2.0, after))
    )
    assert [d.index for d in beyond(first, second, ONCE)] == [(0,)] * tells


def test_a_failure_or_another_type_counts_whatever_the_bound():
    first = with_output(made(PLAIN), "y", [1.0], ratio=np.zeros(1))
    assert [d.output for d in beyond(first, replace(first, problem="a fault"), ONCE)] == [None]
    assert [d.output for d in beyond(first, replace(first, outputs={"y": None}), ONCE)] == ["y"]
    assert [d.output for d in beyond(first, with_output(first, "y", [1.0], "float16", np.zeros(1)), ONCE)] == ["y"]
