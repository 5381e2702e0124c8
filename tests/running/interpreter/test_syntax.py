"""Statements of a kernel in the interpreter, typed as compiled ones are, and the far rows that they reach."""

import importlib
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.running.execute import execute
from verify_norm.running.interpreter import arithmetic, patch, probes, syntax

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")

FAR = [CaseSpec(shape=shape, dtype="float16", x_layout="far", weight=False) for shape in ((2, 16), (4, 12))]


@triton.jit
def row(X, Y, Rstd, t, stride, N, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + t * stride + cols, mask=cols < N, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt_rn(tl.sum(x * x, 0) / N + eps)
    tl.store(Rstd + t, rstd)
    tl.store(Y + t * N + cols, x * rstd, mask=cols < N)


@triton.jit
def rows_by(HOW: tl.constexpr, X, Y, Rstd, M, N, stride, eps, one, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * ROWS
    last = min(first + ROWS, M)
    if HOW == "range":
        for t in range(first, last, one):
            row(X, Y, Rstd, t, stride, N, eps, BLOCK)
    elif HOW == "tl.range":
        for t in tl.range(first, last, num_stages=1):
            row(X, Y, Rstd, t, stride, N, eps, BLOCK)
    elif HOW == "backwards":
        for t in range(last - 1, first - 1, -1):
            row(X, Y, Rstd, t, stride, N, eps, BLOCK)
    elif HOW == "while":
        t = first
        while t < last and t >= 0:
            row(X, Y, Rstd, t, stride, N, eps, BLOCK)
            t += one
    elif HOW == "block":
        for t in range(first, last, 1):
            rows = t + tl.arange(0, 1)
            cols = tl.arange(0, BLOCK)[None, :]
            inside = (rows < last)[:, None] & (cols < N)
            x = tl.load(X + rows[:, None] * stride + cols, mask=inside, other=0.0).to(tl.float32)
            rstd = 1 / tl.sqrt_rn(tl.sum(x * x, 1) / N + eps)
            tl.store(Rstd + rows, rstd, mask=rows < last)
            tl.store(Y + rows[:, None] * N + cols, x * rstd[:, None], mask=inside)
    elif HOW == "int32":  # wrong: a row's number, and its product with the stride, in 32 bits
        for t in range(tl.program_id(0) * ROWS, last.to(tl.int32)):
            row(X, Y, Rstd, t, stride.to(tl.int32), N, eps, BLOCK)
    elif HOW == "int32 variable":  # wrong: the bounds are int64, what is used is not
        for t in range(first, last):
            row(X, Y, Rstd, t.to(tl.int32), stride.to(tl.int32), N, eps, BLOCK)


def rmsnorm(how):
    def rmsnorm_fwd(x, weight, eps, weight_offset):
        m, n = x.shape
        y, rstd = torch.empty((m, n), dtype=x.dtype), torch.empty(m)
        rows_by[(triton.cdiv(m, 2),)](
            how, x, y, rstd, m, n, x.stride(0), eps, 1, BLOCK=triton.next_power_of_2(n), ROWS=2
        )
        return y, rstd

    return rmsnorm_fwd


def accused(kernel, spec):
    """The outputs that the checks find wrong in one case."""
    kernel = Kernel("k", "rmsnorm_fwd", run=kernel)
    run = execute(kernel, make.case(spec, OPS["rmsnorm_fwd"], kernel.contract))
    assert run.problem is None, run.problem
    found = [f for name in ("accuracy", "memory") for f in CHECKS[name].function(run) if isinstance(f, Finding)]
    return {f.output for f in found}


@pytest.mark.parametrize("spec", FAR, ids=["stride beyond 32 bits", "product beyond 32 bits"])
@pytest.mark.parametrize("how", ["range", "tl.range", "backwards", "while", "block"])
def test_a_loop_over_int64_rows_reaches_far_ones(how, spec):
    assert accused(rmsnorm(how), spec) == set()


@pytest.mark.parametrize("spec", FAR, ids=["stride beyond 32 bits", "product beyond 32 bits"])
@pytest.mark.parametrize("how", ["int32", "int32 variable"])
def test_offsets_in_32_bits_are_still_wrong(how, spec):
    assert accused(rmsnorm(how), spec) >= {"y"}
    assert accused(rmsnorm(how), replace(spec, x_layout="contiguous")) == set()


def test_the_proof_notices_a_loop_without_types(monkeypatch):
    module = importlib.import_module("triton.runtime.interpreter")
    patch.prove()
    monkeypatch.setattr(syntax, "induction", lambda *bounds, **_: iter(range(*map(int, bounds))))
    with pytest.raises(RuntimeError, match="loops give"):
        patch.prove()
    monkeypatch.undo()
    monkeypatch.setattr(module.FunctionRewriter, "ast_transformer", module.ASTTransformer())
    module.InterpretedFunction.rewritten_fn.pop(probes.loops.fn, None)
    with pytest.raises(RuntimeError):
        patch.prove()
    monkeypatch.undo()
    module.InterpretedFunction.rewritten_fn.pop(probes.loops.fn, None)


@triton.jit
def endless(Out, step):
    for t in range(0, 8, step):
        tl.store(Out, t)


@triton.jit
def by_fractions(Out, step):
    for t in range(0, 8.5, step):
        tl.store(Out, t)


@triton.jit
def by_array(Out, step):
    if tl.arange(0, 4) < step:
        tl.store(Out, 1)


@triton.jit
def one_has_no_type(Out, step):
    tl.store(Out, step.to(tl.int64))


@pytest.mark.parametrize(
    ("kernel", "step", "problem"),
    [
        (endless, -2, "does not end"),
        (by_fractions, 2, "must all be ints"),
        (by_array, 2, "more than one value"),
        (one_has_no_type, 1, "no attribute 'to'"),
    ],
)
def test_what_does_not_compile_or_end_raises(kernel, step, problem):
    with pytest.raises(Exception, match=problem):
        kernel[(1,)](torch.zeros(1, dtype=torch.int64), step)


@triton.jit
def at_once(X, Out, HOW: tl.constexpr):
    i = tl.arange(0, 16)
    a = tl.load(X + i[:, None] * 16 + i[None, :])
    if HOW == "dot":
        r = tl.dot(a, a)
    elif HOW == "exact dot":
        r = tl.dot(a, a, input_precision="ieee")
    elif HOW == "cast":
        r = (a * 1e12).to(tl.int32)
    elif HOW == "divide":
        r = tl.program_id(0) // (i[:, None] * i[None, :])
    elif HOW == "shift":
        r = i[:, None] << (i[None, :] * 3)
    else:
        r = (a + a).to(tl.int32) // 2
    tl.store(Out + i[:, None] * 16 + i[None, :], r)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("dot", arithmetic.TF32),
        ("cast", arithmetic.OUT_OF_RANGE),
        ("divide", arithmetic.BY_ZERO),
        ("shift", arithmetic.TOO_FAR),
        ("exact dot", None),
        ("other", None),
    ],
)
def test_a_finding_names_what_the_interpreter_computes_otherwise(how, name):
    def kernel(x, weight, eps, weight_offset):
        at_once[(1,)](torch.ones(16, 16), torch.zeros(16, 16), how)
        return torch.zeros_like(x), torch.zeros(len(x))

    kernel = Kernel("k", "rmsnorm_fwd", run=kernel)
    run = execute(kernel, make.case(CaseSpec(shape=(2, 16)), OPS["rmsnorm_fwd"], kernel.contract))
    assert run.otherwise == ((name,) if name else ())
    messages = [f.message for f in CHECKS["accuracy"].function(run) if isinstance(f, Finding)]
    assert messages
    assert all((name is not None and name in m and "confirm on a GPU" in m) or name is None for m in messages)
    assert name or not any("GPU" in m for m in messages)


def test_inline_assembly_is_refused_not_accused():
    @triton.jit
    def moved(X):
        tl.store(X, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(X)], tl.int32, True, 1))

    def kernel(x, weight, eps, weight_offset):
        moved[(1,)](torch.zeros(1, dtype=torch.int32))

    kernel = Kernel("k", "rmsnorm_fwd", run=kernel)
    run = execute(kernel, make.case(CaseSpec(shape=(2, 16)), OPS["rmsnorm_fwd"], kernel.contract))
    assert run.refused
    assert "needs a GPU" in run.problem
