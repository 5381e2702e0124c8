"""The check `effects`: what a call leaves behind, and right kernels that keep or use what they may."""

import builtins
import ctypes
import decimal
import functools
import gc
import importlib
import logging
import os
import platform
import random
import signal
import sys
import threading
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from checking import ROWS, run_of
from norms import Checkpointed, layernorm
from torch._library import custom_ops
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from verify_norm.cases import make
from verify_norm.checks import CHECKS, effects
from verify_norm.checks.relations import leaks, operators
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, Note, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load, load_directions
from verify_norm.running import captures, state_access
from verify_norm.running.execute import execute
from verify_norm.running.state import STATE
from verify_norm.running.surroundings import Surroundings

right = layernorm()
LOOSE = Contract(expanded=True, summation="sequential")  # torch's own


STILL = replace(ROWS, effect=ways.COUNTED)  # a case that looks for no growth, which takes most of the time


def said(run, spec=ROWS, **fields):
    """The messages of `effects` in one case."""
    kernel = run if isinstance(run, Kernel) else Kernel("k", "layernorm_fwd", run=run, **fields)
    result = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    assert CHECKS["effects"].looks(result)
    found = [f for f in CHECKS["effects"].function(result) if isinstance(f, Finding)]
    assert all((f.check, f.spec) == ("effects", spec) for f in found)
    assert all(f.output == (f.message.split()[0] if "elements overlap" in f.message else None) for f in found)
    return [f.message for f in found]


def after(effect):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y = right(x, weight, bias, eps, normalized_shape)
        effect(x, *y)
        return y

    return layernorm_fwd


def elsewhere():
    os.chdir(os.path.dirname(os.getcwd()))


DOWNWARD = 0x400 if platform.machine() == "x86_64" else 0x800000  # of fenv.h
UNSET = "torch._C._get_cpu_allow_fp16_reduced_precision_reduction()"
guards = []


class Finder:
    """It finds nothing."""

    find_spec = staticmethod(lambda *_: None)


class Liar(torch.Tensor):
    """It says what it likes of itself."""

    shape = property(lambda self: (3,))


