"""Norms into 8 bits: right kernels pass, unusual ones too, and each usual mistake is detected by name."""

from dataclasses import replace
from math import prod

import pytest
import torch
from checking import ONE_WAY

from verify_norm.auditing.fingerprint.probing import fingerprint
from verify_norm.cases.corner_lines import OUTPUT_SCALES
from verify_norm.cases.corners import corners
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load

VALUES = ("signature", "accuracy", "distribution", "statistics")
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
SPECS = (
    CaseSpec((3, 40), scale=300.0, seed=1),  # some saturate; in all modes
    CaseSpec((3, 2, 17), dtype="bfloat16", scale=1e6, bias=False, seed=2, **ONE_WAY),  # nearly all of them
    CaseSpec((4, 64), dtype="float16", scale=40.7, weight=False, seed=3, **ONE_WAY),
    CaseSpec((5, 33), scale=2.0**-14, offset=100.0, seed=4, **ONE_WAY),  # subnormals
    CaseSpec((2, 3, 20), normalized_ndim=2, scale=1.0, seed=5, **ONE_WAY),
    CaseSpec((3, 50), data="heavy", scale=100.0, seed=6, **ONE_WAY),
    CaseSpec((4, 12), data="integers", scale=1.0, eps=1e-3, seed=8, **ONE_WAY),
    CaseSpec((0, 8), seed=9, **ONE_WAY),
    CaseSpec((4, 30), special="nan", seed=10, **ONE_WAY),
    CaseSpec((4, 30), special="inf", scale=100.0, seed=12, **ONE_WAY),
)
UNUSUAL = ("", "scale folded into the weight", "amax without NaN")  # and right


def norm(output="float8_e4m3fn", mistake=""):
    """A right kernel in torch, or one with a mistake."""
    largest, kind = LARGEST[output], getattr(torch, output)

    def run(x, weight, bias, scale, eps, weight_offset, normalized_shape):
        rows = x.float().reshape(-1, prod(normalized_shape))
        mean = rows.mean(1, keepdim=True)
        rstd = ((rows - mean).square().mean(1, keepdim=True) + eps).rsqrt()
        w, b = (None if p is None else p.float().reshape(-1) for p in (weight, bias))
        w = None if w is None else w + weight_offset
        z = (rows - mean) * rstd
        if mistake == "scale folded into the weight":  # which is right
            y = z * scale if w is None else z * (w * scale)
            y = y if b is None else y + b * scale
        z = z if w is None else z * w
        z = z if b is None else z + b
        if mistake != "scale folded into the weight":
            y = z / scale if mistake == "divided" else z * scale
        most = {"amax after the scale": y, "amax of what is signed": z}.get(mistake, z.abs())
        most = most.abs() if mistake == "amax after the scale" else most
        amax = torch.zeros(1) if not z.numel() else most.max().reshape(1)
        if mistake == "amax without NaN":  # which is right: a GPU's maximum passes over it
            amax = torch.nan_to_num(most, nan=0.0).max().reshape(1) if z.numel() else amax
        if mistake == "amax of the rounded":
            amax = (y.clamp(-largest, largest).to(kind).float() / scale).abs().amax().reshape(1) if z.numel() else amax
        if mistake == "amax of the first row" and z.numel():
            amax = most[0].max().reshape(1)
        if mistake == "no saturation":
            y = torch.where(y.abs() > largest, torch.nan, y)
        elif mistake == "infinity":
            y = torch.where(y.abs() > largest, y * torch.inf, y)
        else:
            limit = 240.0 if mistake == "the other e4m3's largest" else largest
            y = y.clamp(-limit, limit)
        if mistake == "by way of bfloat16":
            y = y.bfloat16().float()
        if mistake == "truncated":
            bits = 20 if output == "float8_e4m3fn" else 21
            y = (y.view(torch.int32) >> bits << bits).view(torch.float32)
        y = y.to(kind).reshape(x.shape)
        return y, amax, mean.reshape(-1), rstd.reshape(-1)

    return run


def kernel(run, output="float8_e4m3fn"):
    return Kernel("k", "layernorm_fp8_fwd", run=run, contract=Contract(output=output))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("output", "unusual"), list(zip([*LARGEST, "float8_e4m3fn"], UNUSUAL, strict=True)))
def test_right_kernels_pass_every_check(output, unusual, findings):
    """Each in a third of the corner table."""
    table = corners(OPS["layernorm_fp8_fwd"], ("float32", "float16", "bfloat16"))
    small = [s for s in table if prod(s.shape) < 2000 and "far" not in (s.x_layout, s.dy_layout)]
    assert findings(kernel(norm(output, unusual), output), (*SPECS, *small[UNUSUAL.index(unusual) :: 3])) == {}


@pytest.mark.parametrize("output", LARGEST)
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_right_kernels_are_within_the_bound(output, unusual, findings):
    assert findings(kernel(norm(output, unusual), output), SPECS, *VALUES) == {}


@pytest.mark.parametrize("output", LARGEST)
@pytest.mark.parametrize(
    ("mistake", "output_at_fault"),
    [
        ("divided", "y"),
        ("no saturation", "y"),
        ("by way of bfloat16", "y"),
        ("truncated", "y"),
        ("amax after the scale", "amax"),
        ("amax of what is signed", "amax"),
        ("amax of the rounded", "amax"),
        ("amax of the first row", "amax"),
    ],
)
def test_mistakes_are_detected_by_name(output, mistake, output_at_fault, findings):
    found = findings(kernel(norm(output, mistake), output), SPECS, "accuracy")
    assert set(found) == {("accuracy", output_at_fault)}


def test_infinity_is_no_saturation(findings):
    assert ("accuracy", "y") in findings(kernel(norm("float8_e5m2", "infinity"), "float8_e5m2"), SPECS, *VALUES)


def test_the_other_e4m3s_largest_number_is_not_this_ones(findings):
    assert ("accuracy", "y") in findings(kernel(norm(mistake="the other e4m3's largest")), SPECS, *VALUES)


def test_the_wrong_format_is_detected(findings):
    assert ("signature", "y") in findings(kernel(norm("float8_e5m2"), "float8_e4m3fn"), SPECS, *VALUES)


def test_the_corner_table_saturates_and_underflows():
    table = corners(OPS["rmsnorm_fp8_fwd"], ("float32",))
    assert {spec.scale for spec in table} == set(OUTPUT_SCALES)
    assert all(spec.scale == 1.0 for spec in corners(OPS["rmsnorm_fwd"], ("float32",)))


def test_no_fingerprint_is_read_off_8_bits():
    assert fingerprint(kernel(norm())).statements == ()


@pytest.mark.slow
def test_a_kernel_that_writes_into_its_arguments(tmp_path, findings):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def rms_norm_static_fp8_quant(out, amax, input, weight, scale, epsilon):\n"
        "    z = input.float() * torch.rsqrt(input.float().square().mean(-1, keepdim=True) + epsilon)\n"
        "    z = z if weight is None else z * weight.float()\n"
        "    out.copy_((z * scale).clamp(-448, 448).to(torch.float8_e4m3fn))\n"
        "    amax.copy_(z.abs().max() if z.numel() else z.new_zeros(()))\n"
    )
    theirs = load(f"{path}:rms_norm_static_fp8_quant")
    assert theirs.op == "rmsnorm_fp8_fwd"
    specs = [replace(s, bias=True) for s in SPECS if s.normalized_ndim == 1 and not s.weight_offset]
    assert findings(theirs, specs) == {}
