"""The covering array: all possible pairs of choices meet, and what counts as a meeting."""

from dataclasses import replace
from math import prod
from random import Random

import pytest

from verify_norm.cases import covering, further_runs
from verify_norm.cases.axes import OF_FEW_SHAPES, axes
from verify_norm.cases.axis import Axis
from verify_norm.cases.corners import corners
from verify_norm.cases.covering import Pairs
from verify_norm.core import ways
from verify_norm.core.geometry import refusal
from verify_norm.core.ops import OPS
from verify_norm.core.spec import LAYOUTS, CaseSpec

DTYPES = ("float32", "float16", "bfloat16")
SOME = ["rmsnorm_fwd", "layernorm_bwd", "add_rmsnorm_bwd", "groupnorm_bwd", "instancenorm_fwd", "batchnorm_fwd"]
REPEATED = "expanded_middle", "expanded_inner"  # of three dimensions and more
# Values that no case has together: each a part of the name of one value, and of the other.
IMPOSSIBLE = (
    (" weight", "no weight"),  # the layout of what is not there
    (" bias", "bias False"),
    (" dresidual_out", "dresidual_out False"),
    (" running_", "training without running statistics"),
    ("mode in evaluation, without", "training"),  # none are kept
    ("mode in evaluation, without", "evaluation"),
    ("special", "≤ 0"),  # no element
    ("rows", "0 leading dimensions"),  # there is one row
    ("channels_last", "0 leading dimensions"),
    ("positions", "0 spatial dimensions"),
    ("≤ 1", "0 spatial dimensions"),
    ("channels_last", "0 spatial dimensions"),
    ("channels_last", "positions ≤ 1"),
    ("float32", "float32 weights"),  # that is the type of x
    ("float16", "float16 weights"),
    ("bfloat16", "bfloat16 weights"),
    ("float16", "bfloat16 weights"),  # weights narrower than x, or of x's size, are those of a float32 x
    ("bfloat16", "float16 weights"),
    ("special", "special None"),
    ("transposed", "1 normalized dimensions"),
    ("slice", "0 leading dimensions"),
    ("slice", "0 spatial dimensions"),
    ("swapped", "0 leading dimensions"),  # of three dimensions and more
    ("swapped", "0 spatial dimensions"),
    *((layout, f"0 {which} dimensions") for layout in REPEATED for which in ("leading", "spatial")),
    ("channel_slice", "positions ≤ 1"),
    ("far", "samples ≤ 1"),  # a stride of one sample
    ("under autocast", "dtype float16"),  # it is tried in one 16-bit type
    ("vmap", "dtype float16"),  # torch's own norms round once more there
    ("vmap", "dtype bfloat16"),
    ("vmap of the parameters", "no weight"),
    ("vmap", "float16 weights"),
    ("vmap", "float32 weights"),  # those of a float32 x are of x's type
    ("≤ 1", "≤ 1"),  # x̂ is 0, or there is no variance
)


def unmet(pairs):
    """Return the names of the values of each pair that has not met."""
    count = range(len(pairs.values))
    return [(pairs.values[i][1], pairs.values[j][1]) for i in count for j in range(i) if pairs.missing[i] >> j & 1]


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("op", SOME)
def test_all_possible_pairs_meet(op):
    table = tuple(corners(OPS[op], DTYPES))
    array, pairs = covering.array(OPS[op], DTYPES, table), Pairs(OPS[op], DTYPES)
    for spec in table:
        pairs.enter(spec)
    assert pairs.met < 0.6 * array.pairs  # the table alone
    for spec in array.rows:
        before = pairs.met
        pairs.enter(spec)
        assert pairs.met > before  # no case is there for nothing
    assert pairs.met == array.pairs
    left = unmet(pairs)
    assert not [
        p for p in left if not any((a in p[0] and b in p[1]) or (a in p[1] and b in p[0]) for a, b in IMPOSSIBLE)
    ]
    assert len(left) < 0.015 * array.pairs
    assert len(array.rows) == len(set(array.rows)) < 550
    assert not [spec for spec in array.rows if refusal(spec, OPS[op]) or prod(spec.shape) > covering.ELEMENTS]


