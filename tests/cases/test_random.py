"""Random numbers by counter: the same on every device, and of the distribution that they have by name."""

import zlib

import numpy as np
import pytest
import torch
from scipy import stats

from verify_norm.cases import random
from verify_norm.cases.device_array import in_memory
from verify_norm.cases.random import MANY, Random

DRAWS = {
    "normal": (lambda rng, shape: rng.standard_normal(shape), stats.norm.cdf),
    "heavy": (lambda rng, shape: rng.heavy(shape), stats.t(2).cdf),
    "integers": (lambda rng, shape: rng.integers(-8, 9, shape) + rng.few.random(shape), stats.uniform(-8, 17).cdf),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_distribution(name):
    draw, cdf = DRAWS[name]
    values = draw(Random(3, "x"), (MANY,))
    assert stats.kstest(values, cdf).pvalue > 1e-4
    assert stats.kstest(values * 1.02, cdf).pvalue < 1e-4 or name != "normal"  # the test sees 2 % of scale
    few, many = (draw(Random(3, "x"), (count,)).dtype for count in (4, MANY))
    assert few == many == np.float64


def test_neighbours_calls_names_and_seeds_are_independent():
    draws = [Random(seed, name).standard_normal((MANY,)) for seed, name in ((1, "x"), (2, "x"), (1, "dy"))]
    rng = Random(1, "x")
    draws += [[rng.standard_normal((MANY,)) for _ in range(2)][1], np.roll(draws[0], 1), np.roll(draws[0], 1024)]
    limit = 6 / MANY**0.5
    assert all(abs(np.corrcoef(a, b)[0, 1]) < limit for i, a in enumerate(draws) for b in draws[:i])


def test_a_draw_is_known():
    """Whoever changes the numbers changes what each replay line of a large case means."""
    normal = Random(7, "x").standard_normal((512, 256))
    assert [float(v).hex() for v in normal[0, :2]] == KNOWN
    assert np.array_equal(Random(7, "x").standard_normal((512, 256)), normal)


KNOWN = ["-0x1.200e234b0b330p+0", "-0x1.67132d15daaf8p+0"]


def test_cells_of_normal_numbers_are_equally_probable_and_the_last_end():
    random._edges.cache_clear()
    edges = random._edges()
    assert (edges.dtype, edges.size, edges.flags.writeable) == (np.float64, 2**14 + 1, False)
    assert np.array_equal(edges, edges.astype(np.float32))
    assert np.allclose(stats.norm.cdf(edges[1:-1]), np.arange(1, 2**14) / 2**14, rtol=0, atol=1e-7)
    assert -edges[0] == edges[-1] == pytest.approx(stats.norm.isf(2.0**-20))
    assert random._edges() is edges


@pytest.mark.gpu
def test_a_gpu_draws_the_same_bits():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for draw, _ in DRAWS.values():
        here, there = draw(Random(5, "x"), (MANY + 3,)), draw(Random(5, "x", "cuda"), (MANY + 3,))
        assert np.array_equal(here, in_memory(there))


def test_large_seeds_that_differ_give_other_numbers():
    """Also above 2**63, where a list of two numbers is float64 for NumPy."""
    drawn = [Random(seed, "x").standard_normal((4,)) for seed in (2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1)]
    assert len({values.tobytes() for values in drawn}) == 4
    assert Random(7, "x").few.random() == np.random.Generator(np.random.Philox(key=[7, zlib.crc32(b"x")])).random()
