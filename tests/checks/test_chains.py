"""Stages behind a norm: right kernels pass, unusual ones too, and each usual mistake is detected by name."""

from dataclasses import replace
from math import prod

import pytest
import torch
from torch.nn import functional

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import FURTHER, CaseSpec
from verify_norm.kernels.zoo import rope

MANY = tuple(name for name in FURTHER if name not in ("effects", "memory", "honesty"))
LAWS = tuple(name for name in MANY if name not in ("calls", "modes", "autograd"))
SPECS = (
    CaseSpec((2, 3, 40), modulation="sample", seed=1, further=MANY),
    CaseSpec((4, 33), dtype="bfloat16", gate_layout="transposed", scale_layout="row_strided", seed=2, further=LAWS),
    CaseSpec((2, 3, 2, 17), dtype="float16", weight=False, modulation="token", seed=3, further=LAWS),
    CaseSpec((3, 4, 64), offset=100.0, bias=False, shift_layout="every_other", seed=4, further=LAWS),
    CaseSpec((2, 5, 3, 20), normalized_ndim=2, weight_offset=1.0, seed=5, further=LAWS),
    CaseSpec((300, 8), data="heavy", seed=6, further=()),
    CaseSpec((0, 8), seed=7, further=()),
    CaseSpec((3, 1), data="uneven", modulation="token", seed=8, further=LAWS),
    CaseSpec((4, 30), special="inf", seed=9, special_in="x", further=()),
    CaseSpec((2, 3, 24), dtype="bfloat16", other_dtype="float32", seed=10, further=LAWS),
)
# Of kernels that differ from another in values alone: the first case runs again for those alone.
OF_VALUES = (replace(SPECS[0], further=LAWS), *SPECS[1:])
SPECIALS = [
    CaseSpec((3, 4, 30), special=special, special_in=name, special_at="first", seed=10, further=())
    for special in ("nan", "inf", "-inf")
    for name in ("gate", "scale", "shift")
]
ACTS = {
    "gated_rmsnorm": functional.silu,
    "gated_rmsnorm_sigmoid": torch.sigmoid,
    "layernorm | gate(gelu)": functional.gelu,
}
UNUSUAL = ("", "folded", "float64")


def rows(t, ns, kind=torch.float32):
    return t.to(kind).reshape(-1, prod(ns))