@pytest.mark.slow
def test_types_and_layouts_meet_every_length_and_option_by_threes():
    """A kernel is compiled for a type, a length and its options: here without the table."""
    rows = covering.array(OPS["layernorm_bwd"], DTYPES, ()).rows
    shown = [spec for spec in rows if abs(spec.log2_scale) <= 8 and spec.data not in ("zero", "constant")]
    for dtype in DTYPES:
        for low, high in ((2, 31), (32, 1024), (1025, 5000)):
            met = [s for s in shown if s.dtype == dtype and low <= prod(s.shape[-s.normalized_ndim :]) <= high]
            assert {s.weight for s in met} == {s.bias for s in met} == {True, False}
            assert 0.0 in {s.eps for s in met}
            assert {1e-12, 3e-8} & {s.eps for s in met}
            assert dtype == "float32" or {s.weight_dtype for s in met} >= {None, "float32"}
    layouts = {(s.x_layout, s.dy_layout) for s in shown}  # x without a variance hides where dy is
    placed = set(LAYOUTS) - {"contiguous", *OF_FEW_SHAPES}  # contiguous are others too, where they do not apply
    assert layouts >= {(x, dy) for x in placed - {"scalar", "expanded_last", "expanded_inner"} for dy in placed}


def test_what_hides_the_rest_does_not_let_it_meet():
    pairs = Pairs(OPS["layernorm_bwd"], DTYPES)
    usual = CaseSpec((4, 64), x_layout="transposed", further=())

    def met(spec):
        return {
            tuple(sorted((pairs.values[a][1], pairs.values[b][1])))
            for a, others in pairs.meetings(spec)
            for b in range(len(pairs.values))
            if others >> b & 1 and a != b
        }

    assert ("N ≤ 1024", "transposed x") in met(usual)
    zeros = replace(usual, data="zero")
    assert ("N ≤ 1024", "data zero") in met(zeros)
    assert ("N ≤ 1024", "transposed x") not in met(zeros)
    assert not met(replace(zeros, eps=1e3))
    short, placed, plain = (pairs.number[name] for name in ("N ≤ 1024", "transposed x", "contiguous x"))
    assert pairs.gain(usual, short, plain) == pairs.gain(usual, plain, short) == 0
    assert pairs.best((usual, zeros), short, plain) is None
    assert pairs.best((zeros, usual), short, placed) == usual
    before, gain = pairs.left, pairs.gain(usual, short, placed)
    pairs.enter(usual)
    assert pairs.left == before - gain < before
    assert not pairs.gain(usual, short, placed)


def test_a_layout_that_does_not_apply_is_contiguous():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    flat = [pairs.values[a][1] for a, _ in pairs.meetings(CaseSpec((64,), x_layout="transposed", further=()))]
    assert "contiguous x" in flat
    assert "transposed x" not in flat


# A few values of a few axes, with which all ways of further runs still meet: their array is made at once.
SOME = {
    "rows": ("rows ≤ 1", "rows ≤ 64"),
    "N": ("N ≤ 31", "N ≤ 1024"),
    "leading dimensions": ("0 leading dimensions", "1 leading dimensions"),
    "normalized dimensions": ("1 normalized dimensions",),
    "dtype": ("dtype float32",),
    "type of weights": ("weights of x's type",),
    "frozen": ("frozen ()", "frozen ('x',)"),
    "data": ("data normal", "data zero"),
    "x_layout": ("contiguous x", "transposed x"),
    "type and length": ("float32, N ≤ 31", "float32, N ≤ 1024"),
}
RMSNORM = OPS["rmsnorm_bwd"]
FEW = {("0 leading dimensions", "rows ≤ 64"), ("0 leading dimensions", "transposed x")}  # that are impossible


