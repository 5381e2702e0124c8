"""Conversions of Triton's interpreter that differ from a GPU, and are patched."""

import importlib

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from verify_norm.core.dtypes import FORMATS
from verify_norm.running.interpreter import conversions, probes

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@triton.jit
def _arithmetic(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + N + i, x - y)
    tl.store(out_ptr + 2 * N + i, x * y)
    tl.store(out_ptr + 3 * N + i, tl.maximum(x, y))
    tl.store(out_ptr + 4 * N + i, tl.where(x < y, x, y))


def test_bfloat16_is_added_multiplied_and_compared_as_numbers():
    """Not as the 16-bit integers that Triton keeps it in: kernels of Liger's multiply dy by a rounded x̂."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**16, (2, 4096)).astype(np.uint16)
    x, y = bits.view(ml_dtypes.bfloat16)
    out = torch.zeros(5 * 4096, dtype=torch.bfloat16)
    _arithmetic[(1,)](*(torch.from_numpy(b.view(np.int16)).view(torch.bfloat16) for b in bits), out, 4096)
    with np.errstate(all="ignore"):
        got = out.view(torch.int16).numpy().view(ml_dtypes.bfloat16).reshape(5, -1).astype(np.float64)
        wide = [v.astype(np.float64) for v in (x, y)]
        exact = [(wide[0].astype(np.longdouble) + sign * wide[1]) for sign in (1, -1)]  # but for a tie's hair
        want = [v.astype(np.float64).astype(ml_dtypes.bfloat16) for v in (*exact, wide[0] * wide[1])]
        want = [v.astype(np.float64) for v in want]
    for number, values in enumerate(want):
        np.testing.assert_array_equal(got[number], values)
    known = ~(np.isnan(wide[0]) | np.isnan(wide[1]))
    np.testing.assert_array_equal(got[3][known], np.maximum(*wide)[known])
    np.testing.assert_array_equal(got[4][known], np.minimum(*wide)[known])


@triton.jit
def _total(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0))


def test_bfloat16_is_summed_as_numbers():
    """Each addition rounds, as a GPU's does."""
    out = torch.zeros(1, dtype=torch.bfloat16)
    _total[(1,)](torch.tensor([256.0, 2.5, 1.0, 2.5], dtype=torch.bfloat16), out, 4)
    assert out.item() == 260.0  # 256 + 1 → 256 and 5, whose sum of 261 is a tie; in float32 it would be 262


U = 2.0**-24  # half the distance of 1 and the next number of float32
LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("value", "odd"),
    [
        (1.5, 1.5),
        (1 + U / 32, 1 + 2 * U),
        (1 - U / 32, 1 - U),
        (-1 - U / 32, -1 - 2 * U),
        (1 + 2 * U + U / 32, 1 + 2 * U),
        (1 + 2 * U - U / 32, 1 + 2 * U),
        (1 + 4 * U + U / 32, 1 + 6 * U),
        (2.0**-150, 2.0**-149),
        (1e300, LARGEST),
        (-1e300, -LARGEST),
        (np.inf, np.inf),
        (np.nan, np.nan),
    ],
)
def test_what_float32_does_not_hold_becomes_its_odd_neighbour(value, odd):
    with np.errstate(all="ignore"):
        got = conversions.odd(np.array([value]))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array([odd], np.float32))


def test_a_number_of_float64_rounds_once():
    """A tie of bfloat16 and a hair, which float32 does not hold."""
    hair = np.array([1.0, 1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40, 1e300])
    want = [1.0, 1.0, 1 + 2.0**-7, 1 + 2.0**-7, np.inf]
    assert conversions.rounded(hair, "bfloat16").astype(float).tolist() == want


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_proof_probes_where_conversions_go_wrong(name):
    form = FORMATS[name]
    every = np.arange(2 ** (8 * form.dtype.itemsize - 1), dtype=f"u{form.dtype.itemsize}").view(form.dtype)
    with np.errstate(invalid="ignore"):
        every = every[np.isfinite(every)].astype(float)  # the positive ones, in order
    beyond = every[-1] + (every[-1] - every[-2])
    ties = (every + np.append(every[1:], beyond)) / 2
    normal, one, two = (int(np.flatnonzero(every == number)[0]) for number in (form.smallest_normal, 1.0, 2.0))
    numbers = [every[i] for i in (0, 1, one, one + 1, one + 3, two - 1, -1)]
    numbers += [ties[i] for i in (0, 1, 2, normal - 1, one, one + 1, one + 3, two - 1, -1)]
    numbers += [16 * ties[i] for i in (one, one + 1, one + 3, two - 1)]
    numbers = np.array([*numbers, LARGEST], np.float32)
    with np.errstate(over="ignore"):
        beside = [np.nextafter(numbers, np.float32(limit)) for limit in (-np.inf, np.inf)]
    wanted = {*numbers.tolist(), *np.concatenate(beside).tolist(), np.inf}
    got = {*conversions.probes(name).tolist()}
    assert wanted <= got
    assert {-number for number in wanted} <= got


def amiss(monkeypatch, kind, which, changed):
    """Let the kernel of the proof give other results for one type, in one of its two outputs."""
    kernel = probes.cast

    def run(x, *outputs):
        kernel[(1,)](x, *outputs)
        if outputs[which].dtype == getattr(torch, kind):
            for value, other in changed.items():
                for i in np.flatnonzero(x.isnan() if value is None else x == value):
                    outputs[which][int(i)] = other

    monkeypatch.setattr(probes, "cast", {(1,): run})


@pytest.mark.parametrize(("which", "how"), [(0, "cast"), (1, "store")])
@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("bfloat16", {1.0: 1.5}, "of 1.0 to bfloat16 gives 1.5, round to nearest even gives 1.0"),
        ("float8_e5m2", {16.0: 3.0, 1.0: 2.0}, "of 1.0 to float8_e5m2 gives 2.0, round to nearest even gives 1.0"),
        ("float8_e4m3fn", {None: 448.0}, "of NaN to float8_e4m3fn does not give NaN"),
    ],
)
def test_the_proof_tells_what_is_wrong(kind, changed, words, which, how, monkeypatch):
    conversions.prove()
    amiss(monkeypatch, kind, which, changed)
    with pytest.raises(RuntimeError, match=f"^Triton {triton.__version__} interpreter: a {how} {words}$"):
        conversions.prove()


@pytest.mark.parametrize("how", ["RTNE", "RTZ"])
@pytest.mark.parametrize("target", [tl.float8e4b15, tl.float8e5b16])
def test_types_that_a_gpu_of_nvidia_converts_in_no_instruction_are_left_to_triton(target, how):
    module = importlib.import_module("triton.runtime.interpreter")
    mode = getattr(importlib.import_module("triton._C.libtriton").ir.ROUNDING_MODE, how)
    given = (np.float32([1.0, 1.3, -2.9, 0.11]), tl.float32, target, mode)
    np.testing.assert_array_equal(module._convert_float(*given), module._convert_float.__wrapped__(*given))