def flip(read, put):
    put(not read())


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
    "are_deterministic_algorithms_enabled() changes from False": lambda x, *y: torch.use_deterministic_algorithms(True),
    "get_autocast_dtype('cpu')": lambda x, *y: torch.set_autocast_dtype("cpu", torch.float16),
    "get_autocast_dtype('cuda')": lambda x, *y: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "is_autocast_cache_enabled": lambda x, *y: torch.set_autocast_cache_enabled(False),
    "gc.isenabled": lambda x, *y: gc.disable(),
    "cudnn.enabled": lambda x, *y: setattr(torch.backends.cudnn, "enabled", False),
    "cudnn.benchmark": lambda x, *y: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": lambda x, *y: setattr(torch.backends.cudnn, "deterministic", True),
    "cudnn.allow_tf32": lambda x, *y: setattr(torch.backends.cudnn, "allow_tf32", False),
    "keeping of subnormal numbers": lambda x, *y: torch.set_flush_denormal(True),
    "deterministic_algorithms_warn_only": lambda x, *y: torch.use_deterministic_algorithms(False, warn_only=True),
    "fill_uninitialized_memory": lambda x, *y: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "is_warn_always_enabled": lambda x, *y: torch.set_warn_always(True),
    "matmul.allow_fp16": lambda x, *y: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "matmul.allow_bf16": lambda x, *y: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "mkldnn": lambda x, *y: torch.backends.mkldnn.set_flags(False),
    "numpy.get_printoptions() changes from {'precision': 8} to {'precision': 3}": lambda x, *y: np.set_printoptions(3),
    "torch's print options changes from {'precision': 4}": lambda x, *y: torch.set_printoptions(precision=3),
    "gc.get_threshold": lambda x, *y: gc.set_threshold(9999),
    "recursionlimit": lambda x, *y: sys.setrecursionlimit(4321),
    "root logger": lambda x, *y: logging.getLogger().setLevel(7),
    "logging.disable": lambda x, *y: logging.disable(3),
    "os.environ changes from {'VERIFY_NORM_TEST': None}": lambda x, *y: os.environ.update(VERIFY_NORM_TEST="1"),
    "warnings.filters has": lambda x, *y: warnings.simplefilter("error", DeprecationWarning),
    "torch's function modes changes from 0 to 1": lambda x, *y: TorchFunctionMode().__enter__(),
    "torch's dispatch modes changes from": lambda x, *y: TorchDispatchMode().__enter__(),
    "handlers of signals": lambda x, *y: signal.signal(signal.SIGUSR1, print),
    "sys.gettrace() changes from None": lambda x, *y: sys.settrace(lambda *_: None),
    "sys.getprofile() changes from None": lambda x, *y: sys.setprofile(lambda *_: None),
    "gc.callbacks has": lambda x, *y: gc.callbacks.append(lambda *_: None),
    "sys.stdout changes": lambda x, *y: setattr(sys, "stdout", sys.__stderr__),
    "sys.stderr changes": lambda x, *y: setattr(sys, "stderr", sys.__stdout__),
    "sys.stdin changes": lambda x, *y: setattr(sys, "stdin", None),
    "sys.excepthook changes": lambda x, *y: setattr(sys, "excepthook", print),
    "sys.unraisablehook changes": lambda x, *y: setattr(sys, "unraisablehook", print),
    "sys.displayhook changes": lambda x, *y: setattr(sys, "displayhook", print),
    "threading.excepthook changes": lambda x, *y: setattr(threading, "excepthook", print),
    "builtins.__import__ changes": lambda x, *y: setattr(builtins, "__import__", importlib.__import__),
    "threading.gettrace() changes": lambda x, *y: threading.settrace(print),
    "threading.getprofile() changes": lambda x, *y: threading.setprofile(print),
    "sys.getswitchinterval() changes": lambda x, *y: sys.setswitchinterval(0.5),
    "sys.argv has": lambda x, *y: sys.argv.append("--fast"),
    "sys.path has": lambda x, *y: sys.path.append("/nowhere"),
    "sys.meta_path has": lambda x, *y: sys.meta_path.append(Finder()),
    "decimal.getcontext() changes from {'prec': 28} to {'prec': 5}": lambda x, *y: setattr(
        decimal.getcontext(), "prec", 5
    ),
    "os.sched_getaffinity(0)": lambda x, *y: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1]),
    "the timers of signals changes from () to ('ITIMER_PROF',)": lambda x, *y: signal.setitimer(
        signal.ITIMER_PROF, 100.0
    ),
    "rounding to nearest changes from True to False": lambda x, *y: ctypes.CDLL(None).fesetround(DOWNWARD),
    "is_inference_mode_enabled() changes": lambda x, *y: guards.append(torch._C._InferenceMode(True)),
    "torch.func's levels changes from 0 to 1": lambda x, *y: torch._C._functorch._grad_increment_nesting(),
    "forward_ad changes from -1 to 0": lambda x, *y: forward_ad.enter_dual_level(),
    "hooks of saved tensors changes": lambda x, *y: saved_tensors_hooks(torch.neg, torch.neg).__enter__(),
    "is_multithreading_enabled() changes": lambda x, *y: torch._C._set_multithreading_enabled(False),
    "hooks of torch.nn.Module changes": lambda x, *y: register_module_forward_hook(print),
    **{name: lambda x, *y, name=name: flip(*STATE[name]) for name in STATE if name.startswith("torch._C._get_")},
    "geterr": lambda x, *y: np.seterr(over="raise"),
    "working folder": lambda x, *y: elsewhere(),
    "x.__class__ changes from Tensor to Liar": lambda x, *y: setattr(x, "__class__", Liar),
    "x gets detach of its own": lambda x, *y: setattr(x, "detach", print),
    "x.requires_grad changes from False to True": lambda x, *y: x.requires_grad_(),
    "x.grad changes from None to a tensor": lambda x, *y: setattr(x, "grad", torch.zeros_like(x)),
    "x.shape": lambda x, *y: x.squeeze_().t_(),
    "x.stride()": lambda x, *y: x.as_strided_(x.shape, (1, 1)),
    "x.data_ptr()": lambda x, *y: x.set_(x.clone()),
    "x is written to: torch's count of its versions": lambda x, *y: x.neg_().neg_(),
    "x._backward_hooks": lambda x, *y: x.requires_grad_().register_hook(print) and x.requires_grad_(False),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_a_call_changes_is_reported_and_put_back(words):
    if words == UNSET and platform.machine() == "x86_64":
        pytest.skip("this processor has none")
    state = {name: read() for name, (read, _) in STATE.items()}
    found = said(after(CHANGES[words]), replace(ROWS, further=()))
    assert len(found) == 1 + (words == "x.shape")  # a transposed x has other strides, too
    assert any(words in message for message in found)
    assert state == {name: read() for name, (read, _) in STATE.items()}
    assert not _get_current_function_mode_stack()  # a default device that is set would be a mode


