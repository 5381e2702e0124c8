"""Triton's interpreter made quicker gives the same bits, and the same errors, in fewer steps."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from verify_norm.running.interpreter import speedups

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")

# What runs in a process with the interpreter as the tool uses it, and in one where it is not made quicker.
DIGEST = """
import hashlib, sys
from verify_norm.running.interpreter import patch as interpreter
if sys.argv[1] == "plain":
    for speedup in ("patch_once", "make_types_once", "know_types_once", "broadcast_unequal"):
        setattr(interpreter.speedups, speedup, lambda *modules: None)
interpreter.enable()
import torch
from verify_norm.loading import registry
from verify_norm.kernels.zoo import ZOO

def digest(name, found):
    found = [t for t in (found if isinstance(found, tuple) else (found,)) if t is not None]
    told = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in found)
    print(name, x.dtype, tuple(x.shape), hashlib.sha256(told).hexdigest())

drawn = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for shape in ((3, 65),) if dtype == torch.float16 else ((3, 65), (2, 4200)):
        x, dy = (torch.randn(shape, generator=drawn).to(dtype) for _ in range(2))
        w, b = (torch.randn(shape[1:], generator=drawn).to(dtype) for _ in range(2))
        mean, rstd = x.float().mean(-1), (x.float().var(-1, unbiased=False) + 1e-5).rsqrt()
        digest("layernorm_fwd", registry.load("layernorm_fwd").run(x, w, b, 1e-5))
        digest("layernorm_bwd", registry.load("layernorm_bwd").run(dy, x, w, b, mean, rstd, 1e-5))
        digest("rmsnorm_bwd", registry.load("rmsnorm_bwd").run(dy, x, w, rstd, 1e-5))
        if shape[1] == 65:
            digest("tutorial", registry.ready(ZOO["H08_tutorial"].kernel).run(dy, x, w, b, mean, rstd, None))
            digest("states", registry.ready(ZOO["H10_welford"].kernel).run(x.reshape(3, 5, 13), w[:5], b[:5], 5, 1e-5))
"""


@pytest.mark.slow
def test_the_same_bits():
    """Of kernels with reductions, functions of their own, loops, mixed types, and 16-bit types."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    runs = [
        subprocess.Popen([sys.executable, "-c", DIGEST, how], env=environment, stdout=subprocess.PIPE, text=True)
        for how in ("plain", "quick")
    ]
    plain, quick = (run.communicate(timeout=300)[0].splitlines() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(plain) == 21
    assert quick == plain


@triton.jit
def _sums(out_ptr, N: tl.constexpr):
    for i in range(N):
        tl.store(out_ptr + i, tl.sum(tl.arange(0, 8), axis=0) + tl.max(tl.arange(0, 8), axis=0))


def test_the_language_is_patched_once_a_grid_and_restored_after(monkeypatch):
    interpreter = importlib.import_module("triton.runtime.interpreter")
    calls = []
    own = interpreter._patch_lang_tensor
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", lambda *args: (calls.append(1), own(*args)))
    out = torch.zeros(20, dtype=torch.int32)
    for _ in range(2):
        _sums[(3,)](out, 20)
    assert out.tolist() == [35] * 20
    assert len(calls) <= 8  # triton.language and triton.language.core, seen by the kernel and by the library; not 240
    with pytest.raises(ValueError, match="outside of JIT functions"):
        tl.arange(0, 8)


@triton.jit
def _at_odds(out_ptr, A: tl.constexpr, B: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.arange(0, A) + tl.arange(0, B), axis=0))


def test_an_error_is_the_same_and_leaves_nothing_behind():
    out = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(Exception, match="incompatible dimensions at index 0: 4 and 8"):
        _at_odds[(1,)](out, 4, 8)
    _at_odds[(1,)](out, 8, 8)
    assert out.item() == 56
    with pytest.raises(Exception, match="power of 2"):
        _at_odds[(1,)](out, 3, 3)


