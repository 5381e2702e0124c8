"""What the policies share: a kernel that raises, cases that it does not take, and how two results differ."""

from dataclasses import replace

import pytest
import torch
from judged import made, not_applicable

from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.validation.policies import POLICIES, eager, trial


def test_a_kernel_that_raises_is_caught_and_one_for_gpus_does_not_apply():
    def raises(x):
        raise IndexError("row 3\nof 2")

    def gpu(x):
        raise RuntimeError("x must be a CUDA tensor")

    verdict = POLICIES["assert_close"].judge(made(raises, "layernorm_fwd"))
    assert verdict.caught is True
    assert verdict.detail.startswith("raised IndexError: row 3, at 1x2x3 float32")
    assert "CPU" in not_applicable(POLICIES["assert_close"].judge(made(gpu, "layernorm_fwd")))


def test_cases_that_the_kernel_does_not_take_are_left_out():
    def none(spec):
        return "one row only" if len(spec.shape) > 1 else None

    kernel = replace(registry.load("layernorm_fwd_torch"), unsupported=none)
    verdict = POLICIES["assert_close"].judge(kernel)
    assert (verdict.caught, verdict.cases) == (False, 3)
    assert "one row only" in verdict.detail
    assert "one row only" in not_applicable(POLICIES["Liger"].judge(kernel))


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (torch.ones(3), "y has shape (3,), expected (2,)"),
        (torch.ones(2).half(), "y is torch.float16, expected torch.float32"),
        (torch.tensor([1.0, torch.inf]), "y has elements that are not finite"),
        (torch.tensor([1.5, 1.0]), "y is up to 0.5 off"),
    ],
)
def test_how_two_results_differ(got, said):
    want = torch.ones(2)
    assert trial.difference("y", got, want) == said
    assert trial.first_apart([("x", want, want), ("y", got, want)], 0.1, 0.0) == said
    assert trial.first_apart([("y", want + 0.05, want)], 0.1, 0.0) is None


def test_a_sample_in_words_and_a_kernel_that_runs_few_rows_is_not_limited_by_that():
    spec = CaseSpec((2, 3), "float16", weight_dtype="float32")
    assert str(trial.Sample(spec, {}, {}, "gemma")) == "2x3 float16 weight float32 gemma"
    kernel = made(None, "rmsnorm_fwd", unsupported=lambda spec: "few rows only")
    assert trial.Subject(kernel).unsupported(spec) == "few rows only"
    assert trial.Subject(kernel, few=True).unsupported(spec) is None


def test_an_output_that_is_missing_fails_the_test():
    with pytest.raises(trial.KernelFailedError, match="dx: expected a tensor, got None"):
        trial.present("dx", None)
    sample = trial.Sample(CaseSpec((2, 3)), {"x": torch.ones(2, 3), "weight": torch.ones(3), "bias": None}, {})
    for returned, said in ((3, "not a tensor"), ({"z": sample.inputs["x"]}, "it returned z")):
        with pytest.raises(trial.KernelFailedError, match=said):
            trial.outcome(made(lambda x, r=returned: r, "rmsnorm_fwd"), sample, eager.rmsnorm, own=True)


def test_the_gradients_are_the_kernels_and_the_outputs_those_of_eager_torch():
    def run(dy, x, weight, mean, rstd):
        assert rstd.tolist() == [0.5, 0.5]  # of rows ±1 with eps = 3, in float32
        return torch.full_like(x, 7.0), torch.full_like(weight, 8.0)

    x = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    inputs = {"x": x, "weight": torch.ones(2), "bias": None}
    sample = trial.Sample(CaseSpec((2, 2), eps=3.0, bias=False), inputs, {"y": torch.ones(2, 2)})
    made_by = trial.outcome(made(run, "layernorm_bwd"), sample, eager.layernorm, own=True)
    assert {name: t.unique().tolist() for name, t in made_by.items()} == {"dx": [7.0], "dweight": [8.0]}
    assert x.grad is None
