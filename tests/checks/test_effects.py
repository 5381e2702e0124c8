"""The check `effects`: what a call leaves behind, and right kernels that keep or use what they may."""

import gc
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import ROWS
from norms import layernorm

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.checks import effects as check
from verify_norm.core.ops import OPS
from verify_norm.core.spec import Finding, Kernel
from verify_norm.running.execute import execute
from verify_norm.running.surroundings import STATE, Surroundings

right = layernorm()


def said(run, spec=ROWS, **fields):
    """The messages of `effects` in one case."""
    kernel = Kernel("k", "layernorm_fwd", run=run, **fields)
    result = execute(kernel, make.case(spec, OPS["layernorm_fwd"], kernel.contract))
    assert CHECKS["effects"].looks(result)
    return [f.message for f in CHECKS["effects"].function(result) if isinstance(f, Finding)]


def after(effect):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y = right(x, weight, bias, eps, normalized_shape)
        effect(x, *y)
        return y

    return layernorm_fwd


def elsewhere():
    os.chdir(os.path.dirname(os.getcwd()))


CHANGES = {
    "is_grad_enabled() changes from True to False": lambda x, *y: torch.set_grad_enabled(False),
    "is_autocast_enabled('cpu')": lambda x, *y: torch.set_autocast_enabled("cpu", True),
    "is_anomaly_enabled": lambda x, *y: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "get_default_dtype() changes from torch.float32 to torch.float64": lambda x, *y: torch.set_default_dtype(
        torch.float64
    ),
    "get_default_device": lambda x, *y: torch.set_default_device("meta"),
    "get_num_threads": lambda x, *y: torch.set_num_threads(torch.get_num_threads() + 1),
    "matmul_precision": lambda x, *y: torch.set_float32_matmul_precision("medium"),
    "deterministic_debug_mode() changes from 0 to 1": lambda x, *y: torch.use_deterministic_algorithms(
        True, warn_only=True
    ),
    "get_autocast_dtype('cpu')": lambda x, *y: torch.set_autocast_dtype("cpu", torch.float16),
    "get_autocast_dtype('cuda')": lambda x, *y: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "is_autocast_cache_enabled": lambda x, *y: torch.set_autocast_cache_enabled(False),
    "allow_fp16_reduced": lambda x, *y: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "allow_bf16_reduced": lambda x, *y: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "gc.isenabled": lambda x, *y: gc.disable(),
    "cudnn.enabled": lambda x, *y: setattr(torch.backends.cudnn, "enabled", False),
    "cudnn.benchmark": lambda x, *y: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": lambda x, *y: setattr(torch.backends.cudnn, "deterministic", True),
    "cudnn.allow_tf32": lambda x, *y: setattr(torch.backends.cudnn, "allow_tf32", False),
    "keeping of subnormal numbers": lambda x, *y: torch.set_flush_denormal(True),
    "geterr": lambda x, *y: np.seterr(over="raise"),
    "working folder": lambda x, *y: elsewhere(),
    "x.requires_grad changes from False to True": lambda x, *y: x.requires_grad_(),
    "x.grad changes from None to a tensor": lambda x, *y: setattr(x, "grad", torch.zeros_like(x)),
    "x.shape": lambda x, *y: x.squeeze_().t_(),
    "x.stride()": lambda x, *y: x.as_strided_(x.shape, (1, 1)),
    "x.data_ptr()": lambda x, *y: x.set_(x.clone()),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_a_call_changes_is_reported_and_put_back(words):
    state = {name: read() for name, (read, _) in STATE.items()}
    found = said(after(CHANGES[words]), replace(ROWS, further=()))
    assert len(found) == 1 + (words == "x.shape")  # a transposed x has other strides, too
    assert any(words in message for message in found)
    assert state == {name: read() for name, (read, _) in STATE.items()}


def test_every_state_has_a_kernel_that_changes_it():
    assert (
        len(CHANGES) - len([words for words in CHANGES if words.startswith("x.")]) == len(STATE) - 1
    )  # autocast twice


SEEDS = {"torch": torch.manual_seed, "Python": random.seed, "NumPy": np.random.seed}


@pytest.mark.parametrize("name", SEEDS)
def test_seeding_a_global_generator(name):
    found = said(after(lambda x, *y: SEEDS[name](0)))
    assert len(found) == 1
    assert f"a call seeds {name}'s global random generator" in found[0]


def test_drawing_numbers_passes():
    own = torch.Generator().manual_seed(3)
    assert said(after(lambda x, *y: (torch.rand(3), torch.rand(3, generator=own), random.random()))) == []
    assert said(after(lambda x, *y: (np.random.default_rng(0).random(), np.random.rand(2)))) == []  # noqa: NPY002


def test_a_mode_within_the_call_is_its_own_affair():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        with torch.no_grad(), torch.autocast("cpu", enabled=False), np.errstate(all="raise"), torch.random.fork_rng():
            torch.manual_seed(0)
            return right(x, weight, bias, eps, normalized_shape)

    assert said(layernorm_fwd) == []


def test_an_output_whose_elements_overlap():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y, mean[:1].expand(mean.shape), rstd

    spec = replace(ROWS, data="constant", x_layout="expanded")  # in which all rows are alike
    assert "strides (0,)" in said(layernorm_fwd, spec)[0]
    assert said(layernorm_fwd, replace(spec, shape=(1, 64))) == []
    assert said(layernorm_fwd, spec, autograd=True) == []


@pytest.mark.parametrize("what", ["inputs", "outputs", "copies"])
def test_tensors_kept_from_every_call(what, monkeypatch):
    monkeypatch.setattr(check, "SLOW", 10.0)  # a loaded machine
    kept = []
    keep = {"inputs": lambda x, *y: kept.append(x), "outputs": lambda x, *y: kept.append(y[1])}
    keep["copies"] = lambda x, *y: kept.append(x.double())
    found = said(after(keep[what]))
    assert len(found) == 1
    assert "each of 20 calls leaves a tensor in memory" in found[0]


def test_a_buffer_for_each_shape_and_the_last_few_calls_pass():
    buffers, last = {}, []

    def keep(x, *y):
        buffers.setdefault(x.shape, torch.empty_like(x))
        last.append(x)
        del last[:-4]

    assert said(after(keep)) == []
    scratch = torch.empty(ROWS.shape)
    assert said(after(lambda x, *y: scratch.copy_(x))) == []  # one buffer that all calls use


def test_an_empty_output_of_any_strides_passes():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y.as_strided(y.shape, (0, 0, 1)), mean, rstd

    assert said(layernorm_fwd, replace(ROWS, shape=(2, 0, 3))) == []


def test_a_kernel_that_raises_leaves_the_process_as_it_was():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        torch.set_grad_enabled(False)
        raise ValueError("no")

    kernel = Kernel("k", "layernorm_fwd", run=layernorm_fwd)
    result = execute(kernel, make.case(ROWS, OPS["layernorm_fwd"], kernel.contract))
    assert torch.is_grad_enabled()
    assert result.problem == "ValueError: no"


def test_nothing_changes_without_a_call():
    assert Surroundings({"x": torch.zeros(2), "eps": 1e-5, "weight": None}).changes() == ()
