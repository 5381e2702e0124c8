"""flash-attention's policy: its samples, its references, and an error held against eager torch's own."""

import pytest
import torch
from judged import bent, made

from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.validation.policies import flash
from verify_norm.validation.policies.trial import KernelFailedError, NotApplicableError, Sample, Subject

SPEC = CaseSpec((2, 2), eps=3.0, bias=False)
ROW = {"x": torch.tensor([[1.0, 1.0], [1.0, 3.0]]), "weight": torch.tensor([2.0, 4.0]), "bias": None}


def small(dtype="float32"):
    """A sample of its own kind, of 8×4 rows of 192."""
    return next(s for s in flash.samples(Subject(made(None, "rmsnorm_fwd"))) if s.spec.dtype == dtype)


def test_its_references_by_hand():
    """Of the row (1, 1), mean x² + eps = 4."""
    assert flash.rmsnorm(SPEC, ROW, True)[0].tolist() == [1.0, 2.0]
    assert flash.layernorm(SPEC, ROW, True)[1].tolist() == [-1.0, 2.0]  # (1, 3): ∓1 at rstd = ½
    fused = flash.reference(flash.rmsnorm, False, SPEC, ROW | {"residual": torch.tensor([[0.0, 0.0], [0.0, -2.0]])})
    assert fused["residual_out"].tolist() == [[1.0, 1.0]] * 2
    assert fused["y"].tolist() == [[1.0, 2.0]] * 2


def test_a_gate_sends_a_gradient_through_both_outputs():
    y, total = (torch.ones(1, requires_grad=True) for _ in range(2))
    tensors, cotangents = flash.gated({"y": y, "residual_out": total}, {"y": torch.ones(1)})
    torch.autograd.backward(tensors, cotangents)
    assert y.grad.item() == pytest.approx(0.731059)  # σ(1)
    assert total.grad.item() == pytest.approx(0.196612)  # σ(1)(1 − σ(1))


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, None), (1.1, "y is ")])
def test_an_error_is_held_against_twice_that_of_eager_torch(factor, wrong):
    kernel = bent("rmsnorm_fwd_torch", lambda out: (out[0] * factor, *out[1:]))
    for dtype in ("float32", "float16"):
        said = flash.compare(kernel, small(dtype))
        assert (said is None) if wrong is None else said.startswith(wrong)


def test_a_type_and_a_shape_are_compared_too():
    sample = small("float16")
    for bend, said in ((lambda out: (out[0].float(),), "expected torch.float16"), (lambda out: (out[0][:1],), "shape")):
        with pytest.raises(KernelFailedError, match=said):
            flash.compare(bent("rmsnorm_fwd_torch", bend), sample)


def test_its_samples_on_a_cpu():
    found = list(flash.samples(Subject(made(None, "add_rmsnorm_bwd"), few=True)))
    assert [s.variant for s in found if s.spec.shape[-1] == 192] == ["prenorm", "", "prenorm", ""]
    assert {s.spec.shape[-1] for s in found} == {192, 4096}
    assert all(s.spec.shape[:2] == (flash.BATCH, flash.SHORT) and isinstance(s, Sample) for s in found)
    with pytest.raises(NotApplicableError, match="it has no test of batchnorm"):
        next(flash.samples(Subject(registry.load("batchnorm_fwd"))))