def test_every_state_has_a_kernel_that_changes_it():
    of_process = [words for words in CHANGES if not words.startswith("x")]
    assert len(of_process) == len(STATE) - 1  # autocast twice


def test_the_hooks_of_saved_tensors_are_left_out_where_torch_does_not_tell_them(monkeypatch):
    assert set(state_access.saved_tensor_hooks()) <= set(STATE)
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")  # torch 2.6 has none
    assert state_access.saved_tensor_hooks() == {}


def test_what_a_first_import_changes_passes():
    imported = []

    def once(x, *y):
        if not imported:
            imported.append(warnings.simplefilter("error", DeprecationWarning))
            os.environ["VERIFY_NORM_TEST"] = "1"

    assert said(after(once)) == []
    assert "VERIFY_NORM_TEST" not in os.environ


def test_the_filter_that_ignores_all_warnings_is_not_the_one_that_is_there_during_a_call():
    assert any("warnings.filters" in message for message in said(after(lambda *_: warnings.filterwarnings("ignore"))))


def test_what_memory_reports_is_not_reported_twice():
    assert said(after(lambda x, *y: x.add_(1)), replace(ROWS, further=())) == []
    assert said(after(lambda x, *y: x.add_(1)), replace(ROWS, further=()), contract=Contract(inplace=("y:x",))) == []


SEEDS = {"torch": torch.manual_seed, "Python": random.seed, "NumPy": np.random.seed}


@pytest.mark.parametrize("name", SEEDS)
def test_seeding_a_global_generator(name):
    found = said(after(lambda x, *y: SEEDS[name](0)), STILL)
    assert len(found) == 1
    assert f"a call seeds {name}'s global random generator" in found[0]


def test_drawing_numbers_passes():
    own = torch.Generator().manual_seed(3)
    assert said(after(lambda x, *y: (torch.rand(3), torch.rand(3, generator=own), random.random())), STILL) == []
    assert said(after(lambda x, *y: (np.random.default_rng(0).random(), np.random.rand(2))), STILL) == []  # noqa: NPY002


def test_a_mode_within_the_call_is_its_own_affair():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        with torch.no_grad(), torch.autocast("cpu", enabled=False), np.errstate(all="raise"), torch.random.fork_rng():
            torch.manual_seed(0)
            return right(x, weight, bias, eps, normalized_shape)

    assert said(layernorm_fwd, STILL) == []


def test_an_output_whose_elements_overlap():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y, mean[:1].expand(mean.shape), rstd

    spec = replace(STILL, data="constant", x_layout="expanded")  # in which all rows are alike
    assert "strides (0,)" in said(layernorm_fwd, spec)[0]
    assert said(layernorm_fwd, replace(spec, shape=(1, 64))) == []
    assert said(layernorm_fwd, spec, autograd=True) == []


def test_an_output_without_elements_has_none_that_overlap():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y[..., :1].expand(y.shape) if y.numel() == 0 else y, mean, rstd

    assert said(layernorm_fwd, replace(ROWS, shape=(0, 64))) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["inputs", "outputs", "copies"])
def test_tensors_kept_from_every_call(what, monkeypatch):
    monkeypatch.setattr(leaks, "SLOW", 10.0)  # a loaded machine
    kept = []
    keep = {"inputs": lambda x, *y: kept.append(x), "outputs": lambda x, *y: kept.append(y[1])}
    keep["copies"] = lambda x, *y: kept.append(x.double())
    found = said(after(keep[what]), replace(ROWS, effect=ways.COUNTED))
    assert len(found) == 1
    assert "calls leaves a tensor in memory" in found[0]


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


def test_a_cache_of_bounded_size_passes(monkeypatch):
    monkeypatch.setattr(leaks, "SLOW", 10.0)
    number, tensors, plans = iter(range(10**6)), {}, {}

    def keep(x, *y):
        for kept, value in ((tensors, x), (plans, 1)):
            kept[next(number)] = value
            if len(kept) > 64:
                kept.pop(next(iter(kept)))

    assert said(after(keep), replace(ROWS, effect=ways.GROWTH)) == []