@triton.jit
def _paired(x_ptr, y_ptr, out_ptr, XR: tl.constexpr, XC: tl.constexpr, YR: tl.constexpr, YC: tl.constexpr,
            R: tl.constexpr, C: tl.constexpr):  # fmt: skip
    x = tl.load(x_ptr + tl.arange(0, XR)[:, None] * XC + tl.arange(0, XC)[None, :])
    y = tl.load(y_ptr + tl.arange(0, YR)[:, None] * YC + tl.arange(0, YC)[None, :])
    tl.store(out_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], x * y - 2 * x + tl.load(y_ptr))


@pytest.mark.parametrize(("left", "right"), [("float32", "float32"), ("float16", "float32"), ("int32", "float16")])
def test_shapes_are_spread_as_numpy_spreads_them(left, right):
    sizes = [(1, 1), (1, 8), (4, 1), (4, 8)]
    for one in sizes:
        for other in sizes:
            x = torch.arange(1, 1 + one[0] * one[1]).reshape(one).to(getattr(torch, left))
            y = torch.arange(3, 3 + other[0] * other[1]).reshape(other).to(getattr(torch, right))
            want = x.double() * y.double() - 2 * x.double() + y.double().ravel()[0]
            out = torch.zeros(want.shape)
            _paired[(1,)](x, y, out, *one, *other, *want.shape)
            assert torch.equal(out.double(), want), (one, other)


def bare(**has):
    """An interpreter that shares nothing with those known but the names that are always there, and these."""

    class GridExecutor:
        def __call__(self):
            return "ran"

    return SimpleNamespace(GridExecutor=GridExecutor, _patch_lang=lambda function: "patched", **has)


@pytest.mark.parametrize("has", [{}, {"interpreter_semantic": object()}, {"_patch_builtin": int, "_patch_attr": int}])
def test_what_a_version_of_triton_does_not_have_is_left_as_it_is(has):
    interpreter = bare(**has)
    speedups.patch_once(interpreter, tl)
    speedups.know_types_once(interpreter)
    speedups.broadcast_unequal(interpreter)
    assert interpreter.GridExecutor()() == "ran"
    assert interpreter._patch_lang(None) == "patched"
    assert vars(interpreter).keys() == {"GridExecutor", "_patch_lang", *has}


def test_outside_a_grid_the_language_is_patched_at_every_call():
    interpreter = importlib.import_module("triton.runtime.interpreter")
    for _ in range(2):
        scope = interpreter._patch_lang(_sums.fn)
        assert scope is not None
        scope.restore()


def test_types_and_shapes_of_equal_blocks_are_the_same_objects():
    types = [tl.block_type(tl.float32, shape) for shape in ([2, 4], [2, 4], tl.tuple([2, 4]), [2, 8])]
    shapes = [tl.tensor(None, kind).shape for kind in types]
    assert types[0].shape is types[1].shape is types[2].shape
    assert shapes[0] is shapes[1] is shapes[2]
    assert list(shapes[0]) == [2, 4]
    assert list(shapes[3]) == list(types[3].shape) == [2, 8]
    assert speedups._extents(SimpleNamespace(values=[2, 4])) == (2, 4), "without a walk through Triton's tuple"


def test_a_type_of_numpy_is_looked_up_once():
    asked = []
    interpreter = SimpleNamespace(_get_np_dtype=lambda kind: asked.append(kind) or len(asked))
    speedups.know_types_once(interpreter)
    kinds = (tl.float32, tl.block_type(tl.float32, [2]), tl.int8, tl.float32)
    assert [interpreter._get_np_dtype(kind) for kind in kinds] == [1, 1, 2, 1]
    assert asked == [tl.float32, tl.int8]


def test_operands_of_one_shape_are_not_broadcast():
    class Semantic:
        def broadcast_impl_value(self, lhs, rhs):
            return self, rhs, lhs

    speedups.broadcast_unequal(Semantic)
    semantic, shape = Semantic(), [2]
    one, same, other = (SimpleNamespace(shape=shape) for shape in (shape, shape, [2]))
    assert semantic.broadcast_impl_value(one, same) == (one, same)
    assert semantic.broadcast_impl_value(one, other) == (semantic, other, one)
