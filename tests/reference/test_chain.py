"""Chains against torch's float64 and complex steps; their bounds against float32 kernels that order things freely."""

from inspect import signature

import numpy as np
import pytest
import torch
from references import EPS, FLOAT32, compare, leaf, pulled

from verify_norm.core.ops import OPS
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.chain import Chain, Function, record
from verify_norm.reference.rounding import affine_error, xhat_error
from verify_norm.reference.stages.dropout import Dropout
from verify_norm.reference.stages.stage import passed
from verify_norm.reference.stages.steps import steps
from verify_norm.reference.statistics_rounding import statistics_error

ACTS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "sigmoid": torch.sigmoid}
NORMS = {
    "layernorm": torch.nn.functional.layer_norm,
    "rmsnorm": torch.nn.functional.rms_norm,
    "partial_rmsnorm": lambda x, shape, weight, eps: (
        x
        * (x.flatten(-len(shape))[..., :2].square().mean(-1) + eps)
        .rsqrt()
        .reshape(*x.shape[: -len(shape)], *[1] * len(shape))
        * weight
    ),
    "l2norm": lambda x, shape, eps: (
        x / (x.square().sum([-1 - i for i in range(len(shape))], keepdim=True) + eps).sqrt()
    ),
}
ROWS = (
    ((3, 4, 8), 2, "token"),
    ((2, 3, 5), 1, "sample"),
    ((4, 6), 1, "sample"),
    ((7,), 1, "sample"),
    ((0, 6), 1, "token"),
)
CHAINS = (
    "rmsnorm_silu",
    "gated_rmsnorm",
    "gated_rmsnorm_sigmoid",
    "layernorm | gate(gelu)",
    "modulate_layernorm",
    "modulate_rmsnorm",
    "layernorm | silu | modulate",
    "rmsnorm | modulate | gate | gelu",
    "add | layernorm | modulate",
    "add | rmsnorm | sigmoid",
    "l2norm",
    "partial_rmsnorm",
    "add | partial_rmsnorm | silu",
    "add | l2norm | gate",
    "gate_rmsnorm",
    "gate(gelu) | layernorm | modulate",
    "qk_norm_rope",
    "add | layernorm | rotate(interleaved) | silu",
    "dropout_add_layernorm",
    "dropout_add_rmsnorm",
    "dropout | add | rmsnorm | gate",
)
P = 0.25  # of a dropout


def ways(name):
    return OPS[f"{name}_fwd"], OPS[f"{name}_bwd"]