@functools.cache
def planned(number):
    return number


class Module(torch.nn.LayerNorm):
    def __init__(self, normalized_shape, eps=1e-5):
        super().__init__(normalized_shape, eps)
        self.log = []

    def forward(self, x):
        self.log.append(1)
        return right(x, self.weight, self.bias, self.eps, self.normalized_shape)[0]


def growing(what):
    """A kernel that adds to something in each call; none of it is a tensor."""
    files, number, enclosed = [], iter(range(10**6)), {}
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, stop = ctypes.c_void_p, threading.Event()
    add = {
        "LOG": lambda: LOG.append(1.0),
        "enclosed": lambda: enclosed.update({next(number): "plan"}),
        "the cache of planned": lambda: planned(next(number)),
        "threads": lambda: threading.Thread(target=stop.wait, daemon=True).start(),
        "open files": lambda: files.append(os.open(os.devnull, os.O_RDONLY)),
        "malloc": lambda: ctypes.memset(malloc(4096), 1, 4096),
    }[what]
    return after(lambda x, *y: add()), stop, files


LOG = []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["LOG", "enclosed", "the cache of planned", "threads", "open files", "malloc"])
def test_what_grows_with_each_call(what, monkeypatch):
    monkeypatch.setattr(leaks, "SLOW", 10.0)
    monkeypatch.setattr(leaks, "ROUNDS", (5, 5, 10))
    run, stop, files = growing(what)
    found = said(run, replace(ROWS, effect=ways.GROWTH))
    stop.set()
    for file in files:
        os.close(file)
    LOG.clear()
    assert any(what in message for message in found)
    assert all("calls adds to" in message for message in found)


@pytest.mark.parametrize(("each", "found"), [(1023, []), (1024, ["each of 20 calls adds to the memory that malloc"])])
def test_memory_from_malloc_counts_from_a_kilobyte_for_a_call_on(each, found, monkeypatch):
    made = []
    monkeypatch.setattr(leaks, "ROUNDS", (5, 5, 10))
    monkeypatch.setattr(leaks, "_slow", lambda run: False)
    monkeypatch.setattr(leaks, "_repeated", lambda call, count: made.extend([None] * count) or [None] * count)
    monkeypatch.setattr(leaks.growth, "native", lambda: each * len(made))
    assert [words[:46] for words in leaks.grown(run_of(right, ROWS))] == [words[:46] for words in found]


def test_what_grows_in_a_module(monkeypatch):
    monkeypatch.setattr(leaks, "SLOW", 10.0)
    (kernel,) = load_directions(Module, "layernorm_fwd")
    assert "adds to log" in said(kernel, replace(ROWS, effect=ways.GROWTH))[0]
    (kernel,) = load_directions(torch.nn.LayerNorm, "layernorm_fwd")
    assert said(kernel, replace(ROWS, effect=ways.GROWTH)) == []


class Changed(torch.nn.RMSNorm):
    """A module that a call changes; `change` is given the module."""

    change: ClassVar[Any] = staticmethod(lambda module: None)

    def forward(self, x):
        y = super().forward(x)
        self.change(self)
        return y


def of_modules(cls, op="rmsnorm_fwd", spec=ROWS):
    """The messages and the notes of `effects` about a module class."""
    (kernel,) = load_directions(cls, op, contract=LOOSE)
    spec = kernel.fit(spec)
    result = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    assert result.problem is None
    items = list(effects._of_modules(result))
    return [getattr(item, "message", None) or item.words for item in items]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda module: module.register_buffer("ones", torch.ones(2)),
            "names of state_dict from ['weight'] to ['ones', 'weight']",
        ),
        (lambda module: module.eval(), "training from True to False"),
        (
            lambda module: module.training or module.weight.requires_grad_(False),
            "weight.requires_grad from True to False",
        ),
        (lambda module: setattr(module.weight, "data", module.weight.data.double()), "weight.dtype from torch.float32"),
    ],
)
def test_what_a_call_changes_of_a_module(change, words):
    (message,) = of_modules(type("Changing", (Changed,), {"change": staticmethod(change)}))
    assert f"a call changes the module's {words}" in message


def test_a_module_may_keep_a_buffer_that_no_state_dict_has():
    def cache(module):
        module.register_buffer("ones", torch.ones(2), persistent=False)

    assert of_modules(type("Caching", (Changed,), {"change": staticmethod(cache)})) == []