@pytest.fixture
def few(monkeypatch):
    """Let an operator have few axes, and return the function that makes an array of RMSNorm's backward."""

    def of(op, dtypes, **kinds):
        found = {axis.name: axis for axis in axes(op, dtypes, **kinds)}
        some = [replace(found[n], choices={v: found[n].choices[v] for v in SOME[n]}) for n in SOME if n in found]
        ways_ = [axis for name, axis in found.items() if name.partition(" ")[0] in ways.WAYS]
        return (*some, *ways_)

    monkeypatch.setattr(covering, "axes", of)
    return lambda *table, **kinds: covering.array.__wrapped__(RMSNORM, ("float32",), table, **kinds)


def test_every_case_of_an_array_adds_a_pair_and_all_that_are_possible_meet(few):
    array, pairs = few(), Pairs(RMSNORM, ("float32",))
    for spec in array.rows:
        before = pairs.met
        pairs.enter(spec)
        assert pairs.met > before
        assert refusal(spec, RMSNORM) is None
    assert {tuple(sorted(pair)) for pair in unmet(pairs)} == FEW
    assert (array.pairs, pairs.left) == (pairs.met, 2)
    assert {spec.seed < 2**16 for spec in array.rows} == {True}
    beside = few(*array.rows)
    assert (beside.rows, beside.pairs) == ((), array.pairs)  # what meets in the table need not meet again


def test_a_pair_is_tried_once_also_where_no_case_has_it(few, monkeypatch):
    tried, best = [], covering._best

    def noted(pairs, one, two, *rest):
        tried.append(frozenset((one, two)))
        return best(pairs, one, two, *rest)

    monkeypatch.setattr(covering, "_best", noted)
    array = few()
    assert len(tried) == len(set(tried)) == len(array.rows) + len(FEW)


def test_an_array_is_known(few):
    """Whoever changes it changes the cases of every run that makes one, and no run compares with one before."""
    rows = few().rows
    assert [(spec.shape, spec.seed, spec.series or spec.effect) for spec in rows[:3]] == KNOWN
    assert (len(rows), sum(spec.seed for spec in rows), sum(spec.variant for spec in rows)) == KNOWN_SUMS
    assert few(seed=1).rows != rows


KNOWN = [((1, 31), 52274, ways.SAME_TENSORS), ((63, 1024), 32890, ways.NEW_TENSORS), ((128,), 28974, ways.OPERATORS)]
KNOWN_SUMS = (18, 595081, 670)


def test_an_array_has_the_ways_of_torchs_autograd_and_of_a_gpu(few):
    (plain, frozen), gpu = (few(frozen=on).rows for on in (False, True)), few(gpu=True).rows
    assert [{spec.frozen for spec in rows} for rows in (plain, frozen)] == [{()}, {(), ("x",)}]
    modes = [{spec.mode for spec in rows} for rows in (plain, gpu)]
    assert [ways.REPLAYED in some for some in modes] == [False, True]
    assert [{spec.autograd for spec in rows} >= {ways.AGAIN} for rows in (plain, frozen)] == [False, True]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("frozen", {"frozen": ("x",), "further": ("autograd",), "autograd": ways.AGAIN}),
        ("gpu", {"further": ("modes",), "mode": ways.REPLAYED}),
    ],
)
def test_pairs_with_the_ways_of_a_run_count_in_the_table_too(few, monkeypatch, kind, fields):
    monkeypatch.setattr(covering, "_best", lambda *_: None)  # no case besides those of the table
    spec, usual, pairs = CaseSpec((40, 64), **fields), few(), Pairs(RMSNORM, ("float32",), **{kind: True})
    pairs.enter(spec)
    assert few(spec, **{kind: True}).pairs == pairs.met > few(spec).pairs > usual.pairs


