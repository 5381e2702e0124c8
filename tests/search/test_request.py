"""What a user may ask for, at any door."""

import pytest
import torch

from verify_norm.core.errors import UsageError
from verify_norm.core.settings import DEFAULTS, Seconds
from verify_norm.core.spec import CaseSpec, Contract
from verify_norm.search import corpus, options, request


def test_options_have_the_defaults_of_settings():
    found = request.options().model_dump()
    assert found.pop("device") == "auto"
    assert found == {name: getattr(DEFAULTS, name) for name in found}


def test_names_come_as_a_list_or_as_text():
    assert request.options(dtypes="fp32, bf16").dtypes == request.options(dtypes=["fp32", "bf16"]).dtypes
    assert request.options(checks=("accuracy",)).checks == request.options(checks="accuracy").checks == ("accuracy",)
    assert options.split(" a, b,") == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"examples": -1}, "examples: expected a whole number, 0 or more, got -1"),
        ({"examples": 2.5}, "examples: expected a whole number, 0 or more, got 2.5"),
        ({"workers": 0}, "workers: expected a whole number from 1 to 64, got 0"),
        ({"workers": True}, "workers: expected a whole number from 1 to 64, got True"),
        ({"seconds": 0.01}, "seconds: expected a number, 0.1 or more, got 0.01"),
        ({"timeout": float("nan")}, "timeout: expected a number, 0.1 or more, got nan"),
        ({"dtypes": 3}, 'dtypes: expected a list of dtypes, as ["fp32", "bf16"], got 3'),
        ({"dtypes": "zz"}, "dtypes: unknown dtype 'zz'; there are: float32, float16, bfloat16"),
        ({"dtypes": []}, "dtypes: expected at least one dtype of fp32, f32, bf16, fp16, half, got none"),
        ({"shapes": "large"}, "shapes: expected one of fuzz, models, all, got 'large'"),
        ({"exampels": 3}, "unknown key 'exampels' (did you mean examples?); there are: dtypes, "),
    ],
)
def test_a_wrong_option_is_one_line(given, said):
    with pytest.raises(UsageError) as caught:
        request.options(**given)
    assert str(caught.value).startswith(said)


def test_ranges_are_those_of_settings():
    assert request.least(Seconds) == 0.1
    assert request.options(seconds=0.1).seconds == 0.1


def test_workers_are_spread_over_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [request.device("auto", worker) for worker in (0, 1, 5)] == ["cuda:0", "cuda:1", "cuda:1"]
    assert request.device("cuda", 3) == "cuda:3"
    assert request.device("cuda:2", 3) == "cuda:2"
    assert request.device("cpu", 3) == "cpu"
    with pytest.raises(UsageError, match="no device cuda:4: there are 4"):
        request.device("cuda:4")


def test_directions_share_the_time_and_models_have_no_random_cases():
    asked = request.request("layernorm_bwd", {"device": "cpu", "shapes": "models", "seconds": 8.0})
    assert (asked.settings.seconds, asked.settings.examples) == (8.0, 0)
    assert asked.only() is asked.kernels[0]
    both = request.request(torch.nn.RMSNorm, {"device": "cpu", "seconds": 8.0}, op="rmsnorm")
    assert [kernel.op for kernel in both.kernels] == ["rmsnorm_fwd", "rmsnorm_bwd"]
    assert both.settings.seconds == 4.0
    with pytest.raises(UsageError, match="has two directions: choose --op rmsnorm_fwd or --op rmsnorm_bwd"):
        both.only()


def test_a_contract_and_a_corpus_are_the_kernels_own(tmp_path):
    path, contract = tmp_path / "worst.jsonl", Contract(xhat="x")
    given = {"device": "cpu"}
    first = request.request("layernorm_bwd", given | {"contract": contract})
    with pytest.raises(UsageError, match=r"there is no corpus .*; verify-norm hunt --corpus .* writes one"):
        request.request("layernorm_bwd", given, corpus=str(path))
    assert first.kernels[0].contract == contract
    corpus.save(path, first.only(), [CaseSpec((2, 3))])
    again = request.request("layernorm_bwd", given, corpus=str(path))
    assert list(again.runs()) == [(again.only(), (CaseSpec((2, 3)),))]


def test_what_no_other_process_can_import_runs_here_and_the_first_line_says_so_before_it_runs():
    told, met = [], []

    def fused_rms_norm(x, weight, eps):  # one that ends the process has no line later
        met.append(tuple(told))
        with torch.no_grad():
            return x * 1

    def asked(kernel, **options):
        told.clear()
        request.request(kernel, {"device": "cpu"}, tell=told.append, **options)
        return [line.partition(":")[0] for line in told]

    here = "fused_rms_norm runs in this process"
    forward = "fused_rms_norm is checked forward only, since autograd does not know how its y is made"
    first, second = asked(fused_rms_norm)
    assert (first, second.startswith(forward)) == (here, True)
    assert {len(lines) for lines in met} == {1}
    assert asked(fused_rms_norm, op="rmsnorm_fwd") == [here]
    assert asked(fused_rms_norm, op="rmsnorm_fwd", isolate=False) == []
    assert asked("rmsnorm_fwd") == []


def test_two_kernels_of_one_name_are_told_once():
    told = []

    def rms_norm(x, weight, eps):
        return x * 1

    request.request_pair((rms_norm, rms_norm), {"device": "cpu"}, op="rmsnorm_fwd", tell=told.append)
    assert len(told) == 1