def wide(t, x, ns, how=""):
    """Return a row of scale or shift for each row of x."""
    kind = torch.float64 if how == "float64" else torch.float32
    if t.shape == x.shape:
        return rows(t, ns, kind)
    t, many = rows(t, ns, kind), x.numel() // prod(ns)
    if how == "sample of the row":  # as if there were a row a token
        return t[torch.arange(many) % len(t)] if many else t[:0]
    if how == "the next sample":
        t = t.roll(-1, 0)
    return t.repeat_interleave(many // max(len(t), 1), 0)


def normalized(x, ns, eps, centred, kind):
    r = rows(x, ns, kind)
    mean = r.mean(1, keepdim=True) if centred else torch.zeros(len(r), 1, dtype=kind)
    rstd = ((r - mean).square().mean(1, keepdim=True) + eps).rsqrt()
    return (r - mean) * rstd, mean, rstd


def forward(name, how=""):
    """A right kernel in torch of one of the chains below, or one with a mistake."""
    act, centred = ACTS.get(name), "layernorm" in name

    def run(x, weight, eps, normalized_shape, gate=None, scale=None, shift=None, bias=None, weight_offset=0.0):
        ns, kind = normalized_shape, torch.float64 if how == "float64" else torch.float32
        given = x * act(gate) if how == "gate before the norm" else x
        xhat, mean, rstd = normalized(given, ns, eps, centred, kind)
        w = 1.0 if weight is None else weight.to(kind).reshape(-1) + weight_offset
        b = 0.0 if bias is None else bias.to(kind).reshape(-1)
        if act:
            m, t = act(rows(gate, ns, kind)), 0.0
            m = m if how != "gate left out" else torch.ones_like(m)
            m = rows(gate, ns, kind) if how == "gate not activated" else m
            m = m.bfloat16().to(kind) if how == "gate in bfloat16" else m
            m = torch.sigmoid(rows(gate, ns)) if how == "the other activation" else m
        else:
            if how == "scale in the type of x":
                scale = scale.to(x.dtype)
            m, t = wide(scale, x, ns, how) + (how != "1 left out"), wide(shift, x, ns, how)
            t = {"shift left out": 0.0 * t, "shift subtracted": -t}.get(how, t)
        if how == "folded":
            y = xhat * (w * m) + (b * m + t)
        elif how == "bias after":
            y = xhat * w * m + b + t
        elif how == "shift first":
            y = (xhat * w + b + t) * m
        else:
            y = (xhat * w + b) * m + t
        y = y if how != "gate before the norm" else xhat * w + b
        saved = (mean[:, 0].float(), rstd[:, 0].float()) if centred else (rstd[:, 0].float(),)
        return y.reshape(x.shape).to(x.dtype), *saved

    return run


def backward(name, how=""):
    act, centred = ACTS.get(name), "layernorm" in name

    def run(
        dy, x, weight, rstd, eps, normalized_shape, gate=None, scale=None, shift=None, bias=None, mean=None,
        weight_offset=0.0,
    ):  # fmt: skip
        ns, kind = normalized_shape, torch.float64 if how == "float64" else torch.float32
        r, d = rows(x, ns, kind), rows(dy, ns, kind)
        xhat = (r - (mean[:, None] if centred else 0.0)) * rstd[:, None]
        w = torch.ones(prod(ns), dtype=kind) if weight is None else weight.to(kind).reshape(-1) + weight_offset
        b = 0.0 if bias is None else bias.to(kind).reshape(-1)
        z = xhat if how == "dgate of x̂" else xhat * w + (0.0 if how == "without bias" else b)
        if act:
            g = rows(gate, ns, kind).requires_grad_()
            with torch.enable_grad():
                value = act(g)
                (slope,) = torch.autograd.grad(value.sum(), g)
            m = value.detach()
            slope = torch.sigmoid(g.detach()) if how == "slope" else slope
            own = {"dgate": (d * z * slope).reshape(x.shape).to(x.dtype)}
        else:
            m = wide(scale, x, ns) + (how != "1 left out")
            S, N = scale.numel() // prod(ns), prod(ns)
            L = len(r) // max(S, 1)

            def sums(v):
                each = v.reshape(S, L, N)
                return (each[:, :-1] if how == "last token" and L > 1 else each).sum(1)

            dscale = w * sums(d * xhat) + b * sums(d) if how == "folded" else sums(d * z)
            own = {"dscale": dscale, "dshift": sums(d)}
            own = {n: v.reshape(scale.shape).to(scale.dtype) for n, v in own.items()}
        dz = d if how == "stage left out" else d * m
        gg = d * (m * w) if how == "folded" else dz * w
        c2 = gg.mean(1, keepdim=True) if centred else 0.0
        dx = rstd[:, None] * (gg - c2 - xhat * (gg * xhat).mean(1, keepdim=True))
        dw = None if weight is None else ((d if how == "dweight of dy" else dz) * xhat).sum(0)
        db = None if bias is None else dz.sum(0).reshape(bias.shape).to(bias.dtype)
        dw = None if weight is None else dw.reshape(weight.shape).to(weight.dtype)
        return {"dx": dx.reshape(x.shape).to(x.dtype), "dweight": dw, **own, **({"dbias": db} if centred else {})}

    return run


def silu(how=""):
    """RMSNorm and SiLU in torch, or with a mistake."""

    def run(x, weight, eps, normalized_shape, weight_offset=0.0):
        xhat, _, rstd = normalized(x, normalized_shape, eps, False, torch.float32)
        w = 1.0 if weight is None else weight.float().reshape(-1) + weight_offset
        z = functional.silu(xhat) * w if how == "silu before the weight" else functional.silu(xhat * w)
        z = functional.silu((xhat * w).bfloat16().float()) if how == "z in bfloat16" else z
        return z.reshape(x.shape).to(x.dtype), rstd[:, 0]

    return run


def l2(how=""):
    """L2Norm in torch; "recomputed" and "cubed" are its gradient, right in either way, others are wrong."""

    def run(x, eps, normalized_shape, dy=None, rstd=None):
        r = rows(x, normalized_shape, torch.float64 if how == "float64" else torch.float32)
        square = r.square().mean(1, keepdim=True) if how == "mean" else r.square().sum(1, keepdim=True)
        own = (square + eps).rsqrt() if how != "eps outside" else 1 / (square.sqrt() + eps)
        own = 1 / square.sqrt().clamp_min(eps) if how == "normalize" else own
        own = torch.where(square == 0, 0.0, own) if how == "guard" else own
        if dy is None:
            return (r * own).reshape(x.shape).to(x.dtype), own[:, 0].float()
        d, own = rows(dy, normalized_shape, r.dtype), own if how == "recomputed" else rstd[:, None]
        c1 = (d * r * own).sum(1, keepdim=True)
        c1 = c1 / r.shape[1] if how == "c1 of means" else c1
        dx = own * d - r * (d * r).sum(1, keepdim=True) * own**3 if how == "cubed" else own * (d - r * own * c1)
        return (dx.reshape(x.shape).to(x.dtype),)

    return run


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "how", "wrong"),
    [
        *(("fwd", how, set()) for how in ("", "float64")),
        *(("fwd", how, {"y", "rstd"}) for how in ("mean", "eps outside", "normalize")),
        ("fwd", "guard", {"y", "rstd"}),
        *(("bwd", how, set()) for how in ("", "recomputed", "cubed")),
        ("bwd", "c1 of means", {"dx"}),
    ],
)
def test_l2norm(way, how, wrong, findings):
    """eps scales as that of a mean of squares does, to be added to a sum."""
    laws = [
        CaseSpec((6, 40), eps=eps, seed=n, further=LAWS, variant=n) for n, eps in enumerate((1e-5, 1e-12, 1e3, 0.1))
    ]
    zeros = [CaseSpec((3, 17), eps=0.0, data="padded", seed=1, further=())]
    run = (
        l2(how)
        if way == "fwd"
        else lambda dy, x, rstd, eps, normalized_shape: l2(how)(x, eps, normalized_shape, dy, rstd)
    )
    kernel = Kernel("k", f"l2norm_{way}", run=run, forward_run=l2())
    specs = [spec for spec in (OF_VALUES if how else SPECS) if spec.special is None]
    names = ("accuracy", "statistics") if wrong and how != "guard" else ()  # rstd of zeros is what `degenerate` expects
    found = findings(kernel, (*specs, *laws, *zeros), *names)
    assert {output for _, output in found} == wrong, found


