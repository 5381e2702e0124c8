"""Quantized norms: right kernels pass, unusual ones too, and each usual mistake is detected by name."""

from dataclasses import replace
from math import prod

import pytest
import torch
from torch.nn import functional

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, resolved
from verify_norm.core.spec import FURTHER, CaseSpec

LAWS = tuple(name for name in FURTHER if name not in ("effects", "memory", "honesty", "calls", "modes", "autograd"))
SPECS = (
    CaseSpec((3, 2, 300), seed=1, further=LAWS),  # two blocks of 128 and a short one
    CaseSpec((7, 64), dtype="bfloat16", data="padded", scale=100.0, seed=2, further=LAWS),  # rows of zeros
    CaseSpec((4, 257), dtype="float16", weight=False, data="heavy", scale=300.0, seed=3, further=LAWS),
    CaseSpec((5, 33), dtype="bfloat16", offset=100.0, weight_offset=1.0, scale=2.0**-6, seed=4, further=LAWS),
    CaseSpec((2, 3, 70), normalized_ndim=2, data="uneven", bias=False, scale=40.7, seed=5, further=LAWS),
    CaseSpec((3, 1), seed=6, further=LAWS),
    CaseSpec((0, 8), seed=7, further=()),
    CaseSpec((4, 130), data="integers", weight_data="zero", bias=False, seed=8, further=LAWS),
    CaseSpec((6, 200), data="constant", bias=False, weight_data="some_zero", seed=9, further=LAWS),
    CaseSpec((7, 300), data="padded", seed=14, further=LAWS),  # blocks of zeros, in rows that are not 0
    CaseSpec((3, 150), log2_scale=-8, scale=1e6, seed=10, further=LAWS),
    CaseSpec((3, 150), log2_scale=-100, seed=11, further=()),  # scales that leave the range
    CaseSpec((4, 90), eps=0.0, data="padded", seed=12, further=()),
    *(CaseSpec((4, 200), special=value, special_in=name, seed=13, further=())
      for value in ("nan", "inf", "nan+inf") for name in ("x", "weight")),
)  # fmt: skip
ONCE = tuple(replace(spec, further=()) for spec in SPECS)  # for checks of values
NAMES = (
    "add | rmsnorm | quantize(e4m3fn, per_token)",
    "add | rmsnorm | quantize(e4m3fn, group128)",
    "rmsnorm | quantize(int8, per_token, scale_ub)",
    "layernorm | quantize(int8, group64)",
    "layernorm | silu | quantize(e5m2, group128, scale_ub)",
    "rmsnorm | quantize(int8)",
    "layernorm | quantize(e4m3fn)",
)
FP8, GROUP, INT8 = NAMES[0], NAMES[1], NAMES[2]
UNUSUAL = ("", "reciprocal", "by L/A", "met before x̂", "float64", "scale 0 of zeros", "maximum without NaN")


def normed(x, residual, weight, bias, eps, offset, ns, centred, kind, how=""):
    """Return w·x̂ + b as w, x̂, b and rstd, of rows; and the sum, if there is one."""
    h = x.to(kind) if residual is None else x.to(kind) + residual.to(kind)
    r = h.reshape(-1, prod(ns))
    mean = r.mean(1, keepdim=True) if centred else torch.zeros(len(r), 1, dtype=kind)
    rstd = ((r - mean).square().mean(1, keepdim=True) + eps).rsqrt()
    w = torch.ones(prod(ns), dtype=kind) if weight is None else weight.to(kind).reshape(-1) + offset
    b = torch.zeros(prod(ns), dtype=kind) if bias is None else bias.to(kind).reshape(-1)
    saved = (mean[:, 0].float(), rstd[:, 0].float()) if centred else (rstd[:, 0].float(),)
    return (r - mean) * rstd, w, b, saved, h


