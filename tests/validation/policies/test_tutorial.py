"""The tutorial's policy: one case, and a tolerance that is absolute alone."""

import pytest
import torch
from judged import made

from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import tutorial
from verify_norm.validation.policies.trial import NotApplicableError, Sample, Subject

NARROW = Sample(
    CaseSpec((2, 4), "float16"),
    {"x": torch.arange(8.0).reshape(2, 4).half(), "weight": torch.ones(4).half(), "bias": torch.zeros(4).half()},
    {"y": torch.ones(2, 4).half()},
)


def test_its_one_case():
    (sample,) = tutorial.samples(Subject(made(None, "add_rmsnorm_bwd")))
    assert sample.spec == CaseSpec((1151, 8192), "float16", bias=False)
    assert set(sample.cotangents) == {"y", "residual_out"}
    for name in ("x", "residual"):
        assert abs(sample.inputs[name].float().mean() + 2.3) < 0.01
    with pytest.raises(NotApplicableError, match="1151x8192, is of rows, and instancenorm has none"):
        next(tutorial.samples(Subject(made(None, "instancenorm_fwd"))))


@pytest.mark.parametrize(("off", "said"), [(0.0, None), (0.009, None), (0.02, "y is up to 0.02")])
def test_errors_below_a_hundredth_pass_whatever_the_value(off, said):
    def run(x, weight, bias, eps, normalized_shape):
        y = torch.nn.functional.layer_norm(x.float(), normalized_shape, weight.float(), bias.float(), eps)
        return (y + off).half()

    found = tutorial.compare(made(run, "layernorm_fwd"), NARROW)
    assert found is None if said is None else found.startswith(said)


def test_the_kernel_shares_x_with_the_reference_and_runs_first():
    """So a kernel that changes x and normalizes that is compared with the norm of the changed x."""

    def run(x, weight, bias, eps, normalized_shape):
        return torch.nn.functional.layer_norm(x.square_().float(), normalized_shape, eps=eps).half()

    inputs = {name: t.clone() for name, t in NARROW.inputs.items()}
    assert tutorial.compare(made(run, "layernorm_fwd"), Sample(NARROW.spec, inputs, NARROW.cotangents)) is None
    assert torch.equal(inputs["x"], NARROW.inputs["x"].square())