def of_gate(how=""):
    """RMSNorm of x·SiLU(gate) in torch, and its gradients; "x·gate first" is right, others are wrong."""

    def run(x, gate, weight, eps, normalized_shape, weight_offset=0.0, dy=None, rstd=None):
        kind = torch.float64 if how == "float64" else torch.float32
        r, g = rows(x, normalized_shape, kind), rows(gate, normalized_shape, kind)
        s = torch.sigmoid(g)
        a = g * s
        h = (r * g) * s if how == "x·gate first" else r * a
        h = h.bfloat16().to(kind) if how == "h in bfloat16" else h
        own = ((r if how == "statistics of x" else h).square().mean(1, keepdim=True) + eps).rsqrt()
        w = 1.0 if weight is None else weight.to(kind).reshape(-1) + weight_offset
        if dy is None:
            return (h * own * w).reshape(x.shape).to(x.dtype), own[:, 0].float()
        d, own = rows(dy, normalized_shape, kind), own if how == "recomputed" else rstd[:, None]
        xhat = h * own
        dh = own * (d * w - xhat * (d * w * xhat).mean(1, keepdim=True))
        slope = s if how == "slope" else s * (1 + g * (1 - s))
        made = dh if how == "dx of h" else dh * a, (d * w if how == "dgate of dy" else dh) * r * slope
        dw = None if weight is None else (d * (r * own if how == "dweight of x" else xhat)).sum(0)
        dw = None if dw is None else dw.reshape(weight.shape).to(weight.dtype)
        return *(t.reshape(x.shape).to(x.dtype) for t in made), dw

    return run


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "how", "wrong"),
    [
        *(("fwd", how, set()) for how in ("", "float64", "x·gate first")),
        ("fwd", "statistics of x", {"y", "rstd"}),
        ("fwd", "h in bfloat16", {"y", "rstd"}),
        *(("bwd", how, set()) for how in ("", "recomputed", "x·gate first")),
        ("bwd", "slope", {"dgate"}),
        ("bwd", "dx of h", {"dx"}),
        ("bwd", "dgate of dy", {"dgate"}),
        ("bwd", "dweight of x", {"dweight"}),
    ],
)
def test_a_gate_before_the_norm(way, how, wrong, findings):
    def gradients(dy, x, gate, weight, rstd, eps, normalized_shape, weight_offset=0.0):
        return of_gate(how)(x, gate, weight, eps, normalized_shape, weight_offset, dy, rstd)

    run = of_gate(how) if way == "fwd" else gradients
    laws = [CaseSpec((6, 40), seed=n, further=LAWS, variant=n, eps=eps) for n, eps in enumerate((1e-5, 1e-12, 1e3))]
    specials = [spec for spec in SPECIALS if spec.special_in == "gate"]
    zeros = [CaseSpec((3, 17), eps=0.0, data="padded", seed=1, further=())]
    kernel = Kernel("k", f"gate_rmsnorm_{way}", run=run, forward_run=of_gate())
    specs = (*(OF_VALUES if how else SPECS), *laws, *specials, *zeros)
    found = findings(kernel, specs, *(("accuracy", "statistics") if wrong else ()))
    assert {output for _, output in found} == wrong, found


