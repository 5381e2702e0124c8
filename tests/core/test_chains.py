"""Chains as text: what they mean, and what is said of texts that are none."""

import doctest

import pytest

import verify_norm
from verify_norm.core import chains, ops
from verify_norm.core.errors import UsageError, quoted
from verify_norm.core.ops import OPS
from verify_norm.reference.activation import ACTIVATIONS


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("rmsnorm | gate", ("gated_rmsnorm", "")),
        ("rmsnorm|gate( silu )_bwd", ("gated_rmsnorm_bwd", "")),
        ("rmsnorm(weight_offset=1) | modulate", ("modulate_rmsnorm", "weight_offset=1")),
        ("layernorm(weight_offset=1) | modulate", ("modulate_layernorm", "weight_offset=1")),
        ("add | layernorm(weight_offset=1)_bwd", ("add_layernorm_bwd", "weight_offset=1")),
        ("groupnorm | silu_fwd", ("groupnorm_silu_fwd", "")),
        ("add | layernorm(eps=1e-6)", ("add_layernorm", "eps=1e-6")),
        ("gate(silu) | rmsnorm_bwd", ("gate_rmsnorm_bwd", "")),
        ("gate(gelu)|l2norm(eps=1e-6)", ("gate(gelu) | l2norm", "eps=1e-6")),
        ("rmsnorm | rotate(neox)_bwd", ("qk_norm_rope_bwd", "")),
        ("layernorm|rotate( interleaved )", ("layernorm | rotate(interleaved)", "")),
        ("add|layernorm|silu|modulate", ("add | layernorm | silu | modulate", "")),
        ("rmsnorm(eps=1E-6, weight_offset=1) | gate", ("gated_rmsnorm", "eps=1E-6,weight_offset=1")),
        ("layernorm_fwd", ("layernorm_fwd", "")),
        ("rmsnorm(weight_offset=1)|quantize(e4m3fn,per_token)", ("rmsnorm_quant_fwd", "weight_offset=1")),
        ("add | rmsnorm | quantize( e4m3fn , group128 )_fwd", ("add_rmsnorm_quant_group_fwd", "")),
        ("layernorm|silu|quantize(int8,static)", ("layernorm | silu | quantize(int8)_fwd", "")),
        ("layernorm | gate(silu)", ("layernorm | gate", "")),
        ("layernorm | rotate(neox)_bwd", ("layernorm | rotate_bwd", "")),
        ("batchnorm_fwd", ("batchnorm_fwd", "")),
        ("dropout|add|rmsnorm_bwd", ("dropout_add_rmsnorm_bwd", "")),
        ("l2norm(eps=1e-6)", ("l2norm", "eps=1e-6")),
        ("rmsnorm|quantize(e5m2,group64,scale_ub)", ("rmsnorm | quantize(e5m2, group64, scale_ub)_fwd", "")),
    ],
)
def test_what_a_text_means(text, meant):
    assert ops.resolved(text) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "rmsnorm | modulat",
            "unknown stage 'modulat' (did you mean modulate?); there are: silu, gelu, sigmoid, gate, ",
        ),
        ("rmsnrm | silu", "unknown norm of a chain 'rmsnrm' (did you mean rmsnorm?)"),
        ("layernorm(normalized_shape=8) | silu", "unknown option of layernorm 'normalized_shape'; there are: eps"),
        ("rmsnorm | gate(tanh)", "unknown option of gate 'tanh'; there are: silu, sigmoid, gelu"),
        ("rmsnorm | silu(2)", "silu takes nothing in parentheses, got '2'"),
        ("add(x) | rmsnorm", "add takes nothing in parentheses, got 'x'"),
        (
            "modulate | rmsnorm",
            "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before modulate, such as 'add | ",
        ),
        ("gate | rmsnorm | gate", "expected one stage that takes gate, got 2"),
        ("gate | silu", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before silu"),
        ("add | gate | rmsnorm", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before gate"),
        ("silu | rmsnorm", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before silu"),
        ("rmsnorm | rotate(gptj)", "unknown option of rotate 'gptj'; there are: neox, interleaved"),
        ("groupnorm | rotate", "rotate needs rows: expected layernorm or rmsnorm before it, got groupnorm"),
        ("rmsnorm | rotate | rotate(interleaved)", "expected one stage that takes cos, got 2"),
        ("add | silu", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before silu"),
        ("dropout | rmsnorm", "expected add behind dropout, such as 'dropout | add | rmsnorm'"),
        ("dropout", "expected add behind dropout, such as 'dropout | add | rmsnorm'"),
        ("gate", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before gate, such as 'add | "),
        ("add", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before nothing, such as 'add | "),
        ("add |", "cannot read ''; expected stages as in 'add | "),
        ("add|add", "expected layernorm, rmsnorm, partial_rmsnorm, l2norm or groupnorm before add"),
        (
            "rmsnorm | layernorm",
            "rmsnorm and layernorm are two norms: a chain begins with add or its one norm, such as",
        ),
        ("rmsnorm | add", "add stands behind rmsnorm: a chain begins with add or its one norm"),
        ("rmsnorm | dropout", "dropout stands behind rmsnorm: a chain begins with add or its one norm"),
        ("rmsnorm | quantize(int8, group64, a, b)", "expected scale_ub or nothing behind group64, got a, b"),
        ("rmsnorm | modulate | modulate", "expected one stage that takes scale, got 2"),
        ("groupnorm | modulate", "modulate needs rows: expected layernorm or rmsnorm before it, got groupnorm"),
        ("add | groupnorm | silu", "add needs rows: expected layernorm or rmsnorm behind it, got groupnorm"),
        ("rmsnorm(offset=1) | silu", "unknown option of rmsnorm 'offset' (did you mean weight_offset?)"),
        ("groupnorm(weight_offset=1) | silu", "unknown option of groupnorm 'weight_offset'"),
        ("rmsnorm(weight_offset) | silu", "expected a number for weight_offset, got ''"),
        ("rmsnorm(weight_offset=x) | silu", "expected a number for weight_offset, got 'x'"),
        ("rmsnorm | quantize", "unknown type of quantize ''; there are: e4m3fn, e5m2, int8, e2m1"),
        ("rmsnorm | quantize(int8, mx)", "quantize(int8, mx): expected e4m3fn, e5m2 or e2m1 for mx, got int8"),
        ("rmsnorm | quantize(e4m3fn, nvfp4)", "expected e2m1 for nvfp4, got e4m3fn"),
        ("rmsnorm | quantize(e2m1)", "expected e4m3fn, e5m2 or int8 for static, got e2m1"),
        ("rmsnorm | quantize(e2m1, mx, scale_ub)", "expected nothing behind mx, got scale_ub"),
        (
            "rmsnorm | quantize(int8, tensor)",
            "unknown granularity of quantize 'tensor'; there are: static, per_token, ",
        ),
        ("rmsnorm | quantize(int8, static, scale_ub)", "expected nothing behind static, got scale_ub"),
        ("rmsnorm | quantize(int8, per_token, ub)", "expected scale_ub or nothing behind per_token, got ub"),
        ("rmsnorm | quantize(int8) | silu", "quantize stands last in a chain, as in 'rmsnorm | quantize(e4m3fn, "),
        ("rmsnorm | quantize(int8)_bwd", "what is quantized has no backward; expected its forward"),
        ("groupnorm | quantize(int8)", "quantize needs rows: expected layernorm or rmsnorm before it, got groupnorm"),
        ("rmsnorm(weight_offset=(1)) | silu", "cannot read 'rmsnorm(weight_offset=(1))'"),
    ],
)
def test_what_is_said_of_a_text_that_is_no_chain(text, said):
    with pytest.raises(UsageError) as caught:
        verify_norm.chain(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--op" not in str(caught.value) or str(caught.value).startswith(f"--op {quoted(text)}: ")
    with pytest.raises(UsageError):
        verify_norm.verify(print, op=text)


def test_a_chain_without_a_row_is_an_operator_by_its_one_spelling():
    forward, backward = (OPS[f"layernorm | gate(gelu) | modulate_{way}"] for way in ("fwd", "bwd"))
    assert ops.forward_of(backward) is forward
    assert [t.name for t in forward.inputs] == ["x", "gate", "weight", "bias", "scale", "shift"]
    assert [t.name for t in backward.outputs] == [f"d{t.name}" for t in forward.inputs]
    for name in (
        "layernorm|gate_fwd",
        "rmsnorm(eps=1)|silu_fwd",
        "rmsnorm | nothing_fwd",
        "rmsnorm_",
        "add | rmsnorm_fwd",
    ):
        with pytest.raises(KeyError):
            OPS[name]
    assert all("|" not in name for name in OPS)  # the table stays as it is


@pytest.mark.parametrize("name", ["silu", "gelu", "sigmoid"])
def test_a_stage_has_the_activation_of_its_name(name):
    gate, last = chains.parse(f"rmsnorm | gate({name}) | {name}").chain.stages
    assert gate.function is last.function is ACTIVATIONS[name]


RECORDS = {  # what a chain takes and returns, forward and backward
    "rmsnorm | gelu": ("x weight", "y rstd", "dy x weight rstd", "dx dweight"),
    "l2norm | silu": ("x", "y rstd", "dy x rstd", "dx"),
    "groupnorm | sigmoid": ("x weight bias", "y mean rstd", "dy x weight bias mean rstd", "dx dweight dbias"),
    "add | layernorm | silu": (
        "x residual weight bias",
        "y residual_out mean rstd",
        "dy dresidual_out residual_out weight bias mean rstd",
        "dx dweight dbias",
    ),
    "dropout | add | rmsnorm | gelu": (
        "x residual mask weight",
        "y residual_out rstd",
        "dy dresidual_out residual_out mask weight rstd",
        "dx dresidual dweight",
    ),
}


@pytest.mark.parametrize("text", RECORDS)
def test_what_a_chain_takes_and_returns(text):
    forward, backward = chains.operators(text, chains.parse(text).chain, "a summary")
    named = (" ".join(t.name for t in some) for op in (forward, backward) for some in (op.inputs, op.outputs))
    assert tuple(named) == RECORDS[text]
    norm = OPS[f"{forward.chain.norm}_fwd"]
    for way, op in (("forward", forward), ("backward", backward)):
        assert (op.view, op.centred, op.averages) == (norm.view, norm.centred, "l2norm" not in text)
        assert op.attrs[: len(norm.attrs)] == norm.attrs
        assert (op.reference.__name__, op.error.__name__) == (way, f"{way}_error")
    shared = "; dx is also the gradient of residual" * text.startswith("add")
    assert (forward.summary, backward.summary) == ("a summary", f"the gradients of {text}_fwd{shared}")


def test_what_a_chain_that_quantizes_takes_and_returns():
    (op,) = chains.operators("q", chains.parse("add | rmsnorm | quantize(e2m1, mx)").chain, "a summary")
    assert (op.name, op.summary, op.forward, op.reference.__name__) == ("q_fwd", "a summary", None, "forward")
    assert [t.name for t in op.inputs] == ["x", "residual", "weight"]
    assert [(t.name, t.dtype) for t in op.outputs] == [
        ("y", "float4_e2m1fn"),
        ("y_scale", "float8_e8m0fnu"),
        ("residual_out", "residual"),
        ("rstd", "float32"),
    ]


def test_a_sum_before_a_norm_without_such_a_row_is_refused():
    with pytest.raises(UsageError, match=r"^unknown operator 'add_l2norm' .*; verify-norm list shows all \d+$"):
        ops.resolved("add | l2norm")


def test_a_chain_of_ones_own_says_so_and_has_all_kinds_of_stages():
    ways = ("rmsnorm | gelu", "gate(gelu) | rmsnorm", "dropout | add | rmsnorm | gelu")
    for text in ways:
        assert [op.name for op in chains.operators_of(text)] == [f"{text}_fwd", f"{text}_bwd"]
    assert OPS["rmsnorm | gelu_fwd"].summary.startswith("your own chain: rmsnorm | gelu, ")


def test_the_same_in_python():
    assert verify_norm.chain("add", " rmsnorm(weight_offset=1)", "modulate") == chains.EXAMPLE


def by_hand(x, residual, weight, eps):
    import torch

    h = x.float() + residual.float()
    rstd = torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    z = h * rstd if weight is None else h * rstd * (1 + weight.float())
    return torch.sigmoid(z).to(x.dtype), h.to(residual.dtype), rstd.flatten()


def half(x, residual, weight, eps):
    y, *rest = by_hand(x, residual, weight, eps)
    return y / 2, *rest


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "outputs"), [(by_hand, set()), (half, {"y"})])
def test_a_users_own_chain_is_verified(kernel, outputs):
    text = verify_norm.chain("add", "rmsnorm(weight_offset=1)", "sigmoid") + "_fwd"
    options = {"isolate": False, "allow_incomplete": True, "examples": 0, "seconds": 2, "dtypes": ["float32"]}
    report = verify_norm.verify(kernel, op=text, checks=["signature", "accuracy"], **options)
    assert report.op == "add | rmsnorm | sigmoid_fwd"
    assert {finding.output for finding in report.findings} == outputs


def test_doctests():
    for module in (chains, ops):
        assert doctest.testmod(module).failed == 0
