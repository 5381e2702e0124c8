"""Liger's policy: the two RMSNorms of Hugging Face by hand, its samples, and its comparison of types and NaN."""

import pytest
import torch
from judged import bent, made

from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import liger
from verify_norm.validation.policies.trial import NotApplicableError, Subject


def test_llama_rounds_before_the_weight_and_gemma_adds_one_and_rounds_last():
    """x̂ of ones with eps = 2 is 1/√3, which bfloat16 rounds."""
    spec = CaseSpec((1, 2), "bfloat16", eps=2.0)
    inputs = {"x": torch.ones(1, 2).bfloat16(), "weight": torch.tensor([3.0, 1.0]).bfloat16()}
    xhat = torch.tensor(3.0).rsqrt()
    assert liger.xhat(spec, inputs).tolist() == [[xhat.item()] * 2]
    llama, gemma = liger.llama(spec, inputs)["y"], liger.gemma(spec, inputs)["y"]
    assert llama[0, 0] == 3 * xhat.bfloat16()
    assert gemma[0].tolist() == [(4 * xhat).bfloat16().item(), (2 * xhat).bfloat16().item()]
    assert llama.dtype == gemma.dtype == torch.bfloat16


def test_its_samples_have_plain_parameters_and_both_forms_of_rmsnorm():
    found = list(liger.samples(Subject(made(None, "rmsnorm_bwd"))))
    assert {(s.variant, s.spec.weight_offset) for s in found} == {("llama", 0.0), ("gemma", 1.0)}
    assert all((s.inputs["weight"] == 1).all() and s.inputs["bias"] is None for s in found)
    few = list(liger.samples(Subject(made(None, "rmsnorm_bwd"), few=True)))
    assert {s.variant for s in few} == {"llama"}
    group = list(liger.samples(Subject(made(None, "groupnorm_fwd"))))
    assert [tuple(s.inputs["weight"].shape) for s in group] == [(c,) for _, c, _, _ in liger.GROUPS]
    with pytest.raises(NotApplicableError, match="it has no test of instancenorm"):
        next(liger.samples(Subject(made(None, "instancenorm_fwd"))))


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (lambda y: y, None),
        (lambda y: y.double(), None),  # its own comparison of RMSNorm converts the types
        (lambda y: y + 1e-3, "y is up to 0.001"),
        (lambda y: y[:1], "y has shape (1, 128, 512)"),
        (lambda y: y * torch.nan, "y has elements that are not finite"),
    ],
)
def test_what_its_comparison_refuses(bend, said):
    sample = next(iter(liger.samples(Subject(made(None, "rmsnorm_fwd")))))
    found = liger.compare(bent("rmsnorm_fwd_torch", lambda out: (bend(out[0]),)), sample)
    assert found is None if said is None else found.startswith(said)
