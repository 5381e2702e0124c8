"""The check `identities`: wrong kernels that it alone convicts, and the many right ways to compute, which pass."""

from dataclasses import replace

import hypothesis
import pytest
import torch
from torch import Tensor

from verify_norm import cases, strategies
from verify_norm.checks import CHECKS, identities
from verify_norm.covariance import linearity, scale, scale_dy, shift
from verify_norm.execute import execute
from verify_norm.ops import OPS
from verify_norm.spec import CaseSpec, Contract, Finding, Kernel
from verify_norm.stages import stages, sum_error

DTYPES = ("float32", "float16", "bfloat16")
SPEC = CaseSpec(shape=(16, 64))
# Which identity a seed names: see identities._chosen.
FORWARD = {"scale": 0, "shift": 34, "permutation": 4}  # 34: a shift by 2⁹ times the largest x
BACKWARD = {"scale": 0, "scale_dy": 10, "linearity": 4, "permutation": 6, "shift": 20}


def rows(t, normalized_shape, kind=torch.float32):
    return t.to(kind).reshape(-1, torch.Size(normalized_shape).numel())


def statistics(r, eps, how):
    mean = r.mean(1, keepdim=True)
    if how == "one pass":
        var = (r.square().mean(1, keepdim=True) - mean.square()).clamp(min=0)
    elif how == "shifted":
        d = r - r[:, :1]
        s = d.mean(1, keepdim=True)
        mean, var = r[:, :1] + s, (d.square().mean(1, keepdim=True) - s.square()).clamp(min=0)
    elif how == "welford":
        mean, m2 = torch.zeros_like(mean), torch.zeros_like(mean)
        for i in range(r.shape[1]):
            delta = r[:, i : i + 1] - mean
            mean = mean + delta / (i + 1)
            m2 = m2 + delta * (r[:, i : i + 1] - mean)
        var = m2 / r.shape[1]
    else:
        var = (r - mean).square().mean(1, keepdim=True)
    eps = 1e-5 if how == "hard-coded eps" else eps
    return mean, (var + eps).pow(-0.5) if how == "pow" else (var + eps).rsqrt()


def forward(how=""):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        r = rows(x, normalized_shape, torch.float64 if how == "float64" else torch.float32)
        mean, rstd = statistics(r, eps, how)
        a = rstd if weight is None else rstd * rows(weight, normalized_shape, r.dtype)
        b = 0.0 if bias is None else rows(bias, normalized_shape, r.dtype)
        y = r * a + (b - mean * a) if how == "expanded" else (r - mean) * a + b
        return y.reshape(x.shape).to(x.dtype), mean[:, 0].float(), rstd[:, 0].float()

    return layernorm_fwd


