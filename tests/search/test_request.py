"""What a user may ask for, at any interface."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UnknownOpError, UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import DEFAULTS, Seconds, Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import entry_points, nested, registry
from verify_norm.running.interpreter import patch
from verify_norm.running.isolate import NO_TARGET
from verify_norm.running.untrusted import loading as untrusted
from verify_norm.search import corpus, directions, options, request


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
        ({"dtypes": 3}, 'dtypes: expected a list of dtypes, such as ["fp32", "bf16"], got 3'),
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
    with pytest.raises(UsageError, match="has two directions: choose one as its op, rmsnorm_fwd or rmsnorm_bwd"):
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"op": 3}, ("op:", "3")),
        ({"bind": 4}, ("bind:", "4")),
        ({"corpus": 5}, ("corpus:", "5")),
        ({"isolate": "maybe"}, ("isolate:", "maybe")),
        ({"given": {"device": "tpu"}}, ("tpu", "cpu, cuda, cuda:N")),
        ({"given": {"untrusted": True, "device": "cpu"}, "isolate": False}, ("untrusted", "in-process")),
        ({"given": {"device": "cpu", "dtypes": "fp16", "only": "dtype=fp32+bf16"}}, ("float32, bfloat16", "float16")),
        ({"given": {"device": "cpu", "dtypes": "fp16,bf16", "only": "dtype=fp32"}}, ("float16, bfloat16",)),
    ],
)
def test_what_a_run_cannot_be_is_told_with_its_name_and_value(given, said):
    with pytest.raises(UsageError) as caught:
        request.request("rmsnorm_fwd", **{"given": {}} | given)
    assert all(words in str(caught.value) for words in said)


FORWARD, BACKWARD = (Kernel("k", f"rmsnorm_{way}", target="a:k", run=print) for way in ("fwd", "bwd"))


class Loading:
    """Stands for what loads kernels: what it was asked, and the kernels that it has."""

    def __init__(self, monkeypatch):
        self.asked, self.kernels, self.forward_only, self.notes = {}, [FORWARD], "", ()
        self.stand(monkeypatch, registry, "load_directions", lambda: self.kernels)
        self.stand(monkeypatch, untrusted, "load_untrusted", lambda: self.kernels)
        self.stand(monkeypatch, directions, "forward_only", lambda: self.forward_only)
        self.stand(monkeypatch, entry_points, "shadowed", lambda: self.notes)
        self.stand(monkeypatch, nested, "refuse", lambda: None)
        monkeypatch.setattr(patch, "enable", bool)

    def stand(self, monkeypatch, module, name, returned):
        monkeypatch.setattr(module, name, lambda *given: self.asked.update({name: given}) or returned())


@pytest.fixture
def loading(monkeypatch):
    return Loading(monkeypatch)


def test_a_kernel_is_loaded_as_it_is_asked_for(loading):
    given = {"device": "cpu", "contract": "xhat=x", "only": "ndim=2"}
    asked = request.request("a:k", given, op="rmsnorm_fwd", bind="x=y")
    assert loading.asked["load_directions"] == ("a:k", "rmsnorm_fwd", "x=y", "xhat=x", "ndim=2")
    assert "load_untrusted" not in loading.asked
    assert asked.kernels == (FORWARD,)
    request.request("a:k", given | {"untrusted": True}, op="rmsnorm_fwd", bind="x=y")
    assert loading.asked["load_untrusted"] == ("a:k", "rmsnorm_fwd", "x=y", "xhat=x", "ndim=2", "cpu")


def test_a_kernel_that_runs_elsewhere_may_be_one_whose_module_is_being_imported(loading):
    request.request("a:k", {"device": "cpu"})
    assert loading.asked["refuse"] == ("a:k",)
    request.request("a:k", {"device": "cpu"}, isolate=False)
    assert loading.asked["refuse"] == (None,)


def test_a_name_that_a_package_has_too_is_noted(loading):
    told, loading.notes = [], ("one", "two")
    request.request("rmsnorm_fwd", {"device": "cpu"}, tell=told.append)
    assert (told, loading.asked["shadowed"]) == (["one", "two"], ("rmsnorm_fwd",))
    told.clear()
    request.request(print, {"device": "cpu"}, tell=told.append)
    assert told == []


def test_the_seed_of_an_untrusted_run_is_secret_unless_it_is_given(loading, monkeypatch):
    drawn = []
    monkeypatch.setattr(request.secrets, "randbits", lambda bits: drawn.append(bits) or 2**62 + 5)

    def seed(**given):
        return request.request("a:k", {"device": "cpu"} | given).settings.seed

    assert (seed(untrusted=True), drawn) == (2**62 + 5, [63])
    assert (seed(untrusted=True, seed=4), seed(seed=4), drawn) == (4, 4, [63])
    assert (seed(), drawn) == (DEFAULTS.seed, [63])


@pytest.mark.parametrize(("shapes", "examples"), [("models", 0), ("fuzz", 7), ("all", 7)])
def test_random_cases_are_those_that_are_asked_for_but_of_models_alone(loading, shapes, examples):
    asked = request.request("a:k", {"device": "cpu", "examples": 7, "shapes": shapes})
    assert asked.settings.examples == examples


def test_each_direction_has_its_share_of_the_time_but_some_time_at_least(loading):
    loading.kernels = [FORWARD, BACKWARD]
    times = [request.request("a:k", {"device": "cpu", "seconds": each}).settings.seconds for each in (9.0, 0.1)]
    assert times == [4.5, 0.1]


def test_a_backward_that_does_not_exist_is_asked_for_as_the_run_will_be(loading):
    told, loading.kernels, loading.forward_only = [], [FORWARD, BACKWARD], "no such gradient"
    for isolate, untrusted_ in ((True, False), (False, False), (True, True)):
        given = {"device": "cpu", "untrusted": untrusted_}
        asked = request.request("a:k", given, isolate=isolate, tell=told.append)
        assert asked.kernels == (FORWARD,)
        alone = Settings(device="cpu", isolate=isolate, untrusted=untrusted_)
        assert loading.asked["forward_only"] == (BACKWARD, alone)
    assert all("no such gradient" in line and "--op rmsnorm " in line for line in told)
    loading.asked.clear()
    assert request.request("a:k", {"device": "cpu"}, op="rmsnorm").kernels == (FORWARD, BACKWARD)
    assert "forward_only" not in loading.asked


@pytest.mark.parametrize(
    ("workers", "target", "isolate", "alone"),
    [
        (2, "", True, True),
        (2, "a:k", False, True),
        (2, "a:k", True, False),
        (1, "", True, False),
        (None, "", True, False),
    ],
)
def test_workers_need_a_process_for_the_kernel(loading, workers, target, isolate, alone):
    told, loading.kernels = [], [FORWARD, replace(BACKWARD, target=target)]
    request.request("a:k", {"device": "cpu", "workers": workers}, op="rmsnorm", isolate=isolate, tell=told.append)
    lines = [line for line in told if str(workers) in line]
    assert len(lines) == alone
    assert all(line.startswith("k runs in this process") for line in told)


def test_why_no_other_process_can_import_a_kernel_is_told_with_what_accepts_that(loading):
    told, loading.kernels = [], [replace(FORWARD, target="")]
    request.request("a:k", {"device": "cpu"}, tell=told.append)
    (line,) = told
    assert NO_TARGET in line
    assert "isolate=False" in line


def test_a_kernel_of_some_types_runs_in_those_that_are_asked_for_too(loading):
    loading.kernels = [FORWARD, replace(BACKWARD, dtypes=("float16",))]
    given = {"device": "cpu", "dtypes": "fp16,bf16"}
    assert len(request.request("a:k", given, op="rmsnorm").kernels) == 2
    with pytest.raises(UsageError, match="k takes float16, and the run asks for float32"):
        request.request("a:k", given | {"dtypes": "fp32"}, op="rmsnorm")


def test_triton_interprets_on_a_cpu_alone(loading, monkeypatch):
    interpreted = []
    monkeypatch.setattr(patch, "enable", lambda: interpreted.append(1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert request.request("a:k", {"device": "cuda"}).settings.device == "cuda:0"
    assert request.request("a:k", {"device": "cuda"}, worker=3).settings.device == "cuda:1"
    assert interpreted == []
    assert request.request("a:k", {"device": "cpu"}).settings.device == "cpu"
    assert interpreted == [1]
    request.interpret()
    assert interpreted == [1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    request.interpret()
    assert interpreted == [1, 1]


def test_where_triton_is_imported_already_a_function_can_be_interpreted_in_its_own_process_alone(loading, monkeypatch):
    def late():
        raise RuntimeError("Triton was imported before")

    monkeypatch.setattr(patch, "enable", late)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UsageError, match="Triton was imported before"):
        request.request("a:k", {"device": "cpu"})
    assert request.request(print, {"device": "cpu"}).kernels == (FORWARD,)
    assert os.environ["TRITON_INTERPRET"] == "1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="Triton was imported before"):
        request.request(print, {"device": "cpu"})


@pytest.mark.parametrize(("available", "count", "gpus"), [(True, 2, 2), (False, 2, 0), (True, 0, 0)])
def test_devices_are_those_that_are_there(available, count, gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert request.gpus() == gpus
    assert request.device("auto") == ("cuda:0" if gpus else "cpu")
    assert request.device("cpu") == "cpu"
    for name in ("cuda", "cuda:0", "cuda:1"):
        if gpus:
            assert request.device(name) == ("cuda:1" if name == "cuda:1" else "cuda:0")
        else:
            with pytest.raises(UsageError, match=f"no device {name}: torch sees no CUDA device"):
                request.device(name)
    with pytest.raises(UsageError, match="no device cuda:2:"):
        request.device("cuda:2")


def test_the_only_gpu_is_the_first(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [request.device(name) for name in ("auto", "cuda", "cuda:0")] == ["cuda:0"] * 3


UNKNOWN = {"nameless", "another"}


@pytest.mark.parametrize(
    ("kernels", "op", "asked"),
    [
        (("first", "second"), "rmsnorm_fwd", [("first", "rmsnorm_fwd"), ("second", "rmsnorm_fwd")]),
        (("first", "second"), None, [("first", None), ("second", None)]),
        (("nameless", "second"), None, [("nameless", None), ("second", None), ("nameless", "rmsnorm_bwd")]),
        (("first", "nameless"), None, [("first", None), ("nameless", None), ("nameless", "rmsnorm_bwd")]),
        (("nameless", "another"), None, [("nameless", None), ("another", None)]),
    ],
)
def test_of_two_kernels_one_that_names_no_operator_has_the_others(kernels, op, asked, monkeypatch):
    tried, told, given = [], [], {"device": "cpu"}

    def load(kernel, options, *, op, bind, isolate, tell):
        tried.append((kernel, op))
        assert (options, isolate, bind) == (given, False, {kernels[0]: "x=a", kernels[1]: "x=b"}[kernel])
        tell("a line")
        if op is None and kernel in UNKNOWN:
            raise UnknownOpError("no operator")
        return SimpleNamespace(kernel=kernel, only=lambda: BACKWARD)

    monkeypatch.setattr(request, "request", load)
    options = {"op": op, "binds": ("x=a", "x=b"), "isolate": False, "tell": told.append}
    if {*kernels} <= UNKNOWN:
        with pytest.raises(UnknownOpError):
            request.request_pair(kernels, given, **options)
    else:
        first, second = request.request_pair(kernels, given, **options)
        assert (first.kernel, second.kernel) == kernels
    assert tried == asked
    assert told == ["a line"]