def partial_norm(how=""):
    """RMSNorm of the first elements in torch, and its gradients; "masked" and "by the sum" are right, others wrong."""

    def run(x, weight, eps, variance_size, normalized_shape, weight_offset=0.0, dy=None, rstd=None):
        kind = torch.float64 if how == "float64" else torch.float32
        r, K = rows(x, normalized_shape, kind), variance_size
        K = r.shape[1] if how == "whole row" else max(K - 1, 1) if how == "one less" else K
        head = r[:, -K:] if how == "last ones" else r[:, :K]
        first = torch.arange(r.shape[1]) < K
        square = (
            torch.where(first, r, 0.0).square().sum(1, keepdim=True) if how == "masked" else head.square().sum(1, True)
        )
        own = (square / (r.shape[1] if how == "divided by N" else K) + eps).rsqrt()
        w = 1.0 if weight is None else weight.to(kind).reshape(-1) + weight_offset
        if dy is None:
            y = r * own * w
            y = torch.where(first, y, r * w) if how == "tail left alone" else y
            return y.reshape(x.shape).to(x.dtype), own[:, 0].float()
        d, own = rows(dy, normalized_shape, kind), own if how == "recomputed" else rstd[:, None]
        xhat, g = r * own, d * w
        terms = g * xhat
        c1 = (terms[:, :K] if how == "c1 of the first" else terms).sum(1, keepdim=True)
        c1 = c1 / (r.shape[1] if how == "c1 by N" else K)
        dx = own * (g - xhat * c1 * (1.0 if how == "all lose c1" else first))
        dw = None if weight is None else (d * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
        return dx.reshape(x.shape).to(x.dtype), dw

    return run


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "how", "wrong"),
    [
        *(("fwd", how, set()) for how in ("", "float64", "masked")),
        *(("fwd", how, {"y", "rstd"}) for how in ("whole row", "one less", "last ones", "divided by N")),
        ("fwd", "tail left alone", {"y"}),
        *(("bwd", how, set()) for how in ("", "recomputed", "float64")),
        *(("bwd", how, {"dx"}) for how in ("c1 of the first", "c1 by N", "all lose c1")),
    ],
)
@pytest.mark.parametrize("name", ["partial_rmsnorm"])
def test_a_norm_by_a_part_of_the_row(name, way, how, wrong, findings):
    def gradients(dy, x, weight, rstd, eps, variance_size, normalized_shape, weight_offset=0.0):
        return partial_norm(how)(x, weight, eps, variance_size, normalized_shape, weight_offset, dy, rstd)

    more = [CaseSpec((6, 40), seed=n, further=LAWS, variance_size=K) for n, K in enumerate((1, 7, 39, 40, 100))]
    more += [CaseSpec((3, 17), eps=0.0, data="padded", seed=1, variance_size=4, further=())]
    more += [
        CaseSpec((2,), data="integers", log2_scale=128, weight_data="subnormal", seed=55903, further=())
    ]  # x̂ overflows
    more += [
        CaseSpec((4, 30), special=s, special_at=a, seed=2, further=()) for s in ("inf", "nan") for a in ("last", "row")
    ]
    kernel = Kernel(
        "k", f"{name}_{way}", run=partial_norm(how) if way == "fwd" else gradients, forward_run=partial_norm()
    )
    specs = (*(OF_VALUES if how else SPECS), *more)
    found = findings(kernel, specs, *(("accuracy", "statistics") if wrong else ()))
    assert {output for _, output in found} == wrong, found