class Shared(torch.nn.RMSNorm):
    """All modules of one length have one weight."""

    ones: ClassVar[dict[int, Any]] = {}

    def __init__(self, normalized_shape, eps=1e-5):
        super().__init__(normalized_shape, eps)
        self.weight = self.ones.setdefault(self.normalized_shape, self.weight)


class Untrained(torch.nn.RMSNorm):
    def __init__(self, normalized_shape, eps=1e-5):
        super().__init__(normalized_shape, eps)
        self.weight.requires_grad_(False)


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "rmsnorm_bwd"])
@pytest.mark.parametrize("detached", [False, True])
def test_a_module_can_be_copied_after_a_call_in_training(op, detached):
    class Keeping(torch.nn.RMSNorm):
        def forward(self, x):
            y = super().forward(x)
            self.last = y.detach() if detached else y
            return y

    found = of_modules(Keeping, op)
    assert [("copy.deepcopy of the module fails" in message) for message in found] == [True] * (not detached)


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "rmsnorm_bwd"])
def test_a_module_that_nothing_copies_is_told(op):
    class Locked(torch.nn.RMSNorm):
        def __init__(self, normalized_shape, eps):
            super().__init__(normalized_shape, eps)
            self.lock = threading.Lock()

    (found,) = of_modules(Locked, op)
    assert found.startswith("copy.deepcopy of the module fails, which averaged weights need: TypeError")


def test_a_module_that_reads_its_weight_again_in_the_backward_can_be_copied_after_it():
    assert of_modules(Checkpointed, "rmsnorm_bwd") == []


def test_a_module_whose_call_runs_no_hooks_is_told():
    class Direct(torch.nn.RMSNorm):
        __call__ = torch.nn.RMSNorm.forward

    for op in ("rmsnorm_fwd", "rmsnorm_bwd"):
        (found,) = of_modules(Direct, op)
        assert found.startswith("a call of the module runs no hooks")


class Zero(torch.nn.RMSNorm):
    def reset_parameters(self):
        torch.nn.init.zeros_(self.weight)


def unsaved_statistics(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True):
    torch.nn.BatchNorm2d.__init__(self, num_features, eps, momentum, affine, track_running_stats)
    self._non_persistent_buffers_set |= {"running_mean", "running_var"} if track_running_stats else set()


def test_what_new_modules_are():
    assert of_modules(Shared) == ["two new modules share one weight: each needs its own"]
    assert of_modules(Untrained) == ["a new module's weight requires no gradient, so it is not trained"]
    assert of_modules(torch.nn.RMSNorm) == []
    unsaved = type("Unsaved", (torch.nn.BatchNorm2d,), {"__init__": unsaved_statistics})
    (message,) = of_modules(unsaved, "batchnorm_fwd", replace(ROWS, shape=(2, 3, 4, 5)))
    assert "state_dict lacks running_mean and running_var" in message
    assert of_modules(Zero) == ["a new module's weight starts at 0, not at 1"]
    assert of_modules(torch.nn.BatchNorm2d, "batchnorm_fwd", replace(ROWS, shape=(2, 3, 4, 5))) == []


@torch.inference_mode()
def inferring(x, weight, bias, eps, normalized_shape):
    return right(x, weight, bias, eps, normalized_shape)[0]


def recording(x, weight, bias, eps, normalized_shape):
    return right(x, torch.nn.Parameter(weight.clone()), bias, eps, normalized_shape)[0]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (inferring, ["y is an inference tensor"]),
        (recording, ["y requires a gradient, although no input does"]),
        (right, []),
    ],
)
def test_a_note_of_outputs_that_torch_treats_otherwise(function, words):
    result = run_of(function, ROWS)
    notes = [item.words for item in CHECKS["effects"].function(result) if isinstance(item, Note)]
    assert [note[: len(start)] for note, start in zip(notes, words, strict=True)] == words


def operator(name, run, fake=torch.empty_like, mutates=()):
    """A custom operator of one tensor."""
    made = torch.library.custom_op(f"verify_norm_effects::{name}", mutates_args=mutates)(run)
    if fake is not None:
        made.register_fake(fake)
    return made


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def written(x: torch.Tensor) -> torch.Tensor:
    x.zero_()
    return x.clone()


