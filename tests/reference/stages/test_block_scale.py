"""Scales of few bits: each rounding of MX against a search of all powers of two, E4M3 against all of its numbers."""

import ml_dtypes
import numpy as np
import pytest

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.stages.block_scale import BINADES, E8M0, in_e4m3, power_of_two
from verify_norm.reference.stages.quantize import LARGEST, Quantize
from verify_norm.reference.stages.stage import exactly

EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
ROUNDS = Arithmetic(u=2.0**-24, tiny=0.0, huge=1e300)
EDGES = np.array([1.0, 1.75, 1.8749, 1.875, 1.9374, 1.9375, 1.999]) * np.exp2([[-9.0], [0.0], [7.0]])


@pytest.mark.parametrize("dtype", BINADES)
@pytest.mark.parametrize("how", E8M0)
def test_a_power_of_two_is_that_of_its_definition(dtype, how):
    L, (binade, bits) = LARGEST[dtype], BINADES[dtype]
    for most in EDGES.ravel():
        powers = [2.0**k for k in range(-60, 60)]
        below = max(p for p in powers if p <= most)
        want = {
            "floor": below / 2**binade,
            "ceil": min(p for p in powers if p >= most) / 2**binade,
            "even": (below if np.floor(most / below * 2**bits + 0.5) < 2 ** (bits + 1) else 2 * below) / 2**binade,
            "rceil": min(p for p in powers if p * L >= most),
        }
        assert power_of_two(np.array([most]), dtype, L, how).tolist() == [want[how]], most


def test_e4m3_is_that_of_ml_dtypes():
    values = np.concatenate([np.linspace(0, 0.1, 999), np.linspace(0, 447, 999), [2.0**-10, 3 * 2.0**-10, 500.0]])
    want = np.minimum(values, 448).astype(ml_dtypes.float8_e4m3fn).astype(float)
    assert in_e4m3(values).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("granularity", "z", "scale", "other"),
    [("mx", 2.0, 0.5, 0.25), ("mx", 2.1, 0.5, 0.5), ("nvfp4", 6 * 1.0625, 1.0, 1.125), ("nvfp4", 6.5, 1.125, 1.125)],
)
def test_the_other_scale_is_right_at_the_edge_of_a_step_alone(granularity, z, scale, other):
    stage, given, about = Quantize("float4_e2m1fn", granularity), {"global_scale": np.ones(1)}, exactly(np.array([[z]]))
    assert stage.scale(about.value, given) == scale
    assert stage.scale_error(about, given, ROUNDS) == abs(scale - other)
    assert stage.scale_error(about, given, EXACT) == 0
    y, off = z / scale, abs(z / other - z / scale)
    want = max(min(y + off, 6.0) - min(y, 6.0), min(y, 6.0) - min(y - off, 6.0))  # 6 is the largest number
    assert stage.own_error(about, given, ROUNDS)[0, 0] == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_a_power_of_two_is_one_that_e8m0_holds_and_rounds_down_by_default():
    most = np.array([0.0, 2.0**-140, 1.5 * 2.0**-119, 2.0**140, 500.0])
    assert power_of_two(most, "float8_e4m3fn", 448.0).tolist() == [0.0, 2.0**-127, 2.0**-127, 2.0**127, 1.0]
