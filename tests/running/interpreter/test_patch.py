"""The interpreter's conversions after the patches, and how it is turned on; reductions are in test_reductions.py."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

from verify_norm.core.dtypes import FORMATS
from verify_norm.running.interpreter import conversions, patch

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels do not pass the interpreter")


@triton.jit
def cast(X, Explicit, Stored, Back, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < N, other=0.0)
    tl.store(Explicit + i, x.to(tl.bfloat16), mask=i < N)
    tl.store(Stored + i, x, mask=i < N)
    tl.store(Back + i, x.to(tl.bfloat16).to(tl.float32), mask=i < N)


def test_every_tie_and_random_bits(device):
    rng = np.random.default_rng(0)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] + np.array([0x7FFF, 0x8000, 0x8001], np.uint32)
    bits = np.concatenate([ties.ravel(), rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32)])
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    source = torch.from_numpy(x.copy()).to(device)
    explicit, stored = (torch.zeros(len(x), dtype=torch.bfloat16, device=device) for _ in range(2))
    back = torch.zeros(len(x), device=device)
    cast[(triton.cdiv(len(x), 1 << 16),)](source, explicit, stored, back, len(x), BLOCK=1 << 16)
    with np.errstate(over="ignore"):
        want = x.astype(ml_dtypes.bfloat16).view(np.int16)
    assert np.array_equal(source.cpu().to(torch.bfloat16).view(torch.int16).numpy(), want)
    for got in (explicit, stored):
        assert np.array_equal(got.cpu().view(torch.int16).numpy(), want)
    assert torch.equal(back.cpu(), explicit.cpu().float())


@interpreted
def test_enable_twice_is_enable_once(monkeypatch):
    module = importlib.import_module("triton.runtime.interpreter")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    before = module.ReduceOps.sum, module.GridExecutor.__call__
    assert patch.enable() == patch.enable()
    assert (module.ReduceOps.sum, module.GridExecutor.__call__) == before
    assert triton.__version__ in patch.enable()
    assert os.environ["TRITON_INTERPRET"] == "1", "processes that are started later interpret, too"


@interpreted
@pytest.mark.parametrize("imported", [False, True])
def test_the_interpreter_is_asked_for_before_triton_is_imported(imported, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if not imported:
        monkeypatch.setattr(patch, "sys", SimpleNamespace(modules={}))
    monkeypatch.setattr(tl, "sum", tl.sum.fn)  # it was compiled
    with pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1 before the first import"):
        patch.enable()
    assert os.environ.get("TRITON_INTERPRET") == (None if imported else "1")


def test_without_triton_nothing_is_enabled(monkeypatch):
    monkeypatch.setattr(patch.packages, "without_triton", lambda: "it is not installed")
    assert patch.enable() == "none: it is not installed"


@interpreted
def test_the_interpreter_is_made_quicker():
    module = importlib.import_module("triton.runtime.interpreter")
    quicker = module._patch_lang, module._get_np_dtype, type(module.interpreter_semantic).broadcast_impl_value
    assert all(hasattr(function, "__wrapped__") for function in (*quicker, tl.tensor.__init__, tl.block_type.__init__))
    assert not module.interpreter_builder.options.sanitize_overflow


@interpreted
def test_proof_notices_truncation(monkeypatch):
    module = importlib.import_module("triton.runtime.interpreter")
    monkeypatch.setattr(module, "_convert_float", module._convert_float.__wrapped__)
    with pytest.raises(RuntimeError, match="nearest even"):
        conversions.prove()


def run(code, **environment):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_enable_after_triton_is_refused():
    done = run("import triton; from verify_norm.running.interpreter import patch; patch.enable()")
    assert done.returncode == 1
    assert "without its interpreter" in done.stderr


def test_import_is_cheap():
    modules = "sys, verify_norm.running.interpreter.patch, verify_norm.kernels"
    done = run(f"import {modules}; print({{'torch', 'triton'}} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


@triton.jit
def narrowed(X, Out, Back, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.load(X + i).to(Out.dtype.element_ty)
    tl.store(Out + i, y)
    tl.store(Back + i, y.to(tl.float32))


@interpreted
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_into_8_bits_and_back(kind, source):
    form, rng = FORMATS[kind], np.random.default_rng(1)
    every = np.arange(256, dtype=np.uint8).view(form.dtype).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    ties = (every[1:] + every[:-1]) / 2
    wide = np.concatenate([every, ties, ties * 1.0001, ties * 0.9999, np.float32([1e6, -1e30, np.inf, -np.inf])])
    wide = np.concatenate([wide, rng.standard_normal(2048 - len(wide)).astype(np.float32)])
    x = torch.from_numpy(wide.astype(np.float32)).to(source)
    out, back = torch.zeros(2048, dtype=getattr(torch, kind)), torch.zeros(2048)
    narrowed[(1,)](x, out, back, 2048)
    exact = x.double().numpy()
    want = np.clip(form.round(np.clip(exact, -form.largest, form.largest)), -form.largest, form.largest)
    assert np.array_equal(out.float().numpy(), want)
    assert np.array_equal(back.numpy(), want)


@interpreted
def test_nan_stays_nan_in_8_bits():
    x = torch.full((16,), torch.nan)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        out, back = torch.zeros(16, dtype=kind), torch.zeros(16)
        narrowed[(1,)](x, out, back, 16)
        assert out.float().isnan().all()
        assert back.isnan().all()


@triton.jit
def _root(x_ptr, out_ptr, eps):
    tl.store(out_ptr, rsqrt(tl.load(x_ptr) + eps.to(tl.float32)))
    tl.store(out_ptr + 1, eps)


@interpreted
def test_a_float_is_a_scalar_and_libdevice_has_a_root():
    """As kernels of Liger's need: `eps.to(tl.float32)`, and the rsqrt of libdevice."""
    out = torch.zeros(2)
    _root[(1,)](torch.tensor([4.0]), out, 0.1)
    assert out.tolist() == pytest.approx([4.1**-0.5, 0.1], rel=1e-6)
