"""A kernel under @triton.autotune has one name for each configuration, and runs with that alone."""

import functools
import importlib
import sys

import pytest
import torch
import triton
import triton.language as tl

import verify_norm
from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load
from verify_norm.loading.returned import RefusedError
from verify_norm.loading.several import configured
from verify_norm.loading.tuned import configurations, parted, pin, tuners

CONFIGS = [triton.Config({"BLOCK": 8}, num_warps=1), triton.Config({"BLOCK": 16}, num_warps=2)]


@triton.autotune(configs=CONFIGS, key=["N"])
@triton.heuristics({"EVEN": lambda args: args["N"] % args["BLOCK"] == 0})
@triton.jit
def tuned(out_ptr, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(out_ptr, BLOCK)


@triton.heuristics({"TWICE": lambda args: 2})
@triton.autotune(configs=CONFIGS, key=[])
@triton.jit
def under_heuristics(out_ptr, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    tl.store(out_ptr, BLOCK)


@triton.autotune(configs=CONFIGS[:1], key=[])
@triton.jit
def without_choice(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


def plain(out):
    tuned[(1,)](out, 3)


def by_import(out):
    import importlib.util

    return importlib.util, __import__("os")


def enclosing(kernel):
    def inner(out):
        return [kernel[grid](out, 3) for grid in [(1,)]]

    return inner


@functools.wraps(plain)
def wrapped(*args, **kwargs):
    return len(args)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return plain(x)

    @staticmethod
    def backward(ctx, dy):
        return under_heuristics[(1,)](dy)


class Layer(torch.nn.Module):
    def forward(self, x):
        return self.launched(x)

    def launched(self, x):
        return plain(x)


class Held:
    __slots__ = ("kernels",)

    def __init__(self, kernels):
        self.kernels = kernels

    def __call__(self, x):
        return self.kernels["a"][0][(1,)](x, 3)


class Lazy:
    @property
    def kernel(self):
        return tuned

    def __call__(self, x):
        return self.kernel[(1,)](x, 3)


class Static:
    def __call__(self, x):
        return self.launch(x)

    @staticmethod
    def launch(x):
        return plain(x)


REACHED = {
    "global": plain,
    "tuner": tuned,
    "nested": lambda out: (lambda: plain(out))(),
    "closure": enclosing(tuned),
    "default": lambda out, kernel=tuned: kernel[(1,)](out, 3),
    "default of a keyword": lambda out, *, kernel=tuned: kernel[(1,)](out, 3),
    "partial": functools.partial(lambda kernel, out: kernel, tuned),
    "keyword of a partial": functools.partial(lambda out, kernel: kernel, kernel=tuned),
    "decorated": wrapped,
    "module": Layer(),
    "class": Layer,
    "method": Layer().launched,
    "instance": Held({"a": [tuned]}),
    "property": Lazy(),
    "static method": Static(),
    "operator": torch.library.custom_op(
        "verify_norm_tests::tuned", plain, mutates_args=("out",), schema="(Tensor(a!) out) -> ()"
    ),
}


@pytest.mark.parametrize("way", REACHED)
def test_a_tuner_is_found_where_code_reaches_it(way):
    assert tuners(REACHED[way]) == [tuned]


def test_all_tuners_are_found_and_no_other():
    assert tuners(lambda x: Norm.apply(x)) == [tuned, under_heuristics.fn]
    assert tuners(by_import) == []
    assert configurations(lambda out: without_choice[(1,)](out)) == {}


FILES = {
    "kernels_of_this_test/__init__.py": "",
    "kernels_of_this_test/launch.py": "import triton\nimport triton.language as tl\n\n\n"
    "@triton.autotune(configs=[triton.Config({'BLOCK': n}) for n in (1, 2)], key=[])\n@triton.jit\n"
    "def _k(out_ptr, BLOCK: tl.constexpr):\n    tl.store(out_ptr, BLOCK)\n",
    "kernels_of_this_test/norms.py": "import kernels_of_this_test.launch\nfrom . import launch as other\n\n\n"
    "def by_name(x):\n    kernels_of_this_test.launch._k[(1,)](x)\n\n\n"
    "def by_alias(x):\n    other._k[(1,)](x)\n\n\n"
    "def late(x):\n    from .launch import _k as renamed\n    renamed[(1,)](x)\n\n\n"
    "def late_module(x):\n    import kernels_of_this_test.launch as m\n    m._k[(1,)](x)\n\n\n"
    "def missing(x):\n    from no_such_package import y\n    return y\n",
}


def test_a_tuner_is_found_through_modules_and_imports_in_functions(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    norms = importlib.import_module("kernels_of_this_test.norms")
    for name in ("by_name", "by_alias", "late", "late_module", "missing"):
        found = [one.base_fn.__name__ for one in tuners(getattr(norms, name))]
        assert found == ["_k"] * (name != "missing"), name
    for name in [name for name in sys.modules if name.startswith("kernels_of_this_test")]:
        monkeypatch.delitem(sys.modules, name)


def named(*configs):
    tuner = triton.autotune(configs=list(configs), key=[])(triton.jit(plain_kernel))
    return [name.partition("(")[2][:-1] for name in configurations(tuner)]


def plain_kernel(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, BLOCK)


def test_a_name_has_what_tells_configurations_from_each_other():
    config = triton.Config
    assert list(configurations(plain)) == ["tuned(BLOCK=8,num_warps=1)", "tuned(BLOCK=16,num_warps=2)"]
    assert named(config({"A": 1}), config({"A": 2})) == ["A=1", "A=2"]
    assert named(config({}, num_stages=1), config({}, num_stages=2, maxnreg=32)) == [
        "num_stages=1",
        "num_stages=2,maxnreg=32",
    ]
    assert named(config({"A": "a:b @"}), config({"A": "a:b @"})) == ["A=a_b__", "A=a_b__#2"]


def run(target):
    out = torch.zeros(1)
    target(out)
    return out.item()


@pytest.fixture
def unpinned():
    yield
    for one in (tuned, under_heuristics.fn):
        one.configs = CONFIGS
        for name in ("run", "every"):
            vars(one).pop(name, None)


@pytest.mark.usefixtures("unpinned")
def test_a_kernel_runs_in_its_configuration_alone():
    assert run(plain) == 8
    for name, block in {"BLOCK=16,num_warps=2": 16, "BLOCK=8,num_warps=1": 8}.items():
        pin(plain, f"tuned({name})")
        assert run(plain) == block
        pin(Norm, f"under_heuristics({name})")
        assert run(lambda out: under_heuristics[(1,)](out)) == block
    with pytest.raises(UsageError, match=r"unknown configuration 'tuned\(BLOCK=9\)' .did you mean tuned\(BLOCK=8"):
        pin(plain, "tuned(BLOCK=9)")
    with pytest.raises(UsageError, match="@BLOCK=9: the kernel has no tuner with several configurations"):
        pin(by_import, "BLOCK=9")


def test_a_configuration_that_its_tuner_leaves_out_refuses_the_case():
    only_large = {
        "early_config_prune": lambda configs, args, **kw: [c for c in configs if c.kwargs["BLOCK"] >= args["N"]]
    }
    pruning = triton.autotune(configs=CONFIGS, key=["N"], prune_configs_by=only_large)(tuned.fn)
    pin(pruning, "tuned(BLOCK=8,num_warps=1)")
    assert run(lambda out: pruning[(1,)](out, 8)) == 8
    with pytest.raises(RefusedError, match=r"leaves BLOCK: 8.* out here"):
        pruning[(1,)](torch.zeros(1), 9)


SOURCE = """
import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})], key=["N"]PRUNED)
@triton.jit
def _norm(x_ptr, w_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):  # it drops what is beyond BLOCK
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + columns, columns < N, 0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, columns < N, 0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x) / N + eps) * w
    tl.store(y_ptr + tl.program_id(0) * N + columns, y, columns < N)


def rmsnorm_fwd(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, y, x.shape[1], eps)
    return y
"""
PRUNED = ", prune_configs_by={'early_config_prune': lambda configs, args, **kw: configs[:1]}"
VERDICTS = [
    ("", "", Exit.PASS),
    ("", "@_norm(BLOCK=64)", Exit.PASS),
    ("", "@_norm(BLOCK=32)", Exit.FINDINGS),
    (PRUNED, "@_norm(BLOCK=32)", Exit.NOTHING),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pruned", "configuration", "verdict"), VERDICTS)
def test_a_configuration_that_drops_the_tail_is_wrong_alone(tmp_path, monkeypatch, pruned, configuration, verdict):
    (tmp_path / "ops.py").write_text(SOURCE.replace("PRUNED", pruned))
    monkeypatch.chdir(tmp_path)
    assert configured("ops.py:rmsnorm_fwd") == [f"ops.py:rmsnorm_fwd@_norm(BLOCK={n})" for n in (64, 32)]
    name = f"ops.py:rmsnorm_fwd{configuration}"
    assert parted(load(name).target) == ("ops.py:rmsnorm_fwd", configuration[1:])
    report = verify_norm.replay(name, CaseSpec((2, 50)), checks="signature,accuracy", device="cpu")
    assert (report.kernel, report.verdict) == (name, verdict)