def arguments(name, shape, ndim=1, modulation="token", seed=0):
    """Return the inputs of both directions of a chain by name: random, in float64."""
    rng, (forward, backward) = np.random.default_rng(seed), ways(name)
    affine = shape[len(shape) - ndim :]
    sample = shape if modulation == "token" else (*shape[: len(shape) - ndim][:1], *affine)
    lead = shape[: len(shape) - ndim]
    position = (*(lead[:-1] if len(lead) > 1 else lead), max(int(np.prod(affine)) // 4, 1))
    shapes = {"data": shape, "affine": affine, "sample": sample, "position": position}
    tensors = {t.name: t for t in (*forward.inputs, *backward.inputs) if t.extent != "statistic"}
    given = {n: rng.normal(size=shapes[t.extent]) * 1.5 + 0.25 for n, t in tensors.items()}
    if "mask" in given:
        given["mask"] = (given["mask"] > 0).astype(float)
    if "residual" in given:
        given["residual_out"] = left(given, given["x"]) + given["residual"]
    return given, {"eps": EPS, "normalized_shape": affine, "variance_size": 2, "dropout_p": P}


def left(given, x):
    """What a dropout leaves of x, if there is one."""
    return x * given["mask"] / (1 - P) if "mask" in given else x


def spread(t, x):
    """A row of each sample to the tokens of x."""
    return t if t.dim() == x.dim() else t.reshape(*t.shape[:1], *[1] * (x.dim() - t.dim()), *t.shape[1:])


def turned(style, z, N, cos, sin):
    """Each token's heads of N elements, pairs of them as complex numbers, times cos + i·sin."""
    cos, sin = (torch.as_tensor(t) for t in (cos, sin))
    half, heads = cos.shape[-1], z.reshape(*cos.shape[:-1], -1 if z.numel() else 0, N)
    pairs = heads[..., : 2 * half]
    a, b = pairs.split(half, -1) if style == "neox" else (pairs[..., 0::2], pairs[..., 1::2])
    made = torch.complex(a, b) * torch.complex(cos, sin).unsqueeze(-2)
    both = torch.cat((made.real, made.imag), -1) if style == "neox" else torch.view_as_real(made).flatten(-2)
    return torch.cat((both, heads[..., 2 * half :]), -1).reshape(z.shape)


def in_torch(name, given, options):
    """Return y of a chain in torch, of the given tensors."""
    chain, h = OPS[f"{name}_fwd"].chain, left(given, given["x"]) + given.get("residual", 0.0)
    h = h if chain.before is None else h * ACTS[chain.before.activation](given["gate"])
    norm = NORMS[chain.norm]
    z = norm(h, options["normalized_shape"], *(given[n] for n in ("weight", "bias") if n in given), options["eps"])
    for stage in chain.stages:
        if stage.name == "gate":
            z = z * ACTS[stage.activation](given["gate"])
        elif stage.name == "modulate":
            z = z * (1 + spread(given["scale"], z)) + spread(given["shift"], z)
        elif stage.name == "rotate":
            z = turned(stage.style, z, int(np.prod(options["normalized_shape"])), given["cos"], given["sin"])
        else:
            z = ACTS[stage.name](z)
    return z


def call(function, given, **options):
    return function(**{n: v for n, v in {**given, **options}.items() if n in signature(function).parameters})


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("shape", "ndim", "modulation"), ROWS)
def test_agrees_with_torch(name, shape, ndim, modulation):
    (forward, backward), (given, options) = ways(name), arguments(name, shape, ndim, modulation)
    names = [t.name.removeprefix("d") for t in backward.outputs]
    leaves = {n: leaf(given[n]) for n in ("residual", *names) if n in given}
    leaves |= {n: torch.from_numpy(given[n]) for n in ("cos", "sin", "mask") if n in given}
    y = in_torch(name, leaves, options)
    compare([call(forward.reference, given, **options).y], [y])
    want = pulled(y, given["dy"], [leaves[n] for n in names])
    if "residual_out" in given:
        passed = {"dx": left(given, given["dresidual_out"]), "dresidual": given["dresidual_out"]}
        outputs = [t.name for t in backward.outputs]
        want = [w + torch.from_numpy(passed[n]) if n in passed else w for n, w in zip(outputs, want, strict=True)]
    compare(call(backward.reference, given, **options), want)


@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize(("shape", "groups"), [((2, 6, 5), 3), ((3, 4), 2), ((2, 3, 2, 4), 1), ((1, 4, 3), 4)])
def test_an_activation_behind_groups(act, shape, groups):
    rng, (forward, backward) = np.random.default_rng(1), ways(f"groupnorm_{act}")
    x, dy, w, b = *rng.normal(size=(2, *shape)), *rng.normal(size=(2, shape[1]))
    X, W, B = leaf(x), leaf(w), leaf(b)
    y = ACTS[act](torch.nn.functional.group_norm(X, groups, W, B, EPS))
    given = {"x": x, "weight": w, "bias": b, "num_groups": groups, "eps": EPS}
    compare([forward.reference(**given).y], [y])
    compare(backward.reference(dy=dy, **given), pulled(y, dy, (X, W, B)))


@pytest.mark.parametrize("name", ["gated_rmsnorm", "layernorm | gate(gelu)", "modulate_layernorm", "modulate_rmsnorm"])
def test_gradients_are_complex_steps(name):
    """Every entry of every gradient but that of the gate, whose function takes real numbers; to 13 digits."""
    (forward, backward), (given, options) = ways(name), arguments(name, (2, 3, 4), 1, "sample")
    gradients = call(backward.reference, given, **options)
    for output in (t.name for t in backward.outputs if t.name != "dgate"):
        source = output.removeprefix("d")
        for place in np.ndindex(given[source].shape):
            step = np.zeros(given[source].shape, complex)
            step[place] = 1e-200j
            y = call(forward.reference, {**given, source: given[source] + step}, **options).y
            want = (given["dy"] * y).sum().imag / 1e-200
            assert abs(getattr(gradients, output)[place] - want) < 1e-13 * (1 + abs(want)), (output, place)


def kernel(name, given, options, how):
    """Return y and the gradients of a float32 kernel; "folded" multiplies what stands on w and b before it adds."""
    f = {n: torch.from_numpy(v).float() for n, v in given.items()}
    act = ACTS[OPS[f"{name}_fwd"].stages[0].activation] if "gate" in f else None
    r = f["x"].reshape(-1, f["weight"].numel())
    centre = r - r.mean(1, keepdim=True) if "bias" in f else r
    rstd = (centre.square().mean(1, keepdim=True) + options["eps"]).rsqrt()
    xhat, w, b = centre * rstd, f["weight"].reshape(-1), f["bias"].reshape(-1) if "bias" in f else 0.0
    d, z = f["dy"].reshape(r.shape), xhat * w + b
    if act:
        gate = f["gate"].reshape(r.shape).requires_grad_()
        m, shift = act(gate), 0.0
        (slope,) = torch.autograd.grad(m.sum(), gate)
        m, own = m.detach(), {"gate": d * z * slope if how == "plain" else d * (z * slope)}
    else:
        wide = spread(f["scale"], f["x"]).expand(f["x"].shape).reshape(r.shape)
        shift = spread(f["shift"], f["x"]).expand(f["x"].shape).reshape(r.shape)
        m, L = 1 + wide, r.numel() // f["scale"].numel()
        sums = lambda t: t.reshape(-1, L, r.shape[1]).sum(1)  # noqa: E731
        dscale = sums(d * z) if how == "plain" else w * sums(d * xhat) + (b * sums(d))
        own = {"scale": dscale, "shift": sums(d)}
    y = z * m + shift if how == "plain" else xhat * (w * m) + (b * m + shift)
    dz = d * m
    g = dz * w if how == "plain" else d * (m * w)
    c2 = g.mean(1, keepdim=True) if "bias" in f else 0.0
    dx = rstd * (g - c2 - xhat * (g * xhat).mean(1, keepdim=True))
    return {"y": y, "x": dx, "weight": (dz * xhat).sum(0), "bias": dz.sum(0), **own}


@pytest.mark.parametrize("name", ["gated_rmsnorm", "gated_rmsnorm_sigmoid", "modulate_layernorm", "modulate_rmsnorm"])
@pytest.mark.parametrize("how", ["plain", "folded"])
def test_bounds_hold_and_are_reached(name, how):
    worst = {}
    for seed in range(24):
        shape = ((2, 3, 64), (5, 40, 7), (3, 4, 257))[seed % 3]
        given, options = arguments(name, shape, 1, ("sample", "token")[seed % 2], seed)
        scale = (1.0, 1e-3, 1.0, 30.0)[seed % 4]
        given = {n: v.astype(np.float32).astype(float) for n, v in given.items()}
        given["x"] = (given["x"] * scale + (seed % 5 == 4) * 100).astype(np.float32).astype(float)
        (forward, backward), got = ways(name), kernel(name, given, options, how)
        truth = call(forward.reference, given, **options), call(backward.reference, given, **options)
        off = (call(op.error, given, **options, arithmetic=FLOAT32) for op in (forward, backward))
        for values, deltas in zip(truth, off, strict=True):
            for output in (n for n in values._fields if n.removeprefix("d") in got):
                value, delta = getattr(values, output), getattr(deltas, output)
                made = got[output.removeprefix("d")].double().numpy().reshape(value.shape)
                ratio = np.abs(made - value) / (delta + 2.0**-25 * np.abs(value))
                worst[output] = max(worst.get(output, 0.0), float(ratio.max()))
    assert max(worst.values()) <= 1, worst
    assert min(worst.values()) > 0.05, worst  # sums of many terms reach the least of theirs


@pytest.mark.parametrize("small", [1.0, 2.0**-127])
def test_a_weight_of_0_leaves_nothing_to_err_unless_xhat_overflows(small):
    """x̂ of squares that underflow is infinite in float32, and 0·∞ is NaN: a right kernel's y is then unknown."""
    forward, _ = ways("rmsnorm_silu")
    given, options = arguments("rmsnorm_silu", (2, 8))
    given |= {"x": given["x"] * small, "weight": np.where(np.arange(8) < 4, 0.0, given["weight"])}
    delta = call(forward.error, given, **options | {"eps": 0.0}, arithmetic=FLOAT32).y
    assert (delta[:, :4] == 0).all() == (small == 1)
    assert np.isfinite(delta).all() == (small == 1)
    assert not np.isfinite(delta[:, :4]).any() or small == 1


def test_an_xhat_beyond_the_part_that_is_the_statistic_may_overflow():
    """Then c1 is infinite in a kernel, and no dx of that row is judged; the other row is."""
    x = np.array([[0.5, 1.0, 2.0**127], [0.5, 1.0, 4.0]])
    given = {"dy": np.full((2, 3), 2.0**-140), "x": x, "weight": np.ones(3), "variance_size": 1, "eps": 1e-12}
    for op, output in zip(ways("partial_rmsnorm"), ("y", "dx"), strict=True):
        delta = getattr(call(op.error, given, arithmetic=FLOAT32), output)
        assert np.isinf(delta[0, 2 if output == "y" else 0])
        assert np.isfinite(delta[1]).all()


@pytest.mark.parametrize("name", ["gated_rmsnorm", "modulate_layernorm", "add | rmsnorm | modulate"])
def test_the_sum_and_statistics_are_those_of_the_norm(name):
    forward, _ = ways(name)
    given, options = arguments(name, (3, 4, 8))
    bare = OPS[f"{'add_' if 'residual' in given else ''}{forward.chain.norm}_fwd"]
    for function, plain in ((forward.reference, bare.reference), (forward.error, bare.error)):
        more = {"arithmetic": FLOAT32} if function is forward.error else {}
        one, other = call(function, given, **options, **more), call(plain, given, **options, **more)
        for output in one._fields[1:]:
            assert np.array_equal(getattr(one, output), getattr(other, output)), output


def test_two_stages_are_taken_one_after_another():
    name, a = "layernorm | silu | modulate", FLOAT32
    (forward, backward), (given, options) = ways(name), arguments(name, (3, 4, 8))
    (silu, modulate), values = forward.chain.stages, given | options
    n = forward.chain.base.norm(given["x"], values)
    dz = np.full(n.view.shape, 1e-3)
    first, second, last = steps((silu, modulate), n, dz, values, a).zs
    assert np.array_equal(second.delta, passed(silu, first, values, a).delta)
    assert np.array_equal(last.delta, passed(modulate, second, values, a).delta)
    dy = given["dy"].reshape(n.view.shape)
    found = steps((silu, modulate), n, dz, values, a).pulled_error(dy, values, a)
    of_last = modulate.pull_error(dy, 0.0, second, values, a)
    middle = modulate.pull(dy, second.value, values)[0]
    assert np.array_equal(found[1], silu.pull_error(middle, of_last.lost, first, values, a).lost)
    assert np.array_equal(found[2]["scale"], of_last.gradients["scale"])
    gradients = call(backward.reference, given, **options)
    assert np.array_equal(found[0], silu.pull(middle, first.value, values)[0])
    assert np.array_equal(modulate.pull(dy, second.value, values)[1]["scale"], gradients.dscale)
    assert np.array_equal(n.gradients(found[0])[0], gradients.dx)
    z = affine_error(n, xhat_error(n, statistics_error(n, a), a), a)
    want = steps((silu, modulate), n, z, values, a).zs[-1].delta.reshape(given["x"].shape)
    assert np.array_equal(call(forward.error, given, **options, arithmetic=a).y, want)


@pytest.mark.parametrize("name", ["modulate_rmsnorm", "modulate_layernorm"])
def test_an_offset_is_added_to_the_weight(name):
    (forward, backward), (given, options) = ways(name), arguments(name, (3, 4, 8))
    for op in (forward, backward):
        added = call(op.reference, given, **options, weight_offset=1.5)
        heavier = call(op.reference, given | {"weight": given["weight"] + 1.5}, **options)
        for one, other in zip(added, heavier, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_the_functions_of_a_chain_declare():
    backward = Function(Chain("rmsnorm", OPS["gated_rmsnorm_fwd"].stages, adds=True), "backward_error")
    names = "dy dresidual_out residual_out gate weight eps weight_offset normalized_shape arithmetic given"
    assert list(signature(backward).parameters) == names.split()
    assert backward.__name__ == "backward_error"
    assert record("y", "rstd")(1, 2)._asdict() == {"y": 1, "rstd": 2}


def test_a_residual_of_another_shape_is_named():
    with pytest.raises(ValueError, match=r"^residual:"):
        Chain("rmsnorm", (), adds=True).forward({"x": np.ones((2, 3)), "residual": np.ones((3, 3)), "eps": EPS})


def test_what_is_added_is_x_or_what_a_dropout_leaves_of_it_with_its_error():
    a = Arithmetic(u=2.0**-10, tiny=2.0**-20, huge=1e30)
    given = {"x": np.array([[1.0, 2.0]]), "mask": np.array([[1.0, 0.0]]), "dropout_p": 0.75}
    plain = Chain("rmsnorm", (), adds=True).summand(given, a)
    left_ = Chain("rmsnorm", (), adds=True, dropout=Dropout()).summand(given, a)
    assert (plain.value.tolist(), np.max(plain.delta)) == ([[1.0, 2.0]], 0.0)
    assert left_.value.tolist() == [[4.0, 0.0]]
    assert left_.delta[0, 0] > 4 * a.u
    assert left_.delta[0, 1] == 0.0
