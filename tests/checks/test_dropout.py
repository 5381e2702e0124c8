"""Dropout before a residual sum: wrong kernels that the checks detect in the corner table, and right ones that pass."""

from contextlib import nullcontext
from dataclasses import replace

import dropped
import numpy as np
import pytest
import torch

from verify_norm.auditing.fingerprint.rig import Feed, Rig
from verify_norm.cases import corners, make
from verify_norm.cases.corner_lines import DROPOUTS
from verify_norm.checks import CHECKS
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.errors import FindingsError, UsageError
from verify_norm.core.geometry import refusal
from verify_norm.core.kernel import Kernel
from verify_norm.core.nearest import fit
from verify_norm.core.ops import OPS, resolved
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.domain import refuse_only
from verify_norm.loading.registry import load_directions
from verify_norm.search.examine import examine
from verify_norm.testing import InputError, assert_norm_close, assert_norm_gradients_close

NUMERIC = ("accuracy", "statistics", "identities", "nonfinite", "degenerate", "distribution", "sums")
NORMS = {"layernorm": True, "rmsnorm": False}
SPECS = [
    CaseSpec((7, 40), dropout_p=0.1),
    CaseSpec((2, 5, 33), "bfloat16", dropout_p=0.5, weight_dtype="float32", data="heavy"),
    CaseSpec((9, 64), "float16", dropout_p=0.9, mask_layout="transposed", offset=10.0),
    CaseSpec((4, 300), "bfloat16", dropout_p=0.0, weight=False, dresidual_out=False),
    CaseSpec((3, 17), special="inf", special_in="residual", dropout_p=0.1),
    CaseSpec((3, 17), "float16", special="nan", special_in="x", dropout_p=0.5),
    CaseSpec((4, 3, 16), normalized_ndim=2, dropout_p=0.1, dy_data="zero_rows"),
]
WRONG_FORWARDS = {
    "the mask is ignored": {"y", "residual_out"},
    "not scaled": {"y", "residual_out"},
    "inverted": {"y", "residual_out"},
    "the scale in bfloat16": {"y", "residual_out"},
    "p for 1 - p": {"y", "residual_out"},
    "the mask of the first row": {"y", "residual_out"},
    "the sum is dropped": {"y", "residual_out"},
    "statistics of x": {"y", "rstd"},
}
RIGHT_FORWARDS = ("", "a reciprocal from Python", "a product with the mask", "p in float32", "float64")
WRONG_BACKWARDS = {
    "dx is not dropped": {"dx"},
    "dx is not scaled": {"dx"},
    "dresidual is dropped": {"dresidual"},
    "dresidual_out is not dropped": {"dx"},
    "dresidual_out is lost": {"dx", "dresidual"},
    "dy is dropped": {"dx", "dresidual"},
    "dx of the rounded dresidual": {"dx"},
}
RIGHT_BACKWARDS = ("", "a quotient", "a product with the mask")


def found(run, name, specs=SPECS, which=NUMERIC, **contract):
    """The outputs that some of the checks find wrong in these cases, and those checks."""
    kernel = Kernel("k", name, run=run, contract=Contract(**contract))
    outputs, checks = set(), set()
    for spec in specs:
        for finding in examine(kernel, spec, which, "cpu").findings:
            outputs.add(finding.output)
            checks.add(finding.check)
    return outputs, checks


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("how", WRONG_FORWARDS)
def test_a_wrong_forward_is_detected(how, norm):
    outputs, _ = found(dropped.forward(how, NORMS[norm]), f"dropout_add_{norm}_fwd", SPECS[:2])
    assert outputs >= WRONG_FORWARDS[how] - {None}


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("how", RIGHT_FORWARDS)
def test_a_right_forward_passes(how, norm):
    which = NUMERIC if how else tuple(CHECKS)
    assert found(dropped.forward(how, NORMS[norm]), f"dropout_add_{norm}_fwd", which=which) == (set(), set())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("how", WRONG_BACKWARDS)
def test_a_wrong_backward_is_detected(how, norm):
    outputs, _ = found(dropped.backward(how, NORMS[norm]), f"dropout_add_{norm}_bwd", SPECS[:3])
    assert outputs >= WRONG_BACKWARDS[how]


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("how", RIGHT_BACKWARDS)
def test_a_right_backward_passes(how, norm):
    op = OPS[f"dropout_add_{norm}_bwd"]
    specs = [replace(s, special_in={"residual": "dresidual_out"}.get(s.special_in, "x")) for s in SPECS]
    specs = [spec for spec in specs if refusal(spec, op) is None]
    which = NUMERIC if how else tuple(CHECKS)
    assert found(dropped.backward(how, NORMS[norm]), op.name, specs, which) == (set(), set())


