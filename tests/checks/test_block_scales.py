"""Norms in MXFP8, MXFP4 and NVFP4: right kernels pass, unusual ones too, and each usual mistake is detected."""

from dataclasses import replace
from functools import partial

import pytest

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import FURTHER, CaseSpec
from verify_norm.kernels.zoo import blocks

LAWS = tuple(name for name in FURTHER if name not in ("effects", "memory", "honesty", "calls", "modes", "autograd"))
SPECS = (
    CaseSpec((3, 2, 80), seed=1, scale=300.0, further=LAWS),  # two blocks of 32 and a short one
    CaseSpec((7, 64), dtype="bfloat16", data="padded", scale=100.0, seed=2, further=LAWS),  # rows of zeros
    CaseSpec((4, 97), dtype="float16", weight=False, data="heavy", scale=30.0, seed=3, further=LAWS),
    CaseSpec((5, 34), dtype="bfloat16", offset=100.0, weight_offset=1.0, seed=4, further=LAWS),
    CaseSpec((2, 3, 70), normalized_ndim=2, data="uneven", weight_data="wide", scale=40.7, seed=5, further=LAWS),
    CaseSpec((3, 1), seed=6, further=LAWS),
    CaseSpec((0, 8), seed=7, further=()),
    CaseSpec((4, 130), data="integers", weight_data="zero", seed=8, further=LAWS),
    CaseSpec((6, 200), data="constant", weight_data="some_zero", scale=1e3, seed=9, further=LAWS),
    CaseSpec((3, 150), log2_scale=-8, scale=1e6, seed=10, further=LAWS),
    CaseSpec((3, 150), log2_scale=-100, seed=11, further=()),
    CaseSpec((4, 96), eps=0.0, data="padded", seed=12, further=()),
    *(CaseSpec((4, 100), special=special, special_in=name, seed=13, further=())
      for special in ("nan", "inf") for name in ("x", "weight")),
)  # fmt: skip
ONCE = tuple(replace(spec, further=()) for spec in SPECS)
FP8, FP4, NV = "rmsnorm | quantize(e4m3fn, mx)", "rmsnorm | quantize(e2m1, mx)", "rmsnorm | quantize(e2m1, nvfp4)"
ADDED = "add | rmsnorm | quantize(e4m3fn, mx)"
E5M2 = "rmsnorm | quantize(e5m2, mx)"


def kernel(name, run, **contract):
    return Kernel("k", f"{name}_fwd", run=run, contract=Contract(**contract))


RIGHT = [
    (FP8, blocks.mx, {}),
    (FP8, blocks.mx_as_e8m0, {}),
    (FP8, blocks.mx_folded, {}),
    (ADDED, blocks.mx_added, {}),
    (FP8, blocks.mx_rceil, {"e8m0": "rceil"}),
    (FP8, partial(blocks.mx, how="even"), {"e8m0": "even"}),
    (E5M2, partial(blocks.mx, form="e5m2", how="ceil"), {"e8m0": "ceil"}),
    (FP4, blocks.mxfp4, {}),
    (FP4, partial(blocks.mxfp4, how="even"), {"e8m0": "even"}),
    (FP4, blocks.mxfp4_high_first, {"packing": "high"}),
    (NV, blocks.nvfp4, {}),
    (NV, partial(blocks.nvfp4, packing="high"), {"packing": "high"}),
]


@pytest.mark.parametrize(("name", "run", "contract"), RIGHT)
def test_right_kernels_are_within_the_bound(name, run, contract, findings):
    values = ("signature", "accuracy", "statistics", "nonfinite", "distribution")
    assert findings(kernel(name, run, **contract), ONCE, *values) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run", "contract"), [RIGHT[0], RIGHT[7], RIGHT[10]])
def test_right_kernels_pass_every_check(name, run, contract, findings):
    assert findings(kernel(name, run, **contract), SPECS) == {}


WRONG = [
    (ADDED, blocks.mx_before_the_addition, {"y", "y_scale"}),
    (FP8, blocks.mx_one_too_large, {"y", "y_scale"}),
    (FP8, blocks.mx_one_too_small, {"y", "y_scale"}),
    (FP8, blocks.mx_rceil, {"y", "y_scale"}),
    (FP8, blocks.mx_of_the_neighbour, {"y"}),
    (FP8, blocks.mx_of_the_row, {"y", "y_scale"}),
    (FP8, blocks.mx_of_64, {"y", "y_scale"}),
    (FP8, blocks.mx_not_saturated, {"y"}),
    (FP8, blocks.mx_zero_by_zero, {"y_scale"}),
    (FP8, blocks.mx_before_the_weight, {"y", "y_scale"}),
    (FP4, blocks.mxfp4_swapped, {"y"}),
    (NV, blocks.nvfp4_swapped, {"y"}),
    (NV, blocks.nvfp4_of_the_neighbour, {"y"}),
    (NV, blocks.nvfp4_of_32, {"y", "y_scale"}),
    (NV, blocks.nvfp4_without_the_tensor, {"y", "y_scale"}),
    (NV, blocks.nvfp4_scale_not_rounded, {"y"}),
    (NV, blocks.nvfp4_zero_by_zero, {"y"}),
    (NV, blocks.nvfp4_upwards, {"y", "y_scale"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run", "outputs"), WRONG)
def test_mistakes_are_detected_by_name(name, run, outputs, findings):
    found = findings(kernel(name, run), ONCE[:12], "signature", "accuracy")
    assert {output for _, output in found} == outputs, found


@pytest.mark.parametrize(
    ("name", "run", "contract"),
    [
        (FP8, partial(blocks.mx_of_the_neighbour, how="rceil"), {"e8m0": "rceil"}),
        (FP8, blocks.mx, {"e8m0": "rceil"}),
        (NV, blocks.nvfp4, {"packing": "high"}),
    ],
)
def test_a_weaker_contract_is_another_one_and_no_excuse(name, run, contract, findings):
    assert ("accuracy", "y") in findings(kernel(name, run, **contract), ONCE[:5], "accuracy")
