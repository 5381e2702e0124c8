"""Modules of torch in turn round each result to the type of x: right under z=x, and wrong under the strict contract."""

import pytest
import torch
from torch.nn.functional import gelu, rms_norm, silu

from verify_norm.checks import CHECKS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.search.examine import examine

LAWS = ("distribution", "gradient", "identities", "scale", "scale_dy", "linearity", "permutation", "degenerate")
SPECS = [
    CaseSpec(shape, dtype, seed=seed, further=LAWS, **options)
    for dtype in ("float16", "bfloat16")
    for seed, (shape, options) in enumerate((
        ((4, 33), {}),
        ((2, 3, 64), {"weight_dtype": "float32", "dy_layout": "transposed"}),
        ((300, 24), {"data": "heavy"}),
        ((5, 40), {"log2_scale": 6, "dy_log2_scale": -8}),
        ((3, 128), {"weight": False}),
        ((7, 16), {"data": "constant", "offset": 3.0}),
        ((4, 48), {"other_dtype": "float32"}),  # y is float32 in those that have such an input
    ))
]  # fmt: skip


def norm(x, weight, eps, shape):
    return rms_norm(x.float(), shape, None if weight is None else weight.float(), eps).to(x.dtype)


def activated(x, weight, eps, normalized_shape):
    return gelu(norm(x, weight, eps, normalized_shape))


def gated(x, gate, weight, eps, normalized_shape):
    return norm(x, weight, eps, normalized_shape) * silu(gate)


def gated_before(x, gate, weight, eps, normalized_shape):
    return norm(x * silu(gate), weight, eps, normalized_shape)


def modulated(x, weight, scale, shift, eps, normalized_shape):
    leading = x.dim() - len(normalized_shape)
    if scale.shape != x.shape:
        scale, shift = (t.reshape(t.shape[0], *[1] * (leading - 1), *normalized_shape) for t in (scale, shift))
    return norm(x, weight, eps, normalized_shape) * (1 + scale) + shift


def rotated(x, weight, cos, sin, eps):
    z, half = norm(x, weight, eps, x.shape[-1:]), cos.shape[-1]
    cos, sin = (t.unsqueeze(-2) if t.dim() < x.dim() or x.dim() > 2 else t for t in (cos, sin))
    a, b, rest = z[..., :half], z[..., half : 2 * half], z[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def added(x, residual, weight, eps, normalized_shape):
    h = x + residual
    return norm(h, weight, eps, normalized_shape), h


def dropped(x, residual, mask, dropout_p, weight, eps, normalized_shape):
    h = x * mask / (1 - dropout_p) + residual
    return norm(h, weight, eps, normalized_shape), h


KERNELS = {
    activated: "rmsnorm | gelu",
    gated: "gated_rmsnorm",
    gated_before: "gate | rmsnorm",
    modulated: "rmsnorm | modulate",
    rotated: "qk_norm_rope",
    added: "add_rmsnorm",
    dropped: "dropout_add_rmsnorm",
}


def findings(function, op, contract):
    """What all checks say of both directions."""
    found = []
    for kernel in load_directions(function, op, contract=contract):
        checks = tuple(name for name, check in CHECKS.items() if check.applies(OPS[kernel.op]))
        for spec in SPECS:
            examined = examine(kernel, kernel.fitted(spec), checks, "cpu")
            assert examined.tallies
            found += [(kernel.op, finding.check, finding.output, finding.message) for finding in examined.findings]
    return found


@pytest.mark.parametrize(("function", "op"), KERNELS.items(), ids=[one.__name__ for one in KERNELS])
def test_modules_in_turn(function, op):
    rounded = ",residual=rounded" * (function in (added, dropped))
    assert findings(function, op, f"z=x{rounded}") == []
    strict = findings(function, op, rounded.removeprefix(","))
    assert {op for op, check, *_ in strict if check == "accuracy"}


def test_a_mistake_in_them_is_detected():
    def without_one(x, weight, scale, shift, eps, normalized_shape):
        return modulated(x, weight, scale - 2.0**-6, shift, eps, normalized_shape)

    found = findings(without_one, "rmsnorm | modulate", "z=x")
    assert {"y", "dx"} <= {output for _, check, output, _ in found if check == "accuracy"}