@pytest.mark.parametrize("norm", NORMS)
def test_a_contract_that_rounds_the_sum(norm):
    """What is kept of the sum is its rounding, where the dropout's own error decides none."""
    name = f"dropout_add_{norm}_fwd"

    def rounded(**given):
        forward = dropped.forward("", NORMS[norm])
        summed = forward(**given)[1]
        whole = {"x": summed, "residual": summed * 0, "dropout_p": 0.0, "mask": given["mask"] | True}
        again = forward(**given | whole)
        return (again[0], summed, *again[2:])

    narrow = [spec for spec in SPECS if spec.dtype != "float32" and spec.special is None]
    assert found(rounded, name, narrow, residual="rounded") == (set(), set())
    assert "y" in found(rounded, name, narrow)[0]


@pytest.mark.parametrize("name", ["dropout_add_layernorm_bwd", "dropout_add_rmsnorm_bwd"])
def test_the_gradient_of_residual_has_the_identities_of_dx(name):
    """Σdresidual and Σdresidual·x̂ are looked at; dx is what the dropout makes of it."""
    centred = NORMS[name.removeprefix("dropout_add_").removesuffix("_bwd")]

    def grown(**given):
        dx, dresidual, *others = dropped.backward("", centred)(**given)
        return (dx, dresidual + 0.01 * given["residual_out"].sign(), *others)

    spec = CaseSpec((4, 256), dropout_p=0.5, offset=1.0)
    kernel = Kernel("k", name, run=grown, contract=Contract())
    messages = [f.message for f in examine(kernel, spec, ("identities",), "cpu").findings]
    assert any(message.startswith("dresidual") for message in messages)


def test_masks_are_drawn_in_their_proportion():
    op = OPS["dropout_add_rmsnorm_fwd"]
    for p in (0.0, 0.1, 0.5, 0.9):
        mask = make.exact_inputs(CaseSpec((200, 300), dropout_p=p), op)["mask"]
        assert set(np.unique(mask)) <= {0.0, 1.0}
        place = np.arange(200) % 8
        assert abs(mask[(place != 5) & (place != 6)].mean() - (1 - p)) < 0.01  # of other rows it keeps none, or all
    case = make.case(CaseSpec((4, 8), mask_layout="every_other"), op, Contract())
    assert str(case.arguments["mask"].dtype) == "torch.bool"


@pytest.mark.parametrize("name", ["dropout_add_layernorm", "dropout_add_rmsnorm"])
def test_the_corner_table_has_every_probability_and_layout_of_the_mask(name):
    for direction in ("fwd", "bwd"):
        table = corners.corners(OPS[f"{name}_{direction}"], KERNEL_DTYPES)
        assert {spec.dropout_p for spec in table} == set(DROPOUTS)
        assert len({spec.mask_layout for spec in table}) >= 4


def test_the_chain_has_the_row_s_name_and_wrong_ones_are_refused():
    assert resolved("dropout | add | rmsnorm(weight_offset=1)") == ("dropout_add_rmsnorm", "weight_offset=1")
    assert OPS["dropout | add | rmsnorm | silu_bwd"].dh == "dresidual"
    for text, words in (
        ("dropout | rmsnorm", "expected add behind dropout"),
        ("dropout(0.1) | add | rmsnorm", "dropout takes nothing in parentheses"),
        ("add | rmsnorm | dropout", "dropout stands behind rmsnorm"),
    ):
        with pytest.raises(UsageError, match=words.replace("(", r"\(")):
            resolved(text)


def test_assert_norm_close_takes_a_mask_and_a_probability():
    x, residual = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    mask, w = torch.arange(6 * 64).reshape(6, 64) % 3 > 0, torch.linspace(0.5, 2.0, 64).bfloat16()
    options = {"normalized_shape": (64,), "dropout_p": 0.25}
    right = dropped.forward("", False)(x=x, residual=residual, mask=mask, weight=w, eps=1e-6, **options)
    assert_norm_close(right, "dropout_add_rmsnorm", x, residual, mask, w, eps=1e-6, dropout_p=0.25)
    with pytest.raises(FindingsError, match="residual_out"):
        assert_norm_close(right, "dropout_add_rmsnorm", x, residual, ~mask, w, eps=1e-6, dropout_p=0.25)
    rstd = (right[1].float().square().mean(1) + 1e-6).rsqrt()
    given = {"dy": x, "dresidual_out": residual, "residual_out": right[1], "mask": mask, "weight": w, "rstd": rstd}
    for how, said in (("", None), ("dx is not dropped", "dx"), ("dresidual_out is lost", "dresidual")):
        gradients = dropped.backward(how, False)(**given, **options)
        tensors = [tensor for name, tensor in given.items() if name != "rstd"]
        with pytest.raises(FindingsError, match=said) if said else nullcontext():
            assert_norm_gradients_close(gradients, "dropout_add_rmsnorm", *tensors, eps=1e-6, dropout_p=0.25)
    for wrong, words in (
        ({"dropout_p": 1.0}, "dropout_p: expected a finite number from 0 to 0.999"),
        ({}, "dropout_add_rmsnorm_fwd needs dropout_p"),
    ):
        with pytest.raises(InputError, match=words):
            assert_norm_close(right, "dropout_add_rmsnorm", x, residual, mask, w, eps=1e-6, **wrong)
    with pytest.raises(InputError, match=r"^mask: expected bool, got float32"):
        assert_norm_close(right, "dropout_add_rmsnorm", x, residual, mask.float(), w, eps=1e-6, dropout_p=0.25)