def backward(how=""):
    def layernorm_bwd(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        kind = torch.float64 if how == "float64" else torch.float32
        r, d = rows(x, normalized_shape, kind), rows(dy, normalized_shape, kind)
        d = d.clamp(-6, 6) if how == "clamped" else d
        mean, rstd = mean.to(kind)[:, None], rstd.to(kind)[:, None]
        if how in ("recomputed", "hard-coded eps", "pow", "shifted", "welford"):
            mean, rstd = statistics(r, eps, how)
        xhat = (r - mean) * rstd
        g = d if weight is None else d * rows(weight, normalized_shape, kind)
        n = r.shape[1]
        if how == "sums":
            dx = rstd / n * (n * g - g.sum(1, keepdim=True) - xhat * (g * xhat).sum(1, keepdim=True))
        else:
            count = (d != 0).sum(1, keepdim=True) if how == "skips zeros" else n
            dx = rstd * (g - g.sum(1, keepdim=True) / count - xhat * (g * xhat).mean(1, keepdim=True))
        order = torch.randperm(len(r)) if how == "atomic" else slice(None)
        dw, db = (d * xhat)[order].sum(0), d[order].sum(0)
        dw = None if weight is None else dw.reshape(weight.shape).to(weight.dtype)
        return dx.reshape(x.shape).to(x.dtype), dw, None if bias is None else db.reshape(bias.shape).to(bias.dtype)

    return layernorm_bwd


def llama(x, weight, eps, normalized_shape, weight_offset):
    r = rows(x, normalized_shape)
    rstd = (r.square().mean(1, keepdim=True) + eps).rsqrt()
    y = (r * rstd).to(x.dtype)
    y = y if weight is None else (rows(weight, normalized_shape) + weight_offset) * y.float()
    return y.reshape(x.shape).to(x.dtype), rstd[:, 0]


def rmsnorm_cubed(dy, x, weight, rstd, eps, normalized_shape, weight_offset):
    """dx = r·g − x·Σ(g·x)·r³/n, without x̂."""
    r, d, rstd = rows(x, normalized_shape), rows(dy, normalized_shape), rstd[:, None]
    g = d if weight is None else d * (rows(weight, normalized_shape) + weight_offset)
    dx = rstd * g - r * ((g * r).sum(1, keepdim=True) * (rstd**3 / r.shape[1]))
    dw = None if weight is None else (d * (r * rstd)).sum(0).reshape(weight.shape).to(weight.dtype)
    return dx.reshape(x.shape).to(x.dtype), dw


def remembering(function):
    """Returns what it returned for the first input of a shape."""
    known: dict[torch.Size, tuple[Tensor, ...]] = {}

    def run(x, weight, bias, eps, normalized_shape):
        return tuple(t.clone() for t in known.setdefault(x.shape, function(x, weight, bias, eps, normalized_shape)))

    return run


def run_of(function, spec=SPEC, op="layernorm_fwd", **contract):
    kernel = Kernel("k", op, run=function, contract=Contract(**contract))
    return execute(kernel, cases.make(spec, OPS[op], kernel.contract))


def findings(run):
    """What all checks say of it, but for `determinism`, which a kernel that remembers passes or fails by its order."""
    checks = [c for c in CHECKS.values() if c.applies(run.case.op) and c.looks(run) and c.name != "determinism"]
    return [f for c in checks for f in c.function(run) if isinstance(f, Finding)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "identity", "outputs", "words"), [
    (forward("hard-coded eps"), "scale", {"y", "rstd"}, "eps·4^"),
    (forward("one pass"), "shift", {"rstd"}, "x + "),
    (None, "permutation", {"y", "mean", "rstd"}, "another order"),
])  # fmt: skip
def test_a_wrong_forward_that_no_other_check_sees(function, identity, outputs, words, dtype):
    if dtype != "float32" and identity == "shift":
        pytest.skip("16 bits do not hold x + c far away")
    spec = replace(SPEC, dtype=dtype, seed=FORWARD[identity], data="integers")  # exact in float16 at 2⁻⁸ times, too
    found = findings(run_of(function or remembering(forward()), spec))
    assert {f.check for f in found} == {"identities"}
    assert outputs <= {f.output for f in found}
    assert all(words in f.message and f.allowed is not None and f.index is not None for f in found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "identity", "words"), [
    (backward("hard-coded eps"), "scale", "eps·4^"),
    (backward("clamped"), "scale_dy", "·dy"),
    (backward("skips zeros"), "linearity", "two halves"),
])  # fmt: skip
def test_a_wrong_backward_that_no_other_check_sees(function, identity, words, dtype):
    spec = replace(SPEC, dtype=dtype, seed=BACKWARD[identity], data="integers")
    found = findings(run_of(function, spec, "layernorm_bwd"))
    assert {f.check for f in found} == {"identities"}
    assert "dx" in {f.output for f in found}
    assert all(words in f.message for f in found)


@pytest.mark.parametrize("direction", ["Σdx is", "Σdx·x̂ is"])
def test_the_sums_see_errors_that_all_point_one_way(direction):
    """Every element stays within its own bound, and their sum does not."""
    spec = replace(SPEC, shape=(4, 1024), seed=3)
    right = run_of(backward(), spec, "layernorm_bwd")
    delta, xhat = right.case.expected["dx"].delta, stages(right).xhat
    push = torch.from_numpy(0.9 * delta * (1.0 if direction == "Σdx is" else xhat / abs(xhat)))

    def pushed(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        want = torch.from_numpy(right.case.expected["dx"].value)
        return (want + push).float(), *backward()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)[1:]

    assert findings(right) == []
    (found,) = findings(run_of(pushed, spec, "layernorm_bwd"))
    assert (found.check, found.output) == ("identities", "dx")
    assert found.message.startswith("dx: " + direction)


def test_the_sums_allow_less_than_their_elements_do():
    run = run_of(backward(), replace(SPEC, shape=(4, 1024)), "layernorm_bwd")
    s, delta, dy = stages(run), run.case.expected["dx"].delta, run.case.exact["dy"]
    for phi in (0 * s.xhat + 1, s.xhat):
        elements = (abs(phi) * delta).sum(1, keepdims=True)
        assert (sum_error(s, dy, None, delta, phi) < 0.75 * elements).all()


