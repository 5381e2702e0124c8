"""Stock torch against the references, by verify's own judge, under the contract each function is found to honour."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from verify_norm.cases import corners, make
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.promises import arithmetic
from verify_norm.core.run import Expected
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels import KERNELS, domain
from verify_norm.kernels.adapters import torch_native
from verify_norm.loading.registry import load
from verify_norm.reference import batchnorm, instancenorm
from verify_norm.running import execute
from verify_norm.search.search import search

EPS, M = 1e-5, 0.3
STRICT, EXPANDED = Contract(), Contract(expanded=True)
BATCHNORM = Contract(expanded=True, xhat="x", partials="x")  # in half precision, where x is not contiguous
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the contracts are those of torch's CPU kernels")


def ratios_of(name, spec):
    """The worst |got − want| / allowed of every output of a kernel of the table on one case."""
    kernel = load(name)
    run = execute.execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    assert run.problem is None, (spec, run.problem)
    assert all((run.outputs[output] is None) == (run.case.expected[output] is None) for output in run.outputs)
    return {output: result.ratio.max(initial=0.0) for output, result in run.outputs.items() if result is not None}


def misread(kernel, spec):
    """Where torch's kernels are wrong: see the tests below."""
    if OPS[kernel.op].view == "channels":
        return OPS[kernel.op].forward is not None and spec.running_mean_layout != "contiguous"
    if OPS[kernel.op].name == "layernorm_bwd" and spec.dy_layout in ("expanded", "scalar"):
        return len(spec.shape) == 2 and spec.shape[0] > 1000
    if OPS[kernel.op].name == "instancenorm_bwd":
        return spec.shape[0] == 1 and spec.dy_layout == "channels_last"
    return "num_groups" in OPS[kernel.op].attrs and spec.x_layout == "channels_last" and abs(spec.offset) > 10


@pytest.mark.sampled(3)
@on_cpu
@pytest.mark.slow
@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.backend == "torch"], ids=lambda k: k.name)
def test_the_corner_table_in_float32(kernel):
    """Half precision is left out: see test_what_torch_loses_in_half_precision."""
    judged = 0
    for spec in corners.corners(OPS[kernel.op], ("float32",)):
        spec = replace(spec, weight_offset=0.0)  # torch adds nothing to its weights
        narrow = domain.narrow_weight(spec)  # torch refuses it in words
        if narrow or (kernel.unsupported and kernel.unsupported(spec)) or misread(kernel, spec):
            continue
        found = ratios_of(kernel.name, spec)
        judged += len(found)
        assert max(found.values()) <= 1, (found, spec)
    assert judged > 30


@on_cpu
def test_groupnorm_squares_before_it_subtracts():
    """E[x²] − mean² in torch's kernel for channels_last: at an offset of 10⁴σ nothing of the variance is left."""
    for shape in ((2, 4, 6, 6), (2, 32, 12, 12)):
        near, far = (CaseSpec(shape, num_groups=2, offset=1e4, x_layout=n) for n in ("contiguous", "channels_last"))
        assert max(ratios_of("groupnorm_fwd_torch", near).values()) <= 1
        lost = ratios_of("groupnorm_fwd_torch", far)
        assert lost["mean"] <= 1
        assert min(lost["y"], lost["rstd"]) > 1000
        assert ratios_of("groupnorm_bwd_torch", far)["dx"] > 1000


@on_cpu
def test_instancenorms_backward_reads_a_dy_in_channels_last_as_if_it_were_contiguous():
    """Of one sample alone; as functional.instance_norm's gradient does, before a conversion to channels_last."""
    one, two = (CaseSpec((samples, 8, 16, 16), dy_layout="channels_last") for samples in (1, 2))
    assert max(ratios_of("instancenorm_bwd_torch", two).values()) <= 1
    assert ratios_of("instancenorm_bwd_torch", one)["dx"] > 1000
    x, dy = torch.randn(1, 8, 16, 16), torch.randn(1, 8, 16, 16)
    wrong, right = (
        torch.autograd.grad(torch.nn.functional.instance_norm(leaf), leaf, d)[0]
        for leaf, d in (
            (x.clone().requires_grad_(), dy.to(memory_format=torch.channels_last)),
            (x.clone().requires_grad_(), dy),
        )
    )
    assert (wrong - right).abs().max() > 1