@pytest.mark.parametrize("text", ["dropout_p>=1", "dropout_p=0.9,dropout_p<0.5"])
def test_only_asks_for_no_impossible_probability(text):
    with pytest.raises(UsageError, match="found no case that meets"):
        refuse_only(text, [OPS["dropout_add_rmsnorm_fwd"]])
    spec = fit("dropout_p<0.5", CaseSpec((2, 8), dropout_p=0.9), OPS["dropout_add_rmsnorm_fwd"])
    assert 0 <= spec.dropout_p < 0.5


def test_what_is_dropped_is_0_also_where_a_row_has_no_variance():
    spec = CaseSpec((3, 41), eps=0.0, data="zero", dropout_p=0.5)
    run = dropped.backward("", True)
    assert found(run, "dropout_add_layernorm_bwd", [spec]) == (set(), set())

    def guarded(**given):
        return tuple(None if t is None else torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in run(**given))

    assert {"dx", "dresidual"} <= found(guarded, "dropout_add_layernorm_bwd", [spec])[0]


@pytest.mark.parametrize("norm", NORMS)
def test_a_fingerprint_is_taken_of_a_mask_that_keeps_all(norm):
    kernel = Kernel("k", f"dropout_add_{norm}_fwd", run=dropped.forward("", NORMS[norm]))
    rig = Rig(kernel, "cpu")
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32).astype(float)
    y = rig.rows(Feed(x, eps=2.0**-40))["y"]
    centre = x.mean(1, keepdims=True) * NORMS[norm]
    want = (x - centre) / np.sqrt(((x - centre) ** 2).mean(1, keepdims=True))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


class DropoutAddNorm(torch.autograd.Function):
    """A right dropout_add_rmsnorm whose backward torch can differentiate, and a wrong one: rstd is a constant there."""

    @staticmethod
    def forward(ctx, x, residual, mask, weight, eps, p, wrong):
        h = torch.where(mask, x / (1.0 - p), 0.0) + residual
        ctx.save_for_backward(h, mask, weight)
        ctx.given = eps, p, wrong
        ctx.set_materialize_grads(False)
        return h * (h.square().mean(-1, keepdim=True) + eps).rsqrt() * weight, h

    @staticmethod
    def backward(ctx, dy, dh):
        (h, mask, weight), (eps, p, wrong) = ctx.saved_tensors, ctx.given
        rstd = (h.square().mean(-1, keepdim=True) + eps).rsqrt()
        rstd = rstd.detach() if wrong else rstd
        dy = torch.zeros_like(h) if dy is None else dy
        g, xhat = dy * weight, h * rstd
        d = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        d = d if dh is None else d + dh
        dw = (dy * xhat).reshape(-1, h.shape[-1]).sum(0)
        return torch.where(mask, d / (1.0 - p), 0.0), d, None, dw, None, None, None


@pytest.mark.parametrize("wrong", [False, True])
def test_derivatives_of_the_gradients_behind_a_dropout(wrong):
    def dropout_add_rmsnorm(x, residual, mask, weight, eps, dropout_p):
        return DropoutAddNorm.apply(x, residual, mask, weight, eps, dropout_p, wrong)

    *_, kernel = load_directions(dropout_add_rmsnorm, "dropout_add_rmsnorm")
    case = CaseSpec((4, 32), eps=1e-5, dropout_p=0.5, autograd="second derivatives")
    said = examine(kernel, kernel.fitted(case), ("accuracy", "autograd"), "cpu").findings
    assert {f.check for f in said} == ({"autograd"} if wrong else set())
    assert all("silently wrong" in f.message for f in said)
