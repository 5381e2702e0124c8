"""A quantization: scales of blocks, saturation, zeros, what is not finite; its bounds against float32 kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from references import EPS, FLOAT32

from verify_norm.core.ops import OPS
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.stages.quantize import Quantize
from verify_norm.reference.stages.stage import Approximate, passed, rounded

EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
ROUNDS = Arithmetic(u=2.0**-10, tiny=0.0, huge=1e300)
FP8, INT8 = Quantize("float8_e4m3fn", "per_token"), Quantize("int8", "per_token")
NONE = {}


def about(z, delta=0.0, size=None):
    z = np.atleast_2d(np.asarray(z, float))
    return Approximate(
        z, np.broadcast_to(delta, z.shape), np.abs(z) if size is None else np.broadcast_to(size, z.shape)
    )


def quantized(stage, z, given=NONE):
    with np.errstate(all="ignore"):
        return passed(stage, z, given, FLOAT32)


def row(n, **at):
    z = np.ones((1, n))
    for place, value in at.items():
        z[0, int(place[1:])] = value
    return z


def test_each_block_of_a_row_has_its_own_scale_and_the_last_one_is_short():
    z = row(130, _0=-8.96, _127=2.0, _128=0.5, _129=4.48)
    assert Quantize("float8_e4m3fn", "group128").scale(z, NONE) == pytest.approx(np.array([[0.02, 0.01]]))
    assert Quantize("float8_e4m3fn", "group64").scale(z, NONE) == pytest.approx(np.array([[0.02, 2 / 448, 0.01]]))
    assert Quantize("float8_e5m2", "per_token").scale(z, NONE) == pytest.approx(np.array([[8.96 / 57344]]))
    y = Quantize("float8_e4m3fn", "group128").value(z, NONE)
    assert y[0, [0, 1, 127, 128, 129]] == pytest.approx([-448, 50, 100, 50, 448])
    assert Quantize("int8", "group64").value(np.zeros((0, 70)), NONE).shape == (0, 70)


def test_bounds_of_the_scale():
    z = row(4, _1=-12.7)
    assert INT8.scale(z, NONE) == pytest.approx(np.array([[0.1]]))
    assert Quantize("int8", "per_token", True).scale(z, {"scale_ub": np.array([6.35])}) == pytest.approx(
        np.array([[0.05]])
    )
    assert Quantize("int8", "per_token", True).value(z, {"scale_ub": np.array([6.35])})[0, 1] == -127
    assert INT8.scale(z, {"scale_floor": 0.5}) == pytest.approx(np.array([[0.5]]))
    assert Quantize("int8").value(z, {"y_scale": np.array([0.2])})[0].tolist() == pytest.approx([5, -63.5, 5, 5])
    assert Quantize("int8").value(z, {"y_scale": np.array([0.05])})[0, 1] == -127


def test_zeros_have_any_scale_that_makes_zeros_of_them():
    for floor, want in ((0.0, 1.0), (1e-3, 1e-3)):
        given = {"scale_floor": floor}
        made = quantized(FP8, about(np.zeros(3)), given)
        assert (made.value == 0).all()
        assert (made.delta == 0).all()
        assert FP8.scale(np.zeros((1, 3)), given) == want
        assert 1 <= want + FP8.scale_error(about(np.zeros(3)), given, FLOAT32) <= 2
    unknown = quantized(FP8, about(np.zeros(3), 1e-9))  # rounding errors, as of a constant row
    assert not np.isfinite(unknown.delta).any()


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_not_finite_is_not_judged_and_nothing_else_is_touched(special):
    stage, z = Quantize("float8_e4m3fn", "group64"), about(row(128, _3=special))
    y, scale = quantized(stage, z), stage.scale_error(z, NONE, FLOAT32)
    assert np.isnan(y.value[0]).tolist() == [place == 3 for place in range(128)]
    assert np.isfinite(y.delta[0]).tolist() == [place >= 64 for place in range(128)]
    assert np.isfinite(scale).tolist() == [[False, True]]


def test_terms_of_the_bound():
    """|z|·σ, δz/s⁻, the roundings, and what saturates, of a scale of 0.1; those of A count where it is off."""
    z = [12.7, 1.0]
    assert INT8.scale_error(about(z), NONE, EXACT) == 0
    assert INT8.scale_error(about(z, [1.27, 0.0]), NONE, EXACT) == pytest.approx(0.01)
    assert INT8.scale_error(about(z, [0.0, 1.27]), NONE, EXACT) == 0
    assert INT8.scale_error(about(z), NONE, ROUNDS) == pytest.approx(0.1 * 4 * 2.0**-10, rel=0.01)
    delta = INT8.own_error(about(z), NONE, ROUNDS)[0]
    assert delta[1] == pytest.approx(10 * (4 + 7) * 2.0**-10, rel=0.02)  # 1/s and seven more
    assert INT8.own_error(about(z, [0.0, 0.5]), NONE, EXACT)[0].tolist() == pytest.approx([0, 5])
    assert INT8.own_error(about(z, [1.27, 0.0]), NONE, EXACT)[0, 1] == pytest.approx(10 / 0.9 - 10)
    assert INT8.own_error(about([12.0, 1.0], [1.27, 0.0]), {"scale_floor": 0.1}, EXACT)[0, 1] == pytest.approx(
        10 - 127 / 13.27
    )
    flushes = Arithmetic(u=0.0, tiny=2.0**-40, huge=1e300)
    assert INT8.own_error(about(z), NONE, flushes)[0, 1] == pytest.approx((4 + 4 / 0.1) * 2.0**-40, abs=0)
    half = replace(EXACT, z_u=2.0**-11, z_tiny=2.0**-9, z_huge=65504.0)
    narrow = INT8.own_error(rounded(about([0.0, 12.7, 1.0]), half), NONE, half)[0]
    assert narrow[2] == pytest.approx(10 * (2 * 2.0**-11 + (1 + 1 / 12.7) * 2.0**-9), rel=2e-3)  # of z, and of A
    assert narrow[0] == 0
    assert not np.isfinite(quantized(INT8, rounded(about(7e4), half)).delta).any()
    judged = [bool(np.isfinite(quantized(FP8, about(most)).delta).all()) for most in (1e-35, 1e-34, 1e36, 1e38)]
    assert judged == [False, True, True, False]  # a scale, and 1/A, are normal numbers
    given = {"y_scale": np.array([0.01])}
    assert Quantize("int8").own_error(about([2.0, -2.0]), given, EXACT)[0].tolist() == [0, 1]  # −128 is right too
    terms = about([1.0, 12.7], size=[9.0, 12.7])
    assert INT8.own_error(terms, NONE, ROUNDS)[0, 0] == pytest.approx(10 * (4 + 7 * 9) * 2.0**-10, rel=0.02)


STATIC = Quantize("int8")
TENTH = {"y_scale": np.array([0.1])}


def test_a_contract_may_leave_the_range_open():
    given = TENTH | {"largest": np.inf}
    assert STATIC.value(np.array([[20.0, -20.0]]), given).tolist() == [[200, -200]]
    assert STATIC.value(np.array([[20.0, -20.0]]), TENTH).tolist() == [[127, -127]]
    assert STATIC.own_error(about(20.0, 0.05), given, EXACT)[0, 0] == pytest.approx(0.5)
    assert STATIC.own_error(about(20.0, 0.05), TENTH, EXACT)[0, 0] == 0


@pytest.mark.parametrize(("how", "scale"), [(None, 1), ("floor", 1), ("ceil", 2), ("even", 1), ("rceil", 2)])
def test_the_power_of_two_of_a_block_is_rounded_as_the_contract_says(how, scale):
    """480 is 1.875·2⁸, and more than 448."""
    z, given = row(33, _0=480.0, _32=448.0), NONE if how is None else {"e8m0": how}
    assert Quantize("float8_e4m3fn", "mx").scale(z, given).tolist() == [[scale, 2 if how in ("ceil",) else 1]]


def test_the_scale_of_a_tensor_is_a_factor_of_all_scales():
    stage, z, given = (
        Quantize("float4_e2m1fn", "nvfp4"),
        row(17, _0=12.0, _1=3.0, _16=24.0),
        {"global_scale": np.array([0.5])},
    )
    assert stage.scale(z, given).tolist() == [[1, 2]]
    assert stage.value(z, given)[0, [0, 1, 2, 16]].tolist() == [6, 1.5, 0.5, 6]
    delta = stage.own_error(about(z), given, ROUNDS)[0]
    assert delta[1] == pytest.approx(1.5 * (4 + 3 + 4 + 2) * 2.0**-10, rel=0.03)


@pytest.mark.parametrize(
    ("stage", "given", "values"),
    [
        (STATIC, TENTH, (127, -127, 0)),
        (Quantize("float8_e4m3fn"), TENTH, (448, -448, np.nan)),
        (Quantize("float4_e2m1fn"), TENTH, (6, -6, 0)),
        (INT8, NONE, (np.nan, np.nan, np.nan)),
        (Quantize("int8", "per_token", True), {"scale_ub": np.array([1.0])}, (127, -127, np.nan)),
        (Quantize("float4_e2m1fn", "mx"), NONE, (6, -6, np.nan)),
    ],
)
def test_what_becomes_of_infinities_and_nan(stage, given, values):
    """A given scale or a bound saturates infinities, and a type without NaN has 0 for it by a given scale."""
    for z, want in zip((np.inf, -np.inf, np.nan), values, strict=True):
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(stage.value(row(2, _0=z), given)[0, 0], want)


@pytest.mark.parametrize(("z", "delta"), [(np.inf, 0.0), (np.nan, 0.0), (1.0, np.inf)])
def test_a_bound_of_the_scale_does_not_hide_what_is_unknown(z, delta):
    stage, given = Quantize("int8", "group64", True), {"scale_ub": np.array([0.5])}
    with np.errstate(all="ignore"):
        off = stage.scale_error(about(row(128, _3=z), row(128, _3=delta) - row(128, _3=0.0)), given, EXACT)
    assert off.tolist() == [[np.inf, 0]]


def test_a_scale_may_be_lost_below_the_smallest_number():
    assert INT8.scale_error(about(12.7), NONE, Arithmetic(u=0.0, tiny=2.0**-40, huge=1e300)) == 2.0**-40


@pytest.mark.parametrize(
    ("tiny", "huge", "edge", "beyond"),
    [
        (2.0**-20, 2.0**30, 2.0**-18, 0.0),
        (2.0**-40, 2.0**30, 2.0**-28, 0.0),  # 1/huge is larger than tiny
        (2.0**-20, 2.0**30, 2.0**20 / (4 * 127), np.inf),
        (2.0**-40, 2.0**30, 2.0**30 / (4 * 127), np.inf),
        (0.0, 2.0**30, 2.0**30 / (4 * 127), np.inf),
    ],
)
def test_a_scale_is_judged_where_all_that_it_is_computed_with_is_in_range(tiny, huge, edge, beyond):
    a = Arithmetic(u=0.0, tiny=tiny, huge=huge)
    scales = edge, np.nextafter(edge, beyond)
    judged = [np.isfinite(STATIC.own_error(about(1.0), {"y_scale": np.array([s])}, a)).all() for s in scales]
    assert judged == [True, False]


def test_a_rounding_of_z_is_that_of_the_largest_that_it_may_be():
    narrow, floor = replace(EXACT, z_u=2.0**-8, z_huge=65504.0), {"scale_floor": 1.0}
    assert INT8.own_error(rounded(about(8.0, 4.0), narrow), floor, narrow)[0, 0] == 4 + 12 * 2.0**-8
    with np.errstate(invalid="ignore"):
        of_largest = [rounded(about(z, 10.0), narrow) for z in (65480.0, 65500.0)]
        judged = [np.isfinite(INT8.own_error(z, floor, narrow)).all() for z in of_largest]
    assert judged == [True, False]  # it may overflow


def test_roundings_are_those_of_the_largest_terms():
    delta = INT8.own_error(about([1.0, 12.7], [4.0, 0.0], [9.0, 12.7]), NONE, ROUNDS)[0, 0]
    assert delta == pytest.approx(10 * (4 + (4 + 7 * 13) * 2.0**-10), abs=0.25)


@pytest.mark.parametrize(
    ("z", "off", "delta"),
    [
        (127.5, 1.0, 0.5),  # 127 at most, 126.5 at least
        (-127.0, 0.0, 0.0),
        (-127.5, 0.0, 0.0),  # a tie
        (-127.625, 0.0, 1.0),  # −128 is right too
        (-127.0, 0.625, 1.0),
        (-127.0, 0.25, 0.25),
        (-129.0, 1.0, 1.0),
    ],
)
def test_what_saturates_is_off_by_less_or_by_one_below(z, off, delta):
    assert STATIC.own_error(about(z, off), {"y_scale": np.array([1.0])}, EXACT)[0, 0] == delta
    assert STATIC.own_error(about(z / 8, off / 8), {"y_scale": np.array([0.125])}, EXACT)[0, 0] == delta


def test_zeros_are_zeros():
    with np.errstate(all="ignore"):
        assert FP8.own_error(about(np.zeros(3)), NONE, FLOAT32).tolist() == [[0, 0, 0]]


def test_there_is_no_gradient():
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="quantize"):
        FP8.pull(one, one, NONE)
    with pytest.raises(ValueError, match="quantize"):
        FP8.pull_error(one, 0.0, about(1.0), NONE, EXACT)


KERNELS = {
    "a division": lambda z, A, L: (A / L, z / (A / L)),
    "a reciprocal": lambda z, A, L: (A * (1 / torch.tensor(L)), z * (1 / (A / L))),
    "L/A": lambda z, A, L: (A / L, z * (L / A)),
    "1/A": lambda z, A, L: (A / L, (z * (1 / A)) * L),
}


@pytest.mark.parametrize("granularity", ["per_token", "group64"])
def test_bounds_hold_and_are_reached(granularity):
    """Of y before its last rounding, in float32, at a scale that the data determine."""
    op, worst = OPS[f"layernorm | quantize(e5m2, {granularity})_fwd"], {}
    for seed in range(24):
        rng, n = np.random.default_rng(seed), (64, 130, 257)[seed % 3]
        x = rng.normal(size=(5, n)) * (1.0, 1e-3, 30.0)[seed % 3] + (seed % 4 == 3) * 100
        x, weight, bias = (v.astype(np.float32) for v in (x, rng.normal(size=n), rng.normal(size=n)))
        given = {"x": x.astype(float), "weight": weight.astype(float), "bias": bias.astype(float), "eps": EPS}
        truth, delta = op.reference(**given), op.error(**given, arithmetic=FLOAT32)
        t = torch.from_numpy(x)
        centre = t - t.mean(1, keepdim=True)
        z = centre * (centre.square().mean(1, keepdim=True) + EPS).rsqrt() * torch.from_numpy(
            weight
        ) + torch.from_numpy(bias)
        length = 64 if granularity == "group64" else n
        A = torch.stack([part.abs().amax(1) for part in z.split(length, 1)], 1)
        for how, make in KERNELS.items():
            s, y = make(z, A.repeat_interleave(length, 1)[:, :n], 57344.0)
            for name, got in (("y", y.clamp(-57344, 57344)), ("y_scale", s[:, ::length])):
                off = np.abs(got.double().numpy() - getattr(truth, name))
                ratio = off / (getattr(delta, name) + 2.0**-25 * np.abs(getattr(truth, name)))
                worst[how, name] = max(worst.get((how, name), 0.0), float(ratio.max()))
    assert max(worst.values()) <= 1, worst
    assert min(worst.values()) > 0.05, worst