def test_pairs_are_of_the_axes_and_ways_of_a_run():
    for kinds in ({}, {"frozen": True}, {"gpu": True}):
        pairs = Pairs(RMSNORM, ("float16",), **kinds)
        assert [axis.name for axis in pairs.axes] == [axis.name for axis in axes(RMSNORM, ("float16",), **kinds)]
        autograd, gpu = kinds.get("frozen", False), kinds.get("gpu", False)
        assert pairs.offered == ways.offered(RMSNORM, autograd=autograd, gpu=gpu)
    usual = {name for values in pairs.usual.values() for name in (pairs.values[value][1] for value in values)}
    assert "data normal" in usual
    assert not usual & covering.HIDING


READ = {"read": lambda spec: None, "choices": {}}
HIDDEN, LAYOUT = ("data", "data zero"), ("x_layout", "transposed x")


@pytest.mark.parametrize(
    ("one", "two", "meet"),
    [
        (("N", "N ≤ 31"), ("N", "N ≤ 1024"), False),  # of one axis
        (("N", "N ≤ 31"), ("eps", "eps ≤ 0.1"), True),
        (("N", "N ≤ 31"), LAYOUT, True),
        (HIDDEN, ("N", "N ≤ 31"), True),
        (HIDDEN, LAYOUT, False),  # where elements are does not show
        (HIDDEN, ("eps", "eps > 0.1"), False),  # both hide the rest
        (("special", "special nan"), ("N", "N ≤ 31"), True),
        (("special", "special nan"), ("eps", "eps ≤ 0.1"), False),  # it meets N alone
        (("special", "special nan"), HIDDEN, False),
    ],
)
def test_two_values_shall_meet_unless_one_hides_the_other(one, two, meet):
    names = {"N": {}, "eps": {}, "data": {}, "x_layout": {"of_memory": True}, "special": {"beside": ("N",)}}
    made = {name: Axis(name, **READ, **options) for name, options in names.items()}
    first, second = ((made[axis], value) for axis, value in (one, two))
    assert covering._meet(first, second) is covering._meet(second, first) is meet


@pytest.mark.parametrize(
    ("op", "shape", "some"),
    [
        ("batchnorm_fwd", (1, 3, 1), False),  # x̂ is 0
        ("batchnorm_fwd", (2, 3, 1), True),
        ("batchnorm_fwd", (0, 3, 1), True),
        ("rmsnorm_fwd", (4, 1), True),
        ("rmsnorm_fwd", (4, 2), True),
    ],
)
def test_nothing_meets_in_a_channel_of_one_value(op, shape, some):
    assert bool(Pairs(OPS[op], DTYPES).meetings(CaseSpec(shape, further=()))) is some


def test_a_value_that_a_run_does_not_try_is_none_of_a_case():
    pairs = Pairs(OPS["rmsnorm_fwd"], ("float16",))
    names = [pairs.values[value][1] for value in pairs.present(CaseSpec((2, 3), "float32", further=()))]
    assert "rows ≤ 16" in names
    assert not [name for name in names if name.startswith("dtype")]


def test_beside_a_value_that_hides_others_only_its_own_pairs_meet():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    usual, other, zero, short = (pairs.number[n] for n in ("rows ≤ 16", "dtype float16", "data zero", "N ≤ 1"))
    plain = 1 << usual | 1 << other
    assert pairs.partners(usual, plain) == plain
    assert pairs.partners(usual, plain | 1 << zero) == 1 << zero
    assert pairs.partners(zero, plain | 1 << zero) == plain | 1 << zero
    assert pairs.partners(usual, plain | 1 << zero | 1 << short) == pairs.partners(zero, 1 << zero | 1 << short) == 0