@on_cpu
@pytest.mark.parametrize("training", [True, False])
def test_batchnorms_backward_reads_a_strided_weight_as_if_it_were_contiguous(training):
    """As functional.batch_norm's gradient does too, where x and dy are contiguous with channels last."""
    options = {"training": training, "shape": (5, 3)}
    assert ratios_of("batchnorm_bwd_torch", CaseSpec(**options))["dx"] <= 1
    assert ratios_of("batchnorm_bwd_torch", CaseSpec(**options, weight_layout="every_other", seed=1))["dx"] > 1000
    x, dy, weight = torch.randn(5, 3), torch.randn(5, 3), torch.full((6,), 100.0)[::2]
    weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    mean, var = torch.zeros(3), torch.ones(3)
    strided, packed = (
        torch.autograd.grad(torch.nn.functional.batch_norm(leaf, mean, var, w, None, training), leaf, dy)[0]
        for leaf, w in ((x.clone().requires_grad_(), weight), (x.clone().requires_grad_(), weight.contiguous()))
    )
    assert (strided - packed).abs().max() > 1


@on_cpu
def test_batchnorms_backward_reads_strided_running_statistics_as_if_they_were_contiguous():
    """As functional.batch_norm's gradient of the weight does in evaluation."""
    options = {"training": False, "shape": (5, 3)}
    assert ratios_of("batchnorm_bwd_torch", CaseSpec(**options))["dweight"] <= 1
    strided = CaseSpec(**options, running_mean_layout="every_other", running_var_layout="every_other")
    assert ratios_of("batchnorm_bwd_torch", strided)["dweight"] > 1000
    x, dy, weight = torch.randn(5, 3), torch.randn(5, 3), torch.ones(3, requires_grad=True)
    mean, var = torch.tensor([[1.0, 50.0], [2.0, 50.0], [3.0, 50.0]])[:, 0], torch.ones(3)
    wrong, right = (
        torch.autograd.grad(torch.nn.functional.batch_norm(x, m, var, weight), weight, dy)[0]
        for m in (mean, mean.contiguous())
    )
    assert not torch.allclose(wrong, right, atol=1.0)


@on_cpu
def test_what_is_called_unsupported_is_refused_by_torch():
    x, b = torch.ones(2, 4, 3), torch.ones(4)
    with pytest.raises(RuntimeError):
        torch_native.layernorm_bwd_torch(x.half(), x.half(), None, torch.ones(3), EPS, (3,))
    with pytest.raises(RuntimeError):
        torch_native.groupnorm_bwd_torch(x, x, None, b, 2, EPS)
    for kernel in (torch_native.instancenorm_fwd_torch, lambda *a: torch_native.instancenorm_bwd_torch(x[..., :1], *a)):
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            kernel(x[..., :1], None, b, EPS)
    with pytest.raises(IndexError):
        torch_native.instancenorm_fwd_torch(x[:0], None, b, EPS)


@on_cpu
@pytest.mark.parametrize(
    ("name", "spec", "lost"),
    [
        ("layernorm_fwd_torch", {"shape": (5, 65)}, {"mean", "rstd"}),  # saved in half precision
        ("layernorm_bwd_torch", {"shape": (5, 65)}, {"dx", "dweight", "dbias"}),  # made of those, and summed in it
        ("layernorm_bwd_torch", {"shape": (7, 33), "weight_dtype": "float32"}, {"dweight", "dbias"}),  # partial sums
        ("rmsnorm_bwd_torch", {"shape": (7, 33)}, set()),
        ("groupnorm_bwd_torch", {"shape": (2, 6, 33), "num_groups": 2}, {"dx", "dweight"}),
        ("batchnorm_fwd_torch", {"shape": (4, 6, 35)}, {"y", "mean", "rstd", "running_mean", "running_var"}),
        ("batchnorm_fwd_torch", {"shape": (4, 6, 35), "weight_dtype": "float32"}, set()),
        ("instancenorm_fwd_torch", {"shape": (4, 6, 35)}, {"y"}),
        ("instancenorm_fwd_torch", {"shape": (4, 6, 35), "weight_dtype": "float32"}, set()),
    ],
)
def test_what_torch_loses_in_half_precision(name, spec, lost):
    found = ratios_of(name, CaseSpec(**spec, dtype="bfloat16", offset=3.0))
    assert {output for output, ratio in found.items() if ratio > 1} == lost, found


def written(function):
    """A float32 BatchNorm whose running statistics `function` changes."""

    def batchnorm_fwd(x, weight, bias, running_mean, running_var, training, momentum, eps):
        axes = [0, *range(2, x.dim())]
        if training:
            mean, var = x.mean(axes), x.var(axes, correction=0)
        else:
            mean, var = running_mean.clone(), running_var.clone()
        if running_mean is not None:
            function(running_mean, running_var, mean, var, x.numel() // x.shape[1], momentum, training)
        shape = (-1, *(1,) * (x.dim() - 2))
        rstd = (var + eps).rsqrt()
        y = (x - mean.view(shape)) * rstd.view(shape)
        y = y if weight is None else y * weight.view(shape)
        return (y if bias is None else y + bias.view(shape)), mean, rstd

    return batchnorm_fwd


def right(running_mean, running_var, mean, var, n, momentum, training):
    if training and n:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (n / (n - 1)), momentum)