def blocks(z, length):
    """Return rows in blocks, the last one filled with zeros."""
    return functional.pad(z, (0, -z.shape[1] % length)).reshape(len(z), -(-z.shape[1] // length), length)


def amax(z, length, how, dtype):
    """Return the largest |z| of each block, (M, K)."""
    if how == "tail left out" and z.shape[1] % length:
        most = blocks(z, length).abs().amax(2)
        most[:, -1] = 0.0
        return most
    if how == "half of a block":
        length_of_half = max(min(length, z.shape[1]) // 2, 1)
        return blocks(z, length)[:, :, :length_of_half].abs().amax(2)
    most = blocks(z, length)
    most = most.amax(2).abs() if how == "signed" else most.abs().amax(2)
    if how == "maximum without NaN":
        most = blocks(torch.where(z.isnan(), 0.0, z), length).abs().amax(2)
    return most.to(torch.bfloat16).to(z.dtype) if how == "amax in bfloat16" else most


def kernel(text, how="", **contract):
    """A kernel in torch of a chain that quantizes: a right one, or one with a mistake."""
    op = OPS[resolved(text)[0]]
    q, centred = op.quantizer, op.centred
    kind = torch.float64 if how == "float64" else torch.float32
    target, silu = getattr(torch, q.dtype), any(stage.name == "silu" for stage in op.stages)
    L = 240.0 if how == "L of another format" else q.largest

    def run(x, weight, eps, normalized_shape, bias=None, residual=None, weight_offset=0.0, y_scale=None, scale_ub=None):
        ns = normalized_shape
        xhat, w, b, saved, h = normed(x, residual, weight, bias, eps, weight_offset, ns, centred, kind)
        z = xhat * w + b
        z = functional.silu(z) if silu else z
        z = z.bfloat16().to(kind) if how == "z in bfloat16" else z
        z = z.to(x.dtype).to(kind) if how == "z in the type of x" else z
        n = z.shape[1]
        length = q.length(n) if how != "another length" else 2 * q.length(n)
        if q.dynamic:
            of = z
            if how == "amax before the addition":
                of = normed(x, None, weight, bias, eps, weight_offset, ns, centred, kind)[0] * w
            of = xhat if how == "amax without the weight" else of
            most = amax(of, length, how, x.dtype)
            most = torch.minimum(most, scale_ub) if q.bounded and "scale_ub" not in how else most
            s = most * torch.tensor(1 / L, dtype=kind) if how == "by L/A" else most / L
            s = torch.minimum(s, scale_ub) if how == "scale_ub of the scale" else s
            if contract.get("scale_floor") or how == "a floor":
                s = torch.clamp(s, min=contract.get("scale_floor") or 1 / (448 * 512))
            nothing = s.amax(1, keepdim=True) == 0 if how == "0/0 of a block" and s.numel() else s == 0
            used = s if how == "0/0 of zeros" else torch.where(nothing, 1.0, s)
            s = s if how == "scale 0 of zeros" else used
            used = used.roll(1, 0) if how == "the neighbour's scale" else used
            s = used if how == "the neighbour's scale" else s
            of_each = used.repeat_interleave(length, 1)[:, :n]
        else:
            of_each = y_scale.to(kind).reshape(1, 1)
        if how == "reciprocal":
            y = z * (1 / of_each)
        elif how == "by L/A" and q.dynamic:
            inverse = torch.where(most == 0, 0.0, L / most).repeat_interleave(length, 1)[:, :n]
            y = z * inverse
        elif how == "met before x̂" and not silu:
            y = xhat * (w / of_each) + b / of_each
        elif how == "reciprocal in bfloat16":
            y = z * (1 / of_each).bfloat16().to(kind)
        elif how == "multiplied":
            y = z * of_each
        else:
            y = z / of_each
        if q.dtype == "int8":
            y = torch.where(y.isnan(), 0.0, y)  # as hardware has it
            y = y.trunc() if how == "truncated" else y.round()
            y = y.to(torch.int32).to(torch.int8) if how == "wraps" else y.clamp(-128, 127).to(torch.int8)
        else:
            y = y.clamp(-L, L).to(target)
        s = None if not q.dynamic else (1 / s).float() if how == "the inverse" else s.float()
        return {
            "y": y.reshape(x.shape),
            **({} if s is None else {"y_scale": s[:, 0] if s.shape[1] == 1 else s}),
            **({} if residual is None else {"residual_out": h.reshape(x.shape).to(x.dtype)}),
            **dict(zip(("mean", "rstd") if centred else ("rstd",), saved, strict=True)),
        }

    return Kernel("k", op.name, run=run, contract=Contract(**contract))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), [(name, UNUSUAL[n % len(UNUSUAL)]) for n, name in enumerate(NAMES)])
def test_right_kernels_pass_every_check(name, how, findings):
    assert findings(kernel(name, how), SPECS) == {}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_right_kernels_are_within_the_bound(name, findings):
    for how in UNUSUAL[: -1 if "int8" in name else None]:
        assert findings(kernel(name, how), ONCE, "signature", "accuracy", "statistics", "nonfinite") == {}, how


def test_8_bits_that_hold_no_nan_have_a_scale_that_does(findings):
    found = findings(
        kernel("layernorm | quantize(int8, group64)", "maximum without NaN"), SPECS, "accuracy", "nonfinite"
    )
    assert set(found) == {("nonfinite", "y")}


@pytest.mark.slow
@pytest.mark.parametrize("name", [FP8, INT8])
def test_z_in_the_type_of_x_is_a_contract(name, findings):
    values = ("signature", "accuracy", "distribution", "statistics", "nonfinite", "identities")
    assert findings(kernel(name, "z in the type of x", z="x"), SPECS, *values) == {}
    assert ("accuracy", "y") in findings(kernel(name, "z in the type of x"), ONCE, "accuracy")
    assert ("accuracy", "y_scale") in findings(kernel(name, "half of a block", z="x"), ONCE, "accuracy")


def test_a_floor_of_the_scale_is_a_contract(findings):
    floored = kernel(FP8, scale_floor=1 / (448 * 512))
    assert findings(floored, ONCE, "signature", "accuracy", "statistics", "nonfinite") == {}
    wrong = kernel(FP8, "the neighbour's scale", scale_floor=1 / (448 * 512))
    assert ("accuracy", "y_scale") in findings(wrong, ONCE, "accuracy")


MISTAKES = {  # and the outputs that are wrong
    FP8: {
        "the neighbour's scale": {"y", "y_scale"},
        "amax before the addition": {"y", "y_scale"},
        "amax without the weight": {"y", "y_scale"},
        "amax in bfloat16": {"y", "y_scale"},
        "half of a block": {"y", "y_scale"},
        "signed": {"y", "y_scale"},
        "L of another format": {"y", "y_scale"},
        "the inverse": {"y_scale"},
        "a floor": {"y", "y_scale"},
        "0/0 of zeros": {"y"},
        "reciprocal in bfloat16": {"y"},
        "z in bfloat16": {"y", "y_scale"},
        "multiplied": {"y"},
    },
    GROUP: {
        "the neighbour's scale": {"y", "y_scale"},
        "another length": {"y", "y_scale"},
        "half of a block": {"y", "y_scale"},
        "tail left out": {"y", "y_scale"},
        "amax before the addition": {"y", "y_scale"},
        "0/0 of zeros": {"y"},
        "0/0 of a block": {"y"},
    },
    INT8: {
        "scale_ub left out": {"y", "y_scale"},
        "scale_ub of the scale": {"y", "y_scale"},
        "truncated": {"y"},
        "wraps": {"y"},
        "reciprocal in bfloat16": {"y"},
    },
    "rmsnorm | quantize(int8)": {"multiplied": {"y"}, "wraps": {"y"}, "truncated": {"y"}},
    "layernorm | quantize(e4m3fn)": {"multiplied": {"y"}, "L of another format": {"y"}},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), [(name, how) for name, many in MISTAKES.items() for how in many])
def test_mistakes_are_detected_by_name(name, how, findings):
    found = findings(kernel(name, how), ONCE[:12], "signature", "accuracy")
    assert {output for _, output in found} == MISTAKES[name][how], found
