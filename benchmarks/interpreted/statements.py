"""Statements of a kernel, its arguments, masks and pointers. A scalar is stored as its width, its sign, its value."""

import triton
import triton.language as tl

from .program import N, Program, tensor

FAR = 3 * 2**31  # a number that needs 64 bits
LOST = tensor("int64", [FAR, 5])  # numbers in memory, whose type is int64 wherever they are


@triton.jit
def typed(Out, k, x):
    """Store the width of a scalar's type, whether it is signed, and its value."""
    tl.store(Out + 3 * k, x.dtype.primitive_bitwidth)
    tl.store(Out + 3 * k + 1, x.dtype.is_int_signed())
    tl.store(Out + 3 * k + 2, x)


@triton.jit
def loops(Bounds, Out, far, near, one, negative, BLOCK: tl.constexpr):
    start = tl.load(Bounds)
    for t in range(start, start + near, BLOCK):
        typed(Out, 0, t)
    for t in tl.range(start, start + near, BLOCK, num_stages=1):
        typed(Out, 1, t * 2)
    for t in range(far, far + 1):
        typed(Out, 2, t)
    for t in range(near):
        typed(Out, 3, t)
    for t in range(0, near, BLOCK):
        typed(Out, 4, t * 2000000000)
    for t in range(start + near, start, -BLOCK):
        typed(Out, 5, t)
    for t in range(near, -1, -3):
        typed(Out, 6, t)
    for t in range(one, near):
        typed(Out, 7, t // -2)
    for t in range(tl.program_id(0).to(tl.int64), near):
        typed(Out, 8, t)
    for t in range(tl.cdiv(start, BLOCK) - 1, tl.cdiv(start, BLOCK)):
        typed(Out, 9, t)
    for t in range(near, 0, negative):
        typed(Out, 10, t)
    for t in tl.static_range(2, BLOCK):
        typed(Out, 11, tl.full([], t, tl.int32) * 3)
    for t in range(one, near, start.to(tl.uint8) + 3):
        typed(Out, 12, t)


@triton.jit
def whiles(Bounds, Out, far, near, one, BLOCK: tl.constexpr):
    start = tl.load(Bounds)
    t = start
    while t < start + near:
        t += BLOCK
    typed(Out, 0, t)
    u = 0
    while u < near:
        u += BLOCK
    typed(Out, 1, u * 1000000000)
    a, b = 0, 2000000000
    while a < near:
        a += 1
    typed(Out, 2, a)
    typed(Out, 3, b + b)
    c: tl.int64 = 2000000000
    typed(Out, 4, c * 3)
    n = far
    while n > 0 and near > 0:
        n = n // 2 - one
    typed(Out, 5, n)
    d = 5
    d *= -3
    d //= 2
    typed(Out, 6, d)
    e = 7
    e %= -4
    e <<= 3
    typed(Out, 7, e)


@triton.jit
def arguments(Bounds, Out, far, near, one, minus, flag, declared: tl.int64, plain):
    typed(Out, 0, far * near)
    typed(Out, 1, near * near)
    typed(Out, 2, tl.program_id(0) + far)
    typed(Out, 3, tl.load(Bounds).to(tl.int8) * one)
    typed(Out, 4, tl.load(Bounds).to(tl.int8) * near)
    typed(Out, 5, minus // near)
    typed(Out, 6, minus % near)
    typed(Out, 7, minus // 2)
    typed(Out, 8, declared * 2000000000)
    typed(Out, 9, tl.cdiv(far, near))
    typed(Out, 10, tl.cdiv(minus, near))
    typed(Out, 11, tl.program_id(0) * tl.load(Bounds))
    typed(Out, 12, tl.num_programs(0) * 2147483647 * near)
    typed(Out, 13, tl.load(Bounds + 1).to(tl.int8) + plain)
    if flag:
        typed(Out, 14, near)
    else:
        typed(Out, 14, far)


unspecialized = triton.jit(arguments.fn, do_not_specialize=["one", "plain"])


@triton.jit
def clipped(x, BOUND):
    if x > BOUND:
        x = BOUND
    return x


@triton.jit
def squared(x, TWICE: tl.constexpr = False):
    y = x * x
    return y * 2 if TWICE else y


@triton.jit
def branches(Bounds, Out, far, near):
    start = tl.load(Bounds)
    typed(Out, 0, min(near, start))
    typed(Out, 1, max(near, 3))
    typed(Out, 2, min(2, 3) + near)
    typed(Out, 3, near if near > 2 else 0)
    typed(Out, 4, (1 if near > 2 else 0) + start.to(tl.int8))
    if near > 2 and not start < 0:
        typed(Out, 5, near * 2)
    if start < 0 or near > 2:
        typed(Out, 6, squared(near, True))
    typed(Out, 7, squared(near * 20000))
    x = near
    if far > start - 1:
        x = near + 1
    elif near == 2:
        x = near + 2
    else:
        x = near + 3
    typed(Out, 8, x)
    assert near == -1  # a kernel is compiled without its assertions
    typed(Out, 9, near * (7 // 2 - (-7) // 2 + (-7) % 4))  # constants follow Python
    typed(Out, 10, tl.where(near > 2, near, start))
    typed(Out, 11, clipped(near, near - 2))
    BLOCK: tl.constexpr = 2 * 8
    typed(Out, 12, tl.sum(tl.arange(0, BLOCK), 0))
    typed(Out, 13, ~near)
    typed(Out, 14, -(near > 2).to(tl.int32))


@triton.jit
def masks(X, Out, n, half, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    inside = i < n and i > half
    outside = i < half or not (i < n)
    tl.store(Out + i, tl.where(inside, 1, 0) + tl.where(outside, 2, 0) + tl.where(not inside, 4, 0))
    tl.store(Out + N + i, tl.load(X + i, mask=inside, other=-7))
    tl.store(Out + 2 * N + i, x * (2 if n > half else 3), mask=outside)


@triton.jit
def undefined_load(X, Out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Out + i, tl.load(X + i, mask=i < 5))


@triton.jit
def pointers(X, Out, far, near):
    base = X.to(tl.int64)
    tl.store(Out, (X + far).to(tl.int64) - base)
    tl.store(Out + 1, (X + near * 1000000000).to(tl.int64) - base)
    tl.store(Out + 2, (X + tl.full([], 200, tl.uint8)).to(tl.int64) - base)
    tl.store(Out + 3, (X + tl.full([], -56, tl.int8)).to(tl.int64) - base)
    tl.store(Out + 4, (X + tl.full([], 4000000000, tl.uint32)).to(tl.int64) - base)
    tl.store(Out + 5, (X - near).to(tl.int64) - base)
    tl.store(Out + 6, (X + (tl.program_id(0) - 1) * far).to(tl.int64) - base)
    tl.store(Out + 7, (X + 3000000000).to(tl.int64) - base)


PROGRAMS = [
    Program("loops", loops, (LOST,), (("int64", 39),), {"far": FAR, "near": 5, "one": 1, "negative": -1, "BLOCK": 4}),
    Program("loops_wide_step", loops, (LOST,), (("int64", 39),),
            {"far": -FAR, "near": 4, "one": 2, "negative": -3, "BLOCK": 16}),
    Program("whiles", whiles, (LOST,), (("int64", 24),), {"far": FAR, "near": 5, "one": 1, "BLOCK": 4}),
    *(Program(name, kernel, (LOST,), (("int64", 45),),
              {"far": FAR, "near": 3, "one": 1, "minus": -7, "flag": True, "declared": 3, "plain": 1}, grid=1)
      for name, kernel in (("arguments", arguments), ("arguments_unspecialized", unspecialized))),
    Program("arguments_others", arguments, (LOST,), (("int64", 45),),
            {"far": 2**31, "near": 70000, "one": 5, "minus": -1, "flag": False, "declared": 1, "plain": 300}),
    Program("branches", branches, (LOST,), (("int64", 45),), {"far": FAR, "near": 5}),
    Program("branches_other", branches, (LOST,), (("int64", 45),), {"far": 5, "near": 2}),
    Program("masks", masks, (tensor("int32", range(N)),), (("int32", 3 * N),), {"n": 50, "half": 20, "N": N}),
    Program("load_without_other", undefined_load, (tensor("int32", range(1, N + 1)),), (("int32", N),), {"N": N},
            undefined="a masked load without `other`: the elements are undefined"),
    Program("pointers", pointers, (tensor("float32", [1.0]),), (("int64", 8),), {"far": FAR, "near": 3}),
]  # fmt: skip