EXPANDED, SHIFTED = {"expanded": True}, {"variance": "shifted"}
RIGHT = [
    *(("layernorm_fwd", forward(how), {}) for how in ("", "float64", "pow")),
    ("layernorm_fwd", forward("welford"), {"summation": "sequential"}),
    ("layernorm_fwd", forward("shifted"), SHIFTED),
    ("layernorm_fwd", forward("expanded"), EXPANDED),
    ("layernorm_fwd", forward("float64"), {"batch_invariant": True}),
    *(("layernorm_bwd", backward(how), {}) for how in ("", "float64", "recomputed", "pow", "sums")),
    ("layernorm_bwd", backward("atomic"), {"summation": "atomic", "deterministic": False}),
    ("layernorm_bwd", backward("shifted"), SHIFTED),
    ("rmsnorm_fwd", llama, {"xhat": "x"}),
    ("rmsnorm_bwd", rmsnorm_cubed, {}),
]


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_right_kernels_pass_on_random_cases(number):
    """A slice of a study of ten thousand cases over all ops."""
    (op, function, contract), seen = RIGHT[number], []

    @hypothesis.seed(number)
    @hypothesis.settings(max_examples=50, database=None, deadline=None, phases=(hypothesis.Phase.generate,),
                         suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    @hypothesis.given(strategies.specs(OPS[op], DTYPES, 200))
    def one(spec):
        run = run_of(function, replace(spec, seed=2 * spec.seed), op, **contract)
        for name in ("identities", "batch_invariance", "degenerate"):
            if CHECKS[name].looks(run):
                assert [f.message for f in CHECKS[name].function(run) if isinstance(f, Finding)] == []
                seen.append(name)

    one()
    assert seen.count("identities") > 15


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", [scale, scale_dy, linearity, shift, identities.permutation])
def test_every_identity_judges_what_it_looks_at(law, dtype):
    equations = law(run_of(backward(), replace(SPEC, dtype=dtype, seed=4), "layernorm_bwd"))
    assert {e.output for e in equations} == {"dx", "dweight", "dbias"}
    for e in equations:
        assert (e.ratio <= 1).all()
        assert (e.tolerance < abs(e.left).max()).mean() > 0.9


def test_exact_identities_allow_nothing():
    for e in scale_dy(run_of(backward(), SPEC, "layernorm_bwd")):
        assert (e.tolerance == 0).all()
    (mean,) = (e for e in scale(run_of(forward())) if e.output == "mean")
    assert (mean.tolerance == 0).all()


@pytest.mark.parametrize("op", ["groupnorm_bwd", "batchnorm_bwd", "instancenorm_bwd"])
@pytest.mark.parametrize("seed", BACKWARD.values())
def test_groups_and_channels_have_identities_too(op, seed):
    def right(dy, x, weight, bias, **options):
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        eps, functional = options["eps"], torch.nn.functional
        if op == "groupnorm_bwd":
            y = functional.group_norm(leaves[0], options["num_groups"], *leaves[1:], eps)
        else:
            training = {"use_input_stats" if op[0] == "i" else "training": True}
            function = functional.instance_norm if op[0] == "i" else functional.batch_norm
            y = function(leaves[0], None, None, *leaves[1:], **training, eps=eps)
        return [g.to(x.dtype) for g in torch.autograd.grad(y, leaves, dy.double())]

    def one_sided(**arguments):
        dx, *others = right(**arguments)
        return [dx.abs(), *others]

    spec = CaseSpec(shape=(3, 4, 10), num_groups=2 if op == "groupnorm_bwd" else None, seed=seed)
    assert findings(run_of(right, spec, op)) == []
    assert "identities" in {f.check for f in findings(run_of(one_sided, spec, op))}


def test_a_kernel_that_fails_near_by_is_told():
    def touchy(x, weight, bias, eps, normalized_shape):
        assert eps > 1e-6, "no such eps"
        return forward()(x, weight, bias, eps, normalized_shape)

    (found,) = findings(run_of(touchy))
    assert (found.check, found.status) == ("identities", "error")
    assert "no such eps" in found.message


def test_it_says_what_it_cannot_look_at():
    looks = CHECKS["identities"].looks
    assert looks(run_of(forward()))
    assert not looks(run_of(forward(), replace(SPEC, seed=1)))  # a forward has no sums, and its identities every other
    assert looks(run_of(backward(), replace(SPEC, seed=1), "layernorm_bwd"))
    for options in ({"shape": (0, 8)}, {"shape": (100, 100)}, {"special": "nan"}):
        assert not looks(run_of(forward(), replace(SPEC, **options)))
    assert scale(run_of(forward(), replace(SPEC, log2_scale=60))) is None  # squares would overflow
    assert linearity(run_of(backward(), replace(SPEC, dy_layout="scalar"), "layernorm_bwd")) is None
    assert shift(run_of(llama, op="rmsnorm_fwd", xhat="x")) is None