def biased(running_mean, running_var, mean, var, n, momentum, training):
    if training and n:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var, momentum)


def swapped(running_mean, running_var, mean, var, n, momentum, training):
    right(running_mean, running_var, mean, var, n, 1 - momentum, training)


def always(running_mean, running_var, mean, var, n, momentum, training):
    if not training:
        running_mean.add_(1e-6 * running_mean)
    right(running_mean, running_var, mean, var, n, momentum, training)


def poisoned(running_mean, running_var, mean, var, n, momentum, training):
    if training:
        running_mean.lerp_(mean, momentum)
        right(running_mean.clone(), running_var, mean, var, n, momentum, training)


def forgotten(running_mean, running_var, mean, var, n, momentum, training):
    pass


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "wrong", "cause"),
    [
        (right, set(), lambda spec: False),
        (biased, {"running_var"}, lambda spec: spec.training and spec.momentum > 0),
        (swapped, {"running_mean", "running_var"}, lambda spec: spec.training),
        (always, {"running_mean"}, lambda spec: not spec.training),
        (poisoned, {"running_mean"}, lambda spec: spec.training and 0 in spec.shape),
        (forgotten, {"running_mean", "running_var"}, lambda spec: spec.training),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_running_statistics_are_convicted(function, wrong, cause):
    kernel = Kernel("k", "batchnorm_fwd", run=written(function), contract=Contract(summation="sequential"))
    kernel = replace(kernel, unsupported=lambda spec: "narrow" if spec.weight_dtype not in (None, "float32") else None)
    settings = Settings(dtypes=("float32",), checks=("accuracy", "statistics", "signature"), examples=0, seconds=30)
    report = search(kernel, settings)
    assert {(finding.check, finding.output) for finding in report.findings} == {("accuracy", name) for name in wrong}
    assert all(cause(finding.spec) and finding.spec.running for finding in report.findings)
    assert all(np.prod(finding.spec.shape) <= 2 for finding in report.findings)


@on_cpu
def test_layernorms_backward_cancels():
    """Twice the strict bound at an offset of 1000σ; twice again is what the expanded form is allowed."""
    op = OPS["layernorm_bwd"]
    kernel = Kernel("torch", op.name, run=torch_native.layernorm_bwd_torch)
    spec = CaseSpec(shape=(126, 65), eps=1e-6, data="heavy", offset=-1000.0)
    assert 1 < execute.execute(kernel, make.case(spec, op, STRICT)).outputs["dx"].ratio.max() < 10
    assert execute.execute(kernel, make.case(spec, op, EXPANDED)).outputs["dx"].ratio.max() < 1


@on_cpu
@pytest.mark.parametrize("layout", ["expanded", "scalar"])
def test_layernorms_backward_adds_up_equal_rows_one_after_the_other(layout):
    """The roundings of a running sum of equal terms do not cancel, as they do in most sums."""
    op, kernel = OPS["layernorm_bwd"], Kernel("torch", "layernorm_bwd", run=torch_native.layernorm_bwd_torch)
    spec = CaseSpec(shape=(4101, 12), dy_layout=layout)
    running = replace(STRICT, summation="sequential")
    ratios = [execute.execute(kernel, make.case(spec, op, c)).outputs["dbias"].ratio.max() for c in (STRICT, running)]
    assert ratios[0] > 1 >= ratios[1]


def tensor(value, dtype, layout="contiguous"):
    if value is None:
        return None
    t = torch.from_numpy(value).to(getattr(torch, dtype))
    if layout == "channels_last":
        return t.contiguous(memory_format=torch.channels_last)
    return t.mT.contiguous().mT if layout == "transposed" else t


def drawn(shape, dtype, weight_dtype, seed, offset):
    rng = np.random.default_rng(seed)
    c = shape[1]
    data = [rng.normal(size=shape), rng.normal(size=shape) + offset]
    affine = [rng.normal(size=c) + 0.5, rng.normal(size=c), rng.normal(size=c) + offset, rng.random(c) + 0.5]
    return *(FORMATS[dtype].round(t) for t in data), *(FORMATS[weight_dtype].round(t) for t in affine)


def ratios(names, got, value, error):
    """The worst |got − want| / allowed of every output."""
    out = {}
    for name, g, v, e in zip(names, got, value, error, strict=True):
        assert (g is None) == (v is None), name
        if g is not None:
            assert tuple(g.shape) == v.shape, name
            expected = Expected(v, e, str(g.dtype).removeprefix("torch."))
            out[name] = float(judge.ratio(g.double().numpy(), expected).max(initial=0.0))
    return out


def batch(
    shape,
    training,
    *,
    dtype="float32",
    weight_dtype="float32",
    seed=0,
    offset=3.0,
    layout="contiguous",
    affine=True,
    contract=BATCHNORM,
):
    """Both of torch's directions of BatchNorm on one case: the worst ratio of each output."""
    dy, x, w, b, mean, var = drawn(shape, dtype, weight_dtype, seed, offset)
    w, b = (w, b) if affine else (None, None)
    DY, X = (tensor(t, dtype, layout) for t in (dy, x))
    W, B, MEAN, VAR = (tensor(t, weight_dtype) for t in (w, b, mean, var))
    common = {"training": training, "eps": EPS}
    exact = {"arithmetic": arithmetic(contract, dtype)}
    given = batchnorm.forward(x, w, b, mean, var, momentum=M, **common)
    saved = (tensor(given.mean, "float32"), tensor(given.rstd, "float32"))
    gradients = torch_native.batchnorm_bwd_torch(DY, X, W, B, *saved, MEAN, VAR, training, EPS)
    assert [None if g is None else g.dtype for g in gradients[1:]] == [None if t is None else t.dtype for t in (W, B)]
    outputs = torch_native.batchnorm_fwd_torch(X, W, B, MEAN, VAR, training, M, EPS)
    error = batchnorm.forward_error(x, w, b, mean, var, momentum=M, **common, **exact)
    if training:
        found = ratios(given._fields, (*outputs, MEAN, VAR), given, error)
    else:
        found = ratios(("y",), outputs, given[:1], error[:1])
        np.testing.assert_array_equal([MEAN.double().numpy(), VAR.double().numpy()], [mean, var])
    value = batchnorm.backward(dy, x, w, b, mean, var, **common)
    error = batchnorm.backward_error(dy, x, w, b, mean, var, **common, **exact)
    return found | ratios(value._fields, gradients, value, error)


@on_cpu
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((5, 3), "contiguous"),
        ((300, 2), "transposed"),
        ((2, 3, 40), "transposed"),
        ((4, 6, 5, 7), "contiguous"),
        ((4, 6, 5, 7), "channels_last"),
        ((2, 3, 2, 2, 5), "contiguous"),
        ((2, 1), "contiguous"),
    ],
)
def test_batchnorm(training, dtype, shape, layout):
    for affine in (True, False):
        for offset in (0.0, 100.0):
            found = batch(shape, training, dtype=dtype, layout=layout, offset=offset, affine=affine)
            assert max(found.values()) <= 1, (affine, offset, found)
            assert ("running_var" in found) == training