def lined_up(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().clone()


def raising(x):
    return x.new_empty(x.shape[::-1]) if x.dim() > 2 else x.none()


WRONG = {
    "a shape": (doubled, lambda x: x.new_empty(x.shape[1:])),
    "a type": (doubled, lambda x: torch.empty_like(x, dtype=torch.float64)),
    "strides": (lined_up, torch.empty_like),
    "an error": (doubled, raising),
    "a write": (written, torch.empty_like),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_an_operator_with_a_wrong_fake_implementation_or_schema(what):
    function, fake = WRONG[what]
    made = operator(f"wrong_{list(WRONG).index(what)}", function, fake)
    spec = replace(ROWS, effect=ways.OPERATORS, x_layout="transposed")
    compiled = after(lambda x, *y: _where_compiled(made, x))
    for run in (after(lambda x, *y: made(x.t().clone().t())), *[compiled] * (what != "an error")):  # it is not traced
        found = said(run, spec)
        assert found
        assert "torch.library.opcheck of verify_norm_effects.wrong" in found[0]


def _where_compiled(made, x):
    if torch.compiler.is_compiling():
        made(x.t().clone().t())


@pytest.mark.slow
def test_right_operators():
    copied = operator("copied", lined_up, lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))
    unknown = operator("unknown", doubled, None)
    for layout, special in (("expanded", None), ("every_other", "nan"), ("transposed", None)):
        spec = replace(ROWS, effect=ways.OPERATORS, x_layout=layout, special=special)
        assert said(after(lambda x, *y: (copied(x), unknown(x))), spec) == []
    none = after(lambda x, *y: copied(torch.zeros(5, 20, 4)[:0, 3:11].transpose(1, 2)))  # opcheck itself fails at it
    assert said(none, replace(ROWS, effect=ways.OPERATORS)) == []
    assert said(load("layernorm_bwd"), replace(ROWS, effect=ways.OPERATORS)) == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: unknown")])
def test_a_gpu_that_others_disturb_is_no_fault_of_an_operator(monkeypatch, error):
    made = operator(f"disturbed_{type(error).__name__}", doubled, torch.empty_like)
    monkeypatch.setattr(torch.library, "opcheck", lambda *args, **kwargs: {"test_schema": error})
    with pytest.raises(RuntimeError, match="CUDA"):  # the check is left out, or the case is examined again
        said(after(lambda x, *y: made(x)), replace(ROWS, effect=ways.OPERATORS))


def test_operators_that_torch_registers_as_it_compiles_are_its_own():
    captures.traced(lambda x: x.to(torch.float16))(torch.ones(2))  # for which Dynamo imports torch's DTensor
    made = {name: definition._init_fn.__module__ for name, definition in custom_ops.OPDEFS.items()}
    made = {name: module for name, module in made.items() if module != "torch._library.triton"}  # a user's triton_op
    of_torch = {name.partition("::")[0] for name, module in made.items() if module.startswith("torch.")}
    assert "cplib" in of_torch
    assert of_torch <= operators.OF_TORCH


@pytest.mark.parametrize("way", [ways.OPERATORS, ways.GROWTH])
def test_what_tensors_operators_and_memory_show_is_told_once_in_each_kernel_that_shows_it(way, monkeypatch):
    kernels = []
    monkeypatch.setattr(leaks, "kept", lambda run: iter(["each of 9 calls leaves a tensor"]))
    monkeypatch.setattr(leaks, "grown", lambda run: iter(["a list grows"]))
    monkeypatch.setattr(operators, "registered", lambda: True)
    monkeypatch.setattr(operators, "broken_promises", lambda run: kernels.append(run.kernel) or iter(["a promise"]))
    monkeypatch.setattr(effects, "in_mode", lambda mode, run: replace(run.kernel, name=mode))
    found = said(right, replace(ROWS, effect=way))
    kept = "each of 9 calls leaves a tensor; the kernel keeps what it must release"
    more = (
        "a promise"
        if way == ways.OPERATORS
        else "a list grows; a kernel's memory must not grow with the number of its calls"
    )
    assert sorted(found) == sorted(["a promise", kept, more])
    assert [kernel.name for kernel in kernels] == ["k", *[effects.COMPILED] * (way == ways.OPERATORS)]
    result = execute(kernels[0], make.case(replace(ROWS, effect=way), OPS["layernorm_fwd"], Contract()))
    assert [one for one in CHECKS["effects"].function(result) if isinstance(one, Tried)] == [Tried(way)]


class Counting(torch.nn.BatchNorm1d):
    """BatchNorm that counts its batches with a mistake, or none."""

    mistake = ""

    def forward(self, x):
        before = int(self.num_batches_tracked)
        y = super().forward(x)
        by = {"": 1, "twice": 2, "always": 1, "never": 0}[self.mistake]
        if self.training or self.mistake == "always":
            self.num_batches_tracked.fill_(before + by)
        return y


@pytest.mark.parametrize(
    ("mistake", "training", "grows"), [("twice", True, 2), ("always", False, 1), ("never", True, 0)]
)
def test_batches_counted_wrongly(mistake, training, grows, monkeypatch):
    (kernel,) = load_directions(Counting, "batchnorm_fwd")
    spec = CaseSpec((4, 3, 5), effect=ways.COUNTED, training=training)
    assert said(kernel, spec) == said(kernel, replace(spec, training=not training)) == []
    monkeypatch.setattr(Counting, "mistake", mistake)
    where = "in training" if training else "in evaluation"
    expected = f"num_batches_tracked grows by {grows} in a call {where}, expected {int(training)}"
    assert said(kernel, spec) == [expected]
    assert said(kernel, replace(spec, training=not training)) == []


class Averaging(torch.nn.BatchNorm1d):
    """BatchNorm that averages over all batches where momentum is None, or takes another number for it."""

    instead: ClassVar[Any] = None

    def forward(self, x):
        if self.momentum is None and self.instead == "raise":
            raise TypeError("momentum must be a number")
        if self.momentum is not None or self.instead is None:
            return super().forward(x)
        self.momentum = self.instead(int(self.num_batches_tracked))
        try:
            return super().forward(x)
        finally:
            self.momentum = None


@pytest.mark.parametrize(
    ("instead", "batch"),
    [
        (lambda counted: 0.1, 1),
        (lambda counted: 1 / max(counted, 1), 2),
        (lambda counted: max(0.5, 1 / (counted + 1)), 3),
    ],
)
def test_a_momentum_of_none_averages_over_all_batches(instead, batch, monkeypatch):
    (kernel,) = load_directions(Averaging, "batchnorm_fwd")
    spec = CaseSpec((4, 3, 5), effect=ways.COUNTED)
    assert said(kernel, spec) == []
    monkeypatch.setattr(Averaging, "instead", staticmethod(instead))
    found = said(kernel, spec)
    words = f"in batch {batch} of a module with momentum=None, which counts 1/{batch}; "
    assert [words in one for one in found] == [True]
    assert found[0].startswith("running_")
    assert said(kernel, replace(spec, training=False)) == said(kernel, replace(spec, running=False)) == []


def test_a_module_that_takes_no_momentum_of_none_or_has_its_own(monkeypatch):
    monkeypatch.setattr(Averaging, "instead", "raise")
    (kernel,) = load_directions(Averaging, "batchnorm_fwd")
    assert said(kernel, CaseSpec((4, 3, 5), effect=ways.COUNTED)) == []
    (instance,) = load_directions(Averaging(3, momentum=0.3), "batchnorm_fwd")
    assert said(instance, instance.fitted(CaseSpec((4, 3, 5), effect=ways.COUNTED))) == []


def test_batches_where_nothing_counts_them():
    for module in (torch.nn.BatchNorm1d, lambda n: torch.nn.BatchNorm1d(n, track_running_stats=False)):
        target = module if isinstance(module, type) else module(3)
        (kernel,) = load_directions(target, "batchnorm_fwd")
        spec = kernel.fitted(CaseSpec((4, 3, 5), effect=ways.COUNTED))
        assert said(kernel, spec) == []


@pytest.mark.parametrize("strides", [(1, 1), (64, 0), (0, 1), (32, 1)])
def test_an_output_whose_rows_overlap(strides):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return torch.as_strided(y.contiguous(), y.shape, strides), mean, rstd

    assert "its elements overlap" in said(layernorm_fwd, replace(ROWS, further=()))[0]


def test_outputs_of_unusual_strides_pass():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        both = torch.stack((y, y), -1)
        return both[..., 0], mean.expand(1, -1)[0], torch.stack((rstd, rstd))[1]

    assert said(layernorm_fwd, replace(ROWS, further=())) == []
    assert said(after(lambda x, *y: y[0].t_().t_()), replace(ROWS, further=())) == []
