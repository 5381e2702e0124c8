"""Statements of a kernel in the interpreter, typed as compiled ones are, and the far rows that they reach."""

import importlib
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute
from verify_norm.running.interpreter import patch, probes, syntax
from verify_norm.running.refusals import INTERPRETED

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
def twice_assigned(Out, step):
    a = b = step
    tl.store(Out, a + b)


@triton.jit
def one_has_no_type(Out, step):
    tl.store(Out, step.to(tl.int64))


@pytest.mark.parametrize(
    ("kernel", "step", "problem"),
    [
        (endless, -2, "does not end"),
        (by_fractions, 2, r"must all be ints, are \['int32', 'fp32', 'int32'\]"),
        (by_array, 2, "more than one value"),
        (one_has_no_type, 1, "no attribute 'to'"),
        (twice_assigned, 2, "Multiple assignments are not supported"),
    ],
)
def test_what_does_not_compile_or_end_raises(kernel, step, problem):
    with pytest.raises(Exception, match=problem):
        kernel[(1,)](torch.zeros(1, dtype=torch.int64), step)


@triton.jit
def with_constants(Out, number, FLAG: tl.constexpr):
    tl.store(Out, FLAG and number > 2)
    tl.store(Out + 1, FLAG or number > 2)
    tl.store(Out + 2, number > 2 and FLAG)
    tl.store(Out + 3, number > 2 or FLAG)
    tl.store(Out + 4, not FLAG)
    tl.store(Out + 5, not number > 2)
    tl.store(Out + 6, number > 2 and number > 3 and number < 9)
    tl.store(Out + 7, number < 2 or number > 9 or number == 3)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("number", [1 - 1, 3, 5, 10])
def test_constants_and_numbers_are_joined_and_negated(number, flag):
    out, more = torch.full((8,), 7, dtype=torch.int32), number > 2
    with_constants[(1,)](out, number, flag)
    assert out.tolist() == [
        *(flag and more, flag or more, more and flag, more or flag, not flag, not more),
        number > 3 and number < 9,
        number < 2 or number > 9 or number == 3,
    ]


@triton.jit
def optional(Weight, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    if Weight is not None and tl.load(Weight) > 0:
        tl.store(Out + i, 1)
    if Weight is None or tl.load(Weight) < 0:
        tl.store(Out + i, 2)


@pytest.mark.parametrize(("weight", "want"), [(None, 2), (torch.ones(1), 1), (-torch.ones(1), 2)])
def test_what_a_constant_decides_is_not_run(weight, want):
    out = torch.zeros(4)
    optional[(1,)](weight, out, 4)
    assert out.tolist() == [want] * 4


@triton.jit
def by_names(Out, last, N: tl.constexpr):
    i = tl.arange(0, min(N, 4))  # a constant, as an extent has to be
    for t in tl.range(0, last, step=min(2, N), num_stages=2):
        tl.store(Out + i, tl.load(Out + i) + max(t, 3))


def test_constants_stay_constants_and_options_of_a_loop_are_kept():
    out = torch.zeros(8, dtype=torch.int32)
    by_names[(1,)](out, 7, 16)
    assert out.tolist() == [3 + 3 + 4 + 6] * 4 + [0] * 4


@triton.jit
def counted(Out, first, last, Step):
    step = tl.load(Step)
    for t in range(3):
        tl.store(Out, tl.load(Out) + t)
    for t in tl.range(8, step=3):
        tl.store(Out + 1, tl.load(Out + 1) + t)
    for t in range(0, tl.full((), 2, tl.int64), 2):
        tl.store(Out + 2, t.dtype.primitive_bitwidth)
    for t in range(first, last, step):
        tl.store(Out + 3, tl.load(Out + 3) + t)


@pytest.mark.parametrize(
    ("first", "last", "step", "total"),
    [(2, 6, 1, 14), (2, 6, 3, 7), (4, 4, -1, 0), (5, 4, 0, 0), (4, 4, 0, 0), (2, 6, 0, None)],
)
def test_a_loop_begins_and_steps_as_it_says(first, last, step, total):
    out = torch.zeros(4, dtype=torch.int64)
    given = (out, first, last, torch.tensor([step], dtype=torch.int32))
    if total is None:
        with pytest.raises(Exception, match="does not end"):
            counted[(1,)](*given)
    else:
        counted[(1,)](*given)
        assert out.tolist() == [3, 9, 64, total]


@triton.jit
def lock(Lock, Out, RELEASED: tl.constexpr):
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    tl.store(Out, tl.load(Out) + 1)
    if RELEASED:
        tl.atomic_xchg(Lock, 0)


def test_a_lock_that_is_not_released_is_a_deadlock():
    out = torch.zeros(1)
    lock[(3,)](torch.zeros(1, dtype=torch.int32), out, True)
    assert out.item() == 3
    lock[(1,)](torch.zeros(1, dtype=torch.int32), out, False)
    with pytest.raises(InterpreterError, match=r"^RuntimeError: deadlock: .* in `while tl.atomic_cas"):
        lock[(3,)](torch.zeros(1, dtype=torch.int32), out, False)


@triton.jit
def barrier(Count, programs, HOW: tl.constexpr):
    tl.atomic_add(Count, 1)
    if HOW == "load":
        while tl.load(Count) < programs:
            pass
    elif HOW == "compare":
        while tl.atomic_cas(Count, programs, programs) != programs:
            pass
    else:
        while tl.atomic_add(Count, 1) < 20:
            pass


@pytest.mark.parametrize("how", ["load", "compare"])
def test_a_barrier_of_all_programs_needs_a_gpu(how):
    count = torch.zeros(1, dtype=torch.int32)
    barrier[(1,)](count, 1, how)
    with pytest.raises(InterpreterError, match=f"waits for later ones needs a GPU: {INTERPRETED}"):
        barrier[(2,)](torch.zeros_like(count), 2, how)
    with pytest.raises(InterpreterError, match="deadlock"):  # no program is left that it may wait for
        barrier[(1,)](torch.zeros_like(count), 2, how)


def test_a_loop_without_a_body_may_end():
    count = torch.zeros(1, dtype=torch.int32)
    barrier[(1,)](count, 1, "add")
    assert count.item() == 21