HEADS = (
    CaseSpec((2, 3, 2, 8), seed=1, further=LAWS),
    CaseSpec((3, 2, 17), rotary="half", seed=2, further=LAWS, cos_layout="transposed", sin_layout="every_other"),
    CaseSpec((5, 24), dtype="bfloat16", rotary="quarter", weight_offset=1.0, seed=3, further=LAWS),
    CaseSpec((2, 2, 2, 2, 5), normalized_ndim=2, dtype="float16", seed=4, further=LAWS),
    CaseSpec((3, 1), seed=5, further=LAWS),
    CaseSpec((0, 2, 8), seed=6, further=()),
    CaseSpec((7,), rotary="half", seed=7, further=()),
    CaseSpec((3, 2, 9), special="inf", seed=8, further=()),
    CaseSpec((4, 2, 9), special="nan", special_at="last", seed=9, further=()),
    CaseSpec((3, 2, 10), dtype="float16", other_dtype="float32", seed=10, further=LAWS),
)
WRONG = (
    *("interleaved_for_neox", "wrong_half", "all_of_the_row", "sign_of_sin", "position_of_the_neighbour"),
    *("token_of_the_head", "before_the_norm"),
)
RIGHT = ("rope", "in_float64", "in_complex_numbers")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_a_rotation(name, findings):
    kernel = Kernel("k", "qk_norm_rope_fwd", run=getattr(rope, name))
    found = findings(kernel, HEADS, *(() if name in RIGHT else ("accuracy", "statistics")))
    assert (not found) if name in RIGHT else ("accuracy", "y") in found, found


def test_a_rotation_in_interleaved_pairs_is_a_stage_of_its_own(findings):
    name = "rmsnorm | rotate(interleaved)_fwd"
    assert findings(Kernel("k", name, run=rope.interleaved_for_neox), HEADS) == {}
    assert ("accuracy", "y") in findings(Kernel("k", name, run=rope.rope), HEADS, "accuracy")


def of_tables(how):
    """A rotation whose tables are rounded to the type of x first, or read as if they had it."""

    def run(x, weight, cos, sin, eps, weight_offset, normalized_shape):
        half = cos.shape[-1]
        cos, sin = (t.to(x.dtype) if how == "rounded" else t.contiguous().view(x.dtype)[..., :half] for t in (cos, sin))
        return rope.rope(x, weight, cos, sin, eps, weight_offset, normalized_shape)

    return run


@pytest.mark.parametrize("how", ["rounded", "taken for those of x"])
def test_tables_of_another_type_than_x(how, findings):
    kernel = Kernel("k", "qk_norm_rope_fwd", run=of_tables(how))
    alike = [spec for spec in HEADS if spec.other_dtype is None]
    assert findings(kernel, alike, "accuracy") == {}
    assert ("accuracy", "y") in findings(kernel, HEADS, "accuracy")


@pytest.mark.parametrize(("how", "wrong"), [("rope_bwd", set()), ("turned_on", {"dx", "dweight"})])
def test_the_gradient_turns_back(how, wrong, findings):
    kernel = Kernel("k", "qk_norm_rope_bwd", run=getattr(rope, how), forward_run=rope.rope)
    found = findings(kernel, HEADS, *(("accuracy",) if wrong else ()))
    assert {output for _, output in found} == wrong, found


@pytest.mark.parametrize("how", ["", "silu before the weight", "z in bfloat16"])
def test_rmsnorm_and_silu(how, findings):
    specs = [spec for spec in SPECS if spec.special is None]
    found = findings(Kernel("k", "rmsnorm_silu_fwd", run=silu(how)), specs, "accuracy", "statistics", "identities")
    assert set(found) - {("identities", "y")} == ({("accuracy", "y")} if how else set())
    assert how or not found


