"""What the interpreter computes otherwise than a GPU is noted when a kernel does it, and named in its findings."""

import pytest
import torch
import triton
import triton.language as tl

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute
from verify_norm.running.interpreter import arithmetic

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@triton.jit
def cast(X, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.load(X + i).to(Out.dtype.element_ty))


@pytest.fixture
def seen(monkeypatch):
    """Called with a kernel and its arguments, returns which operations ran that are computed otherwise."""

    def run(kernel, *arguments):
        monkeypatch.setattr(arithmetic, "differs_on_gpu", set())
        kernel[(1,)](*arguments)
        return arithmetic.differs_on_gpu

    return run


@pytest.mark.parametrize(
    ("value", "beyond"), [(127.9, False), (128.0, True), (-128.9, False), (-129.0, True), (torch.nan, True)]
)
def test_a_cast_out_of_range_is_noted(seen, value, beyond):
    found = seen(cast, torch.tensor([value, 1.0]), torch.zeros(2, dtype=torch.int8), 2)
    assert found == ({arithmetic.OUT_OF_RANGE} if beyond else set())


@triton.jit
def whole(X, Y, Out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(X + i), tl.load(Y + i)
    if OP == "<<":
        r = x << y
    elif OP == ">>":
        r = x >> y
    elif OP == "//":
        r = x // y
    else:
        r = x % y
    tl.store(Out + i, r)


@pytest.mark.parametrize(
    ("op", "y", "name"),
    [(op, y, arithmetic.TOO_FAR if y in (-1, 32, 33) else None) for op in ("<<", ">>") for y in (-1, 0, 1, 31, 32, 33)]
    + [(op, y, None if y else arithmetic.BY_ZERO) for op in ("//", "%") for y in (-1, 0, 1)],
)
def test_a_shift_too_far_and_a_division_by_zero_are_noted(seen, op, y, name):
    for kind in (torch.int32, torch.uint32)[: 2 if y >= 0 else 1]:
        x = torch.tensor([5, 6], dtype=kind)
        assert seen(whole, x, torch.tensor([1, y], dtype=kind), torch.zeros_like(x), 2, op) == {name} - {None}


@triton.jit
def product(X, Out, N: tl.constexpr, PRECISION: tl.constexpr, SUM: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i[:, None] * N + i[None, :])
    tl.store(Out + i[:, None] * N + i[None, :], tl.dot(x, x, input_precision=PRECISION, out_dtype=SUM))


@pytest.mark.parametrize(
    ("dtype", "precision", "total", "name"),
    [
        ("float32", "tf32", tl.float32, None),
        ("float32", "ieee", tl.float32, None),
        ("bfloat16", "tf32", tl.float32, None),
        ("float16", "tf32", tl.float32, None),
        ("float16", "tf32", tl.float16, arithmetic.HALF_SUM),
    ],
)
def test_a_product_of_matrices_in_few_bits_is_noted(seen, dtype, precision, total, name):
    x = (torch.arange(256).reshape(16, 16) % 7).to(getattr(torch, dtype))
    out = torch.zeros(16, 16)
    assert seen(product, x, out, 16, precision, total) == {name} - {None}
    assert torch.equal(out, x.float() @ x.float())


def test_a_product_in_tf32_reads_ten_bits_of_a_fraction():
    step = 2.0**-10
    x = torch.diag(torch.tensor([1 + step, 1 + step / 2, -1 - 1.9 * step, 3.0e38, torch.inf] + [1.0] * 11))
    out, exact = torch.zeros(16, 16), torch.zeros(16, 16)
    product[(1,)](x, out, 16, "tf32", tl.float32)
    product[(1,)](x, exact, 16, "ieee", tl.float32)
    assert out.diag()[:3].tolist() == torch.tensor([(1 + step) ** 2, 1.0, (1 + step) ** 2]).tolist()
    assert exact.diag()[1].item() == torch.tensor((1 + step / 2) ** 2).item()
    short = torch.full((16, 16), 0x7F800001, dtype=torch.int32).view(torch.float32)  # a NaN by its last bit alone
    product[(1,)](short, out, 16, "tf32", tl.float32)
    assert out.isnan().all()


@triton.jit
def at_once(X, Out, HOW: tl.constexpr):
    i = tl.arange(0, 16)
    a = tl.load(X + i[:, None] * 16 + i[None, :])
    if HOW == "dot":
        r = tl.dot(a, a)
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
        ("dot", None),
        ("cast", arithmetic.OUT_OF_RANGE),
        ("divide", arithmetic.BY_ZERO),
        ("shift", arithmetic.TOO_FAR),
        ("other", None),
    ],
)
def test_a_finding_names_what_the_interpreter_computes_otherwise(how, name):
    def kernel(x, weight, eps, weight_offset):
        at_once[(1,)](torch.ones(16, 16), torch.zeros(16, 16), how)
        return torch.zeros_like(x), torch.zeros(len(x))

    kernel = Kernel("k", "rmsnorm_fwd", run=kernel)
    run = execute(kernel, make.case(CaseSpec(shape=(2, 16)), OPS["rmsnorm_fwd"], kernel.contract))
    assert run.differs_on_gpu == ((name,) if name else ())
    messages = [f.message for f in CHECKS["accuracy"].function(run) if isinstance(f, Finding)]
    assert messages
    assert all((name is not None and name in m and "confirm on a GPU" in m) or name is None for m in messages)
    assert name or not any("GPU" in m for m in messages)