def test_a_gain_counts_each_new_pair_once():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    spec = CaseSpec((4, 64), further=())
    rows, length, half, long = (pairs.number[n] for n in ("rows ≤ 16", "N ≤ 1024", "dtype float16", "N > 1024"))
    gain = pairs.gain(spec, rows, length)
    assert isinstance(gain, int)
    assert pairs.gain(spec, rows, half) == pairs.gain(spec, half, rows) == pairs.gain(spec, half, long) == 0
    assert pairs.unmet(rows, 1 << length | 1 << half) == 2
    pairs.enter(spec)
    assert pairs.met == gain
    assert pairs.unmet(rows, 1 << length | 1 << half) == 1
    other = replace(spec, dtype="float16")
    before, again = pairs.left, pairs.gain(other, rows, half)
    pairs.enter(other)
    assert before - pairs.left == again < gain
    assert pairs.met + pairs.left == pairs.total


def test_two_values_of_a_case_do_not_meet_beside_one_that_hides_them():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    rows, length = pairs.number["rows ≤ 16"], pairs.number["N ≤ 1024"]
    zero, one = CaseSpec((4, 64), data="zero", further=()), CaseSpec((4, 64), data="zero", eps=1e3, further=())
    assert pairs.gain(zero, rows, length) == pairs.gain(one, rows, length) == 0


def test_the_first_case_of_the_largest_gain_is_taken_among_enough():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    rows, length = pairs.number["rows ≤ 16"], pairs.number["N ≤ 1024"]
    usual = CaseSpec((4, 64), further=())
    pairs.enter(usual)
    pairs.missing[rows] |= 1 << length
    pairs.missing[length] |= 1 << rows
    small, large, same = usual, replace(usual, eps=1e-2, offset=100.0), replace(usual, eps=1e-2, offset=-100.0)
    without = replace(usual, shape=(4, 2000))
    assert pairs.best((small, None, large, same), rows, length) == large
    assert pairs.best((same, large), rows, length) == same
    assert pairs.best((without, small, large), rows, length, 1) == small
    assert pairs.best((without, small, large), rows, length, 2) == large
    assert pairs.best((without,), rows, length) is None


def test_a_further_run_takes_the_ways_that_fit_the_case():
    pairs = Pairs(OPS["rmsnorm_fwd"], DTYPES)
    named = [f"mode {way}" for way in (ways.AUTOCAST, ways.COMPILED)]

    def of(value, dtype):
        return {pairs.values[n][1] for n in pairs.ways_taken("mode", value, CaseSpec((2, 3), dtype))}

    assert of(ways.AUTOCAST, "float32") == {named[0]}
    assert of(ways.AUTOCAST, "float16") == set()
    assert of(ways.QUICK, "float32") & set(named) == {named[0]}
    assert of("", "float16") & set(named) == {named[1]}


@pytest.mark.parametrize("number", [2, 3, 4, 5, 8])
def test_a_choice_is_that_of_pythons_generator(number):
    values, (ours, pythons) = "abcdefgh"[:number], (Random(7), Random(7))
    chosen = [covering._choice(values, ours) for _ in range(50)]
    assert chosen == [pythons.choice(values) for _ in range(50)]
    assert ours.getstate() == pythons.getstate()
    assert set(chosen) == set(values)


def test_a_choice_of_one_value_draws_nothing():
    rng = Random(7)
    assert covering._choice("a", rng) == "a"
    assert rng.getstate() == Random(7).getstate()


@pytest.mark.parametrize(
    ("rows", "leading", "shape"),
    [
        (128, "1 leading dimensions", (128, 1024)),  # as many elements as a case may have
        (129, "1 leading dimensions", None),
        (2, "0 leading dimensions", None),  # there is no such shape
    ],
)
def test_a_case_of_chosen_values_has_a_shape_that_is_not_too_large(few, rows, leading, shape):
    pairs = Pairs(RMSNORM, ("float32",))
    names = ["rows ≤ 64", "N ≤ 1024", leading, "1 normalized dimensions", "dtype float32", "weights of x's type"]
    chosen = {pairs.values[pairs.number[name]][0].name: pairs.number[name] for name in names}
    chosen |= {"data": pairs.number["data zero"], "x_layout": pairs.number["transposed x"]}
    for name, only in (("rows ≤ 64", rows), ("N ≤ 1024", 1024)):
        pairs.choices[pairs.number[name]] = (only,)
    made = covering._spec(pairs, chosen, Random(0))
    assert (made and made.shape) == shape
    assert made is None or (made.data, made.x_layout, made.dtype) == ("zero", "transposed", "float32")