def test_one_value_a_channel_is_refused_and_no_values_change_nothing():
    x, mean, var = torch.ones(1, 3, 1), torch.zeros(3), torch.ones(3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch_native.batchnorm_fwd_torch(x, None, None, mean, var, True, M, EPS)
    empty = torch.ones(0, 3, 4)
    (y,) = torch_native.batchnorm_fwd_torch(empty, None, None, mean, var, True, M, EPS)
    assert y.shape == empty.shape
    assert (mean.tolist(), var.tolist()) == ([0.0] * 3, [1.0] * 3)
    one = torch.ones(3)
    dx, dweight, dbias = torch_native.batchnorm_bwd_torch(empty, empty, one, None, None, None, mean, var, True, EPS)
    assert (dx.shape, dweight.tolist(), dbias) == (empty.shape, [0.0] * 3, None)


@on_cpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3, 40), (2, 3, 5, 7), (1, 2, 2, 2, 3)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_instancenorm(dtype, shape, offset):
    """With float32 parameters: with others, or none, torch's CPU kernel rounds the mean and rstd that y is made of."""
    dy, x, w, b, *_ = drawn(shape, dtype, "float32", 1, offset)
    w, b = (None, None) if dtype == "float32" and not offset else (w, b)
    tensors = [tensor(dy, dtype), tensor(x, dtype), tensor(w, "float32"), tensor(b, "float32")]
    exact = {"eps": EPS, "arithmetic": arithmetic(STRICT, dtype)}
    y = torch_native.instancenorm_fwd_torch(*tensors[1:], EPS)
    value = instancenorm.forward(x, w, b, eps=EPS)
    found = ratios(("y",), (y,), value[:1], instancenorm.forward_error(x, w, b, **exact)[:1])
    value = instancenorm.backward(dy, x, w, b, eps=EPS)
    got = torch_native.instancenorm_bwd_torch(*tensors, EPS)
    found |= ratios(value._fields, got, value, instancenorm.backward_error(dy, x, w, b, **exact))
    assert max(found.values()) <= 1, found
