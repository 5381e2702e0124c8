"""A user's RMSNorm and LayerNorm beside the derived ones: the same truth, a bound that is sound and not far off."""

import numpy as np
import pytest

from verify_norm.cases import make
from verify_norm.core import user_operators
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

F = np.float32


def rms(x, weight, *, eps):
    rstd = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return weight * (x * rstd), rstd


def layer(x, weight, bias, *, eps):
    mean = np.mean(x, axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt(np.var(x, axis=-1, keepdims=True) + eps)
    return weight * ((x - mean) * rstd) + bias, mean, rstd


OPERATORS = {
    "rmsnorm": user_operators.operator(rms, statistics=["rstd"], name="own_rms"),
    "layernorm": user_operators.operator(layer, statistics=["mean", "rstd"], name="own_layer"),
}
SPECS = (
    CaseSpec((5, 2, 60), seed=1),
    CaseSpec((300, 3), offset=3.0, seed=2),
    CaseSpec((4, 1000), data="heavy", log2_scale=-8, seed=3),
    CaseSpec((16, 1), eps=1e-12, seed=4),
    CaseSpec((9, 40), offset=100.0, eps=1000.0, normalized_ndim=1, seed=5),
)


def truths(spec, name):
    """Return the truths of a user's operator, and of ours, at the same inputs."""
    exact = make.exact_inputs(spec, OPS[name])
    base = OPERATORS[name[:-4]].name
    return (
        exact,
        make.truths(spec, OPS[f"{base}{name[-4:]}"], Contract(), exact),
        make.truths(spec, OPS[name], Contract(), exact),
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.shape}")
@pytest.mark.parametrize("name", ["rmsnorm_fwd", "rmsnorm_bwd", "layernorm_fwd", "layernorm_bwd"])
def test_the_truth_is_ours_and_the_bound_is_near_the_derived_one(name, spec):
    _, theirs, derived = truths(spec, name)
    assert theirs.keys() == derived.keys()
    for output, one in derived.items():
        other = theirs[output]
        assert (np.abs(other.value - one.value) <= 1e-6 * one.delta).all(), "float64 is off by 1e-9 of float32"
        ratio = np.median(other.delta[one.delta > 0] / one.delta[one.delta > 0])
        centred = spec.shape[-1] > 1 or name.startswith("rms")
        assert 0.4 < ratio < (20 if centred else np.inf), (output, ratio)


def forms(x, w, dy, eps):
    """Yield y and dx of RMSNorm in float32, in several forms and orders of summation."""
    for order in (slice(None), slice(None, None, -1)):

        def total(a, order=order):
            return (
                np.add.accumulate(a[:, order], axis=1, dtype=F)[:, -1:]
                if a.shape[1] < 100
                else a[:, order].sum(1, dtype=F, keepdims=True)
            )

        n = F(x.shape[1])
        s = np.sqrt(total(x * x) / n + F(eps))
        r = F(1) / s
        g = w * dy
        yield w * (x * r), r * (g - x * r * (total(g * (x * r)) / n))
        yield x * (w * r), r * g - x * (total(g * x) * (r * r * r) / n)
        yield (w * x) / s, (g - (x / s) * (total(g * (x / s)) * (F(1) / n))) / s


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.shape}")
def test_right_kernels_in_any_form_are_within_the_bound(spec):
    exact, backward, _ = truths(spec, "rmsnorm_bwd")
    _, forward, _ = truths(spec, "rmsnorm_fwd")
    rows = (-1, spec.shape[-1])
    x, dy = (exact[name].reshape(rows).astype(F) for name in ("x", "dy"))
    for y, dx in forms(x, exact["weight"].astype(F), dy, spec.eps):
        for got, want in ((y, forward["y"]), (dx, backward["dx"])):
            assert got.dtype == F
            assert (np.abs(got.reshape(spec.shape) - want.value) <= want.delta).all()
    wrong = x / np.sqrt((x * x).sum(1, keepdims=True) / max(rows[1] - 1, 2) + spec.eps) * exact["weight"]
    assert (np.abs(wrong.reshape(spec.shape) - forward["y"].value) > forward["y"].delta).any(), "N − 1 is seen"