def test_a_case_of_two_values_has_both_and_what_they_follow_from(few):
    pairs = Pairs(RMSNORM, ("float32",))

    def made(*names, greedy=True, seed=0):
        return covering._case(pairs, *(pairs.number[name] for name in names), Random(seed), greedy=greedy)

    assert made("rows ≤ 1", "rows ≤ 64") is None
    assert made("float32, N ≤ 31", "N ≤ 1024") is None
    for greedy in (True, False):
        some = [made("float32, N ≤ 31", "rows ≤ 64", greedy=greedy, seed=seed) for seed in range(20)]
        found = [spec for spec in some if spec]
        assert {2 <= spec.shape[1] <= 31 < 64 >= spec.shape[0] > 16 for spec in found} == {True}
        assert len(found) > 5
        assert {spec.data for spec in found} == {"normal"}  # the other value would hide the rest
    pairs.enter(CaseSpec((40, 31), dtype="float32", further=()))
    fresh = [made("rows ≤ 64", "1 leading dimensions", seed=seed) for seed in range(20)]
    assert {(spec.x_layout, spec.shape[1] > 31) for spec in fresh} == {("transposed", True)}  # which have not met them


@pytest.mark.parametrize(
    ("op", "values", "fields"),
    [
        ("rmsnorm_fwd", ("special nan", "special_in weight", "weight random"), {"special_in": "weight"}),
        ("rmsnorm_fwd", ("special nan", "special_in weight", "no weight"), None),  # nothing holds it
        ("rmsnorm_fwd", ("dtype float16", "subnormal x"), {"log2_scale": -15}),
        ("rmsnorm_fwd", ("dtype bfloat16", "subnormal x"), {"log2_scale": -127}),
        ("layernorm_bwd", ("one tensor x:dy", "transposed x", "own dy"), {"dy_layout": "transposed"}),
    ],
)
def test_a_case_of_chosen_values_is_one_that_the_operator_takes(op, values, fields):
    pairs = Pairs(OPS[op], DTYPES)
    chosen = {axis.name: pairs.usual[axis.name][0] for axis in pairs.free}
    for value in (pairs.number[name] for name in ("1 leading dimensions", *values)):
        chosen[pairs.values[value][0].name] = value
    made = covering._spec(pairs, chosen, Random(0))
    assert (made and {name: getattr(made, name) for name in fields or ()}) == fields


@pytest.mark.parametrize("poison", ["nan", "finite"])
def test_a_case_keeps_its_poison_whatever_its_turn(poison):
    """Which is a value of an axis of its own."""
    pairs, made = Pairs(OPS["rmsnorm_fwd"], DTYPES), CaseSpec((4, 64), poison=poison)
    turned = [further_runs.drawn(made, number, pairs.op) for number in range(further_runs.ROUND)]
    assert len({spec.poison for spec in turned}) == 2
    named = covering._named(pairs, made, turned, (0, 1), 0)
    assert {spec.poison for spec in named} == {poison}


def test_of_ways_that_are_as_useful_each_has_its_turn(few):
    pairs = Pairs(RMSNORM, ("float32",))
    two = pairs.number["rows ≤ 64"], pairs.number["N ≤ 1024"]
    again = 2 * further_runs.ROUND * further_runs.VARIANTS  # numbers after which a case has the same further runs
    cases = [covering._best(pairs, *two, Random(0), again * turn) for turn in range(8)]
    assert len({spec.further for spec in cases}) == 1
    assert len({tuple(getattr(spec, field) for field in ways.WAYS) for spec in cases}) > 4
