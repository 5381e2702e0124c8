"""Every operator in eager torch: which there are, their statistics, and narrow types as a GPU computes them."""

import pytest
import torch
from judged import made

from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager
from verify_norm.validation.policies.pytorch import opinfo
from verify_norm.validation.policies.trial import Subject


def test_every_operator_has_eager_torch_to_compare_with():
    assert set(eager.TORCH) == {name.removesuffix("_fwd") for name, op in OPS.items() if op.forward is None}


PLAIN = [
    name
    for name, op in OPS.items()
    if op.forward and not op.stages and op.before is None and op.dropout is None and op.lawful
]
SAMPLED = {"l2norm_bwd": "rmsnorm_bwd"}  # it has no OpInfo


@pytest.mark.parametrize("op", PLAIN)
def test_the_gradients_of_eager_torch_through_the_statistics_that_kernels_get(op):
    """The statistics that a backward gets are those that its forward saves."""
    kernel = made(lambda **_: None, SAMPLED.get(op, op))
    taken = {tensor.name for tensor in OPS[op].inputs}
    for sample in opinfo(Subject(kernel), ("float64",)):
        base = op.removesuffix("_bwd")
        outputs = eager.TORCH[base](
            sample.spec, {n: None if t is None else t.clone() for n, t in sample.inputs.items()}
        )
        x = outputs.get("residual_out", sample.inputs["x"])
        mean, rstd = eager.statistics(OPS[op], sample.spec, {**sample.inputs, "x": x})
        if x.numel() == 0:
            continue
        view = OPS[op].view
        shape = {"rows": (-1, *(1,) * sample.spec.normalized_ndim), "groups": (*rstd.shape, -1), "channels": (1, -1)}[
            view
        ]
        if view == "rows":
            lead = sample.spec.shape[: len(sample.spec.shape) - sample.spec.normalized_ndim]
            shape = (*lead, *shape[1:])
            xhat = (x - (0 if mean is None else mean.reshape(shape))) * rstd.reshape(shape)
        elif view == "groups":
            xhat = ((x.reshape(shape) - mean[..., None]) * rstd[..., None]).reshape(x.shape)
        else:
            xhat = (x.movedim(1, -1) - mean) * rstd
            xhat = xhat.movedim(-1, 1)
        affine = (1, -1, *(1,) * (x.dim() - 2))
        w, b = (
            None if t is None or name not in taken else t if view == "rows" else t.reshape(affine)
            for name, t in sample.inputs.items()
            if name in ("weight", "bias")
        )
        y = xhat * (1 if w is None else w) + (0 if b is None else b)
        assert torch.allclose(y, outputs["y"], rtol=1e-9, atol=1e-9)


def test_narrow_types_are_computed_in_float32():
    spec = CaseSpec((1151, 64), "float16")
    x, dy = (torch.randn(spec.shape, generator=torch.Generator().manual_seed(i)).half() for i in (0, 1))
    weight = torch.ones(64).half().requires_grad_()
    y = eager.layernorm(spec, {"x": x, "weight": weight, "bias": None})["y"]
    assert y.dtype == torch.float16
    y.backward(dy)
    exact = (dy.double() * torch.nn.functional.layer_norm(x.double(), (64,))).sum(0)
    half_ulp = torch.exp2(exact.abs().log2().floor() - 11)
    assert ((weight.grad - exact).abs() <= 1.01 * half_ulp).all()