def kernel(name, way, how="", **contract):
    function = forward(name, how) if way == "fwd" else backward(name, how)
    return Kernel("k", f"{name}_{way}", run=function, forward_run=forward(name), contract=Contract(**contract))


NAMES = (*ACTS, "modulate_layernorm", "modulate_rmsnorm")


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), [(name, UNUSUAL[n % 3]) for n, name in enumerate(NAMES)])
@pytest.mark.parametrize("way", ["fwd", "bwd"])
def test_right_kernels_pass_every_check(name, way, how, findings):
    """One kernel of each kind of stage in all further runs."""
    specs = SPECS if name in ("gated_rmsnorm", "modulate_layernorm") else OF_VALUES
    assert findings(kernel(name, way, how), specs) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["fwd", "bwd"])
def test_right_kernels_are_within_the_bound(name, way, findings):
    for how in UNUSUAL:
        values = ("signature", "accuracy", "statistics", "nonfinite")
        specs = [s for s in SPECIALS if (s.special_in == "gate") == (name in ACTS)]
        assert findings(kernel(name, way, how), (*SPECS, *specs), *values) == {}


FORWARD = {
    "gated_rmsnorm": (
        *("gate before the norm", "gate left out", "gate not activated", "gate in bfloat16", "the other activation"),
    ),
    "layernorm | gate(gelu)": ("bias after", "gate not activated"),
    "modulate_layernorm": (
        *("1 left out", "shift left out", "shift subtracted", "sample of the row", "the next sample", "bias after"),
        *("shift first", "scale in the type of x"),
    ),
    "modulate_rmsnorm": ("1 left out", "sample of the row"),
}
BACKWARD = {
    "gated_rmsnorm": {
        "stage left out": {"dx", "dweight"},
        "slope": {"dgate"},
        "dgate of x̂": {"dgate"},
        "dweight of dy": {"dweight"},
    },
    "layernorm | gate(gelu)": {"without bias": {"dgate"}},
    "modulate_layernorm": {
        "1 left out": {"dx", "dweight", "dbias"},
        "without bias": {"dscale"},
        "last token": {"dscale", "dshift"},
        "dweight of dy": {"dweight"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mistake"), [(name, one) for name, many in FORWARD.items() for one in many])
def test_wrong_values_are_detected(name, mistake, findings):
    assert ("accuracy", "y") in findings(kernel(name, "fwd", mistake), SPECS, "accuracy")


@pytest.mark.parametrize(("name", "mistake"), [(name, one) for name, many in BACKWARD.items() for one in many])
def test_wrong_gradients_are_detected_by_name(name, mistake, findings):
    found = findings(kernel(name, "bwd", mistake), SPECS, "accuracy")
    assert {output for _, output in found} == BACKWARD[name][mistake]


def test_a_row_of_modulation_that_leaks_into_another_is_detected(findings):
    def run(x, weight, bias, scale, shift, eps, normalized_shape):
        y, *saved = forward("modulate_layernorm")(x, weight, eps, normalized_shape, None, scale, shift, bias)
        y.reshape(-1)[-1:] += 0 * scale.reshape(-1)[:1]
        return y, *saved

    specs = [spec for spec in SPECIALS if spec.special_in == "scale"]
    found = findings(Kernel("k", "modulate_layernorm_fwd", run=run), specs, "accuracy", "nonfinite")
    assert ("accuracy", "y") in found


def test_sums_over_tokens_in_any_order_need_no_determinism(findings):
    def run(dy, x, weight, bias, scale, shift, mean, rstd, eps, normalized_shape):
        made = backward("modulate_layernorm")(
            dy, x, weight, rstd, eps, normalized_shape, None, scale, shift, bias, mean
        )
        change = torch.where(torch.rand(made["dshift"].shape) < 0.5, 2.0**-23, 0.0)  # an ulp, another one each time
        return {**made, "dshift": made["dshift"] * (1 + change)}

    specs = [CaseSpec((2, 50, 9), seed=1, further=("determinism",))]
    for deterministic in (True, False):
        contract = Contract(summation="atomic", deterministic=deterministic)
        found = findings(Kernel("k", "modulate_layernorm_bwd", run=run, contract=contract), specs, "determinism")
        assert set(found) == ({("determinism", "dshift")} if deterministic else set())
