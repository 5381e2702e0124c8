"""Random numbers by counter: the same on every device, and of the distribution that they have by name."""

import zlib

import numpy as np
import pytest
import torch
from scipy import stats

from verify_norm.cases import random
from verify_norm.cases.device_array import DeviceArray, in_memory
from verify_norm.cases.random import MANY, Random

DRAWS = {
    "normal": (lambda rng, shape: rng.standard_normal(shape), stats.norm.cdf),
    "heavy": (lambda rng, shape: rng.heavy(shape), stats.t(2).cdf),
    "integers": (lambda rng, shape: rng.integers(-8, 9, shape) + rng.few.random(shape), stats.uniform(-8, 17).cdf),
}


@pytest.mark.parametrize("count", [MANY, MANY - 1], ids=["by counter", "by NumPy"])
@pytest.mark.parametrize("name", DRAWS)
def test_the_distribution(name, count):
    draw, cdf = DRAWS[name]
    values = draw(Random(3, "x"), (count,))
    assert stats.kstest(values, cdf).pvalue > 1e-4
    assert stats.kstest(values * 1.03, cdf).pvalue < 1e-4 or name != "normal"  # the test sees 3 % of scale
    few, many = (draw(Random(3, "x"), (count,)).dtype for count in (4, MANY))
    assert few == many == np.float64


def test_neighbours_calls_names_and_seeds_are_independent():
    draws = [Random(seed, name).standard_normal((MANY,)) for seed, name in ((1, "x"), (2, "x"), (1, "dy"))]
    rng = Random(1, "x")
    draws += [[rng.standard_normal((MANY,)) for _ in range(2)][1], np.roll(draws[0], 1), np.roll(draws[0], 1024)]
    limit = 6 / MANY**0.5
    assert all(abs(np.corrcoef(a, b)[0, 1]) < limit for i, a in enumerate(draws) for b in draws[:i])


@pytest.mark.parametrize(
    ("seed", "known"),
    [
        (5, ["-0x1.0edfaa895fab0p-2", "0x1.8023d496c312cp-3"]),
        (7, ["-0x1.200e234b0b330p+0", "-0x1.67132d15daaf8p+0"]),
        (2**64 - 1, ["0x1.edbea7e26ee32p-2", "0x1.d83f72e09c2dap+0"]),
    ],
)
def test_a_draw_is_known(seed, known):
    """Whoever changes the numbers changes what each replay line of a large case means."""
    normal = Random(seed, "x").standard_normal((512, 256))
    assert [float(v).hex() for v in normal[0, :2]] == known
    assert np.array_equal(Random(seed, "x").standard_normal((512, 256)), normal)


def test_cells_of_normal_numbers_are_equally_probable_and_the_last_end():
    random._edges.cache_clear()
    edges = random._edges()
    assert (edges.dtype, edges.size, edges.flags.writeable) == (np.float64, 2**14 + 1, False)
    assert np.array_equal(edges, edges.astype(np.float32))
    assert np.allclose(stats.norm.cdf(edges[1:-1]), np.arange(1, 2**14) / 2**14, rtol=0, atol=1e-7)
    assert -edges[0] == edges[-1] == pytest.approx(stats.norm.isf(2.0**-20))
    assert random._edges() is edges


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", DRAWS)
def test_a_device_draws_many_numbers_itself_and_the_same_bits(name, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    draw, _ = DRAWS[name]
    for count in (MANY, MANY + 3):
        here, there = draw(Random(5, "x"), (count,)), draw(Random(5, "x", device), (count,))
        assert isinstance(there, DeviceArray)
        # torch's sqrt of many numbers on a CPU is not that of IEEE 754; a GPU's is
        near = 2.0**-51 if (name, device) == ("heavy", "cpu") else 0.0
        np.testing.assert_allclose(in_memory(there), here, rtol=near, atol=0)
    assert isinstance(draw(Random(5, "x", device), (MANY - 1,)), np.ndarray)


def test_a_device_needs_no_numbers_of_the_host():
    rng = Random(5, "x", "meta")
    for drawn in (rng.standard_normal((MANY,)), rng.heavy((MANY,)), rng.integers(0, 9, (MANY,))):
        assert drawn.tensor.device.type == "meta"


def test_the_first_and_the_last_bits_are_finite_numbers(monkeypatch):
    monkeypatch.setattr(Random, "_drawn", lambda self, function, shape: function(np.array([0, -1])))
    low, high = Random(5, "x").heavy((MANY,))
    assert low == -high
    assert high == pytest.approx(2.0**26)


@pytest.mark.parametrize(("bits", "signed"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_bits_as_signed_integers(bits, signed):
    assert random._signed(bits) == signed


def test_large_seeds_that_differ_give_other_numbers():
    """Also above 2**63, where a list of two numbers is float64 for NumPy."""
    drawn = [Random(seed, "x").standard_normal((4,)) for seed in (2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1)]
    assert len({values.tobytes() for values in drawn}) == 4
    assert Random(7, "x").few.random() == np.random.Generator(np.random.Philox(key=[7, zlib.crc32(b"x")])).random()
