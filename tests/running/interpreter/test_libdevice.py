"""Functions of libdevice in the interpreter, against Python's, and what it does not know."""

import math
from statistics import NormalDist

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as of_cuda

from verify_norm.cases import make
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@triton.jit
def one(X, Out, N: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, F(tl.load(X + i)))


@triton.jit
def two(X, Y, Out, N: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, F(tl.load(X + i), tl.load(Y + i)))


@triton.jit
def three(X, Y, Z, Out, N: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, F(tl.load(X + i), tl.load(Y + i), tl.load(Z + i)))


@pytest.mark.parametrize("library", [libdevice, of_cuda])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("normcdf", NormalDist().cdf),
        ("erfc", math.erfc),
        ("sin", math.sin),
        ("exp10", lambda x: 10.0**x),
        ("rcbrt", lambda x: math.copysign(abs(x) ** (-1 / 3), x)),
        ("round", lambda x: math.copysign(math.floor(abs(x) + 0.5), x)),
        ("abs", abs),
    ],
)
def test_a_function_of_one_number(name, python, dtype, library):
    """Of float32 it is the nearest number, by way of float64."""
    x = torch.tensor([0.5, -0.25, 1.5, -2.5, 0.1, -0.7, 1.3, 2.9], dtype=dtype)
    out = torch.zeros(8, dtype=dtype)
    one[(1,)](x, out, 8, getattr(library, name))
    want = [python(v) for v in x.tolist()]
    assert out.tolist() == (torch.tensor(want).tolist() if dtype == torch.float32 else pytest.approx(want, rel=2e-15))


@pytest.mark.parametrize(
    ("name", "y", "python"), [("ldexp", torch.tensor([3, -2, 0, 1], dtype=torch.int32), math.ldexp),
                              ("fdim", torch.tensor([1.0, -1.0, 0.5, 0.0]), lambda x, y: max(x - y, 0.0)),
                              ("hypot", torch.tensor([1.0, -1.0, 0.5, 0.0]), math.hypot)]
)  # fmt: skip
def test_a_function_of_two_numbers(name, y, python):
    x, out = torch.tensor([0.5, -0.25, 1.5, 2.5]), torch.zeros(4)
    two[(1,)](x, y, out, 4, getattr(libdevice, name))
    assert out.tolist() == pytest.approx(list(map(python, x.tolist(), y.tolist())))


@pytest.mark.parametrize("name", ["fma", "fma_rn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fma(name, dtype):
    x, y, z = torch.tensor([[2.0, 0.5], [3.0, -1.0], [0.25, 8.0]], dtype=dtype)
    out = torch.zeros(2, dtype=dtype)
    three[(1,)](x, y, z, out, 2, getattr(libdevice, name))
    assert out.tolist() == [6.25, 7.5]


@pytest.mark.parametrize(("dtype", "root"), [(torch.float32, 0.0), (torch.float64, 2.0**-70)])
def test_subnormal_numbers_of_float32_are_zeros_in_float32_alone(dtype, root):
    """Of other functions test_likeness.py has what a GPU gave."""
    out = torch.ones(2, dtype=dtype)
    one[(1,)](torch.tensor([2.0**-140, 4.0], dtype=dtype), out, 2, libdevice.sqrt)
    assert out.tolist() == [root, 2.0]


@pytest.mark.parametrize(
    ("name", "dtype", "symbol"), [("j0", torch.float32, "__nv_j0f"), ("logb", torch.float64, "__nv_logb")]
)
def test_what_is_not_known_names_the_gpu(name, dtype, symbol):
    with pytest.raises(Exception, match=f"{symbol} needs a GPU"):
        one[(1,)](torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype), 2, getattr(libdevice, name))


def test_inline_assembly_is_refused_not_accused():
    @triton.jit
    def move(x):  # errors in a function that the kernel calls come wrapped
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.int32, True, 1)

    @triton.jit
    def moved(X):
        tl.store(X, move(tl.load(X)))

    def kernel(x, weight, eps, weight_offset):
        moved[(1,)](torch.zeros(1, dtype=torch.int32))

    kernel = Kernel("k", "rmsnorm_fwd", run=kernel)
    run = execute(kernel, make.case(CaseSpec(shape=(2, 16)), OPS["rmsnorm_fwd"], kernel.contract))
    assert run.refused
    assert "tl.inline_asm_elementwise needs a GPU" in run.problem
