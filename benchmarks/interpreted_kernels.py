"""Small programs over the statements of a kernel, its arguments, reductions, atomics, shapes and memory.

See interpreted.py, which has the elementwise operations. A program of statements stores one integer in each element.
"""

import triton
import triton.language as tl

from interpreted import FLOAT, N, ORDER, Program, described, given, tensor  # isort: skip

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


@triton.jit
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def largest_at(v1, i1, v2, i2):
    left = v1 > v2 or (v1 == v2 and i1 < i2)
    return tl.where(left, v1, v2), tl.where(left, i1, i2)


@triton.jit
def reduced(X, Out, Kind, OP: tl.constexpr, AXIS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, 4)[:, None] * (N // 4) + tl.arange(0, N // 4)[None, :]
    x = tl.load(X + i)
    if OP == "sum":
        r = tl.sum(x, AXIS, keep_dims=True)
    elif OP == "max":
        r = tl.max(x, AXIS, keep_dims=True)
    elif OP == "min":
        r = tl.min(x, AXIS, keep_dims=True)
    elif OP == "argmax":
        r = tl.argmax(x, AXIS, keep_dims=True)
    elif OP == "argmin":
        r = tl.argmin(x, AXIS, keep_dims=True)
    elif OP == "max_at":
        v, r = tl.max(x, AXIS, return_indices=True, keep_dims=True)
    elif OP == "xor_sum":
        r = tl.xor_sum(x, AXIS, keep_dims=True)
    elif OP == "larger":
        r = tl.reduce(x, AXIS, larger, keep_dims=True)
    elif OP == "largest_at":
        v, r = tl.reduce((x, i), AXIS, largest_at, keep_dims=True)
    elif OP == "affine":
        r, s = tl.reduce((x, x + 1), AXIS, affine, keep_dims=True)
        r += s
    elif OP == "cumsum":
        r = tl.cumsum(x, AXIS)
    elif OP == "cumsum_back":
        r = tl.cumsum(x, AXIS, reverse=True)
    elif OP == "cumprod":
        r = tl.cumprod(x, AXIS)
    elif OP == "scan_larger":
        r = tl.associative_scan(x, AXIS, larger)
    elif OP == "scan_affine":
        r, s = tl.associative_scan((x, x + 1), AXIS, affine)
        r += s
    elif OP == "scan_affine_back":
        r, s = tl.associative_scan((x, x + 1), AXIS, affine, reverse=True)
        r += s
    described(r, Kind)
    tl.store(Out + i, tl.broadcast_to(r, [4, N // 4]))


@triton.jit
def atomics(P, V, Old, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(V + i)
    inside = i % 3 != 1
    if OP == "add":
        old = tl.atomic_add(P + i, v, mask=inside)
    elif OP == "max":
        old = tl.atomic_max(P + i, v, mask=inside)
    elif OP == "min":
        old = tl.atomic_min(P + i, v, mask=inside)
    elif OP == "and":
        old = tl.atomic_and(P + i, v, mask=inside)
    elif OP == "or":
        old = tl.atomic_or(P + i, v, mask=inside)
    elif OP == "xor":
        old = tl.atomic_xor(P + i, v, mask=inside)
    elif OP == "xchg":
        old = tl.atomic_xchg(P + i, v, mask=inside)
    elif OP == "cas":
        old = tl.atomic_cas(P + i, v, v + v)
    tl.store(Old + i, old, mask=inside)
    tl.debug_barrier()
    tl.store(Old + N + i, tl.load(P + i))


@triton.jit
def shapes(X, Out, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, 4)[:, None] * (N // 4) + tl.arange(0, N // 4)[None, :]
    x = tl.load(X + i)
    if OP == "trans":
        r = tl.trans(x)
    elif OP == "reshape":
        r = tl.reshape(x, [N // 4, 4])
    elif OP == "permute":
        r = tl.permute(tl.reshape(x, [4, 2, N // 8]), (2, 0, 1))
    elif OP == "join":
        r = tl.join(x, x + 1)
    elif OP == "split":
        a, b = tl.split(tl.reshape(x, [4, N // 8, 2]))
        r = a - b
    elif OP == "interleave":
        r = tl.interleave(x, -x)
    elif OP == "flip":
        r = tl.flip(tl.reshape(x, [N]), 0)
    elif OP == "expand":
        r = tl.expand_dims(tl.sum(x, 1), 1) + tl.expand_dims(tl.sum(x, 0), 0)
    elif OP == "broadcast":
        r = tl.broadcast_to(tl.sum(x, 0)[None, :], [8, N // 4])
    elif OP == "sort":
        r = tl.sort(tl.reshape(x, [N]))
    elif OP == "gather":
        r = tl.gather(tl.reshape(x, [N]), (tl.arange(0, N) * 5) % N, 0)
    elif OP == "property":
        r = x.T
    elif OP == "full":
        r = tl.full([N], 3, tl.int32) + tl.zeros([N], tl.int32)
    tl.store(Out + tl.arange(0, r.numel), tl.reshape(r, [r.numel]))


@triton.jit
def product(X, Y, Out, PRECISION: tl.constexpr, HALF: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    total = tl.dot(tl.load(X + at), tl.load(Y + at), input_precision=PRECISION,
                   out_dtype=tl.float16 if HALF else tl.float32)  # fmt: skip
    tl.store(Out + at, total)


SMALL = [(i * 7) % 23 - 11 for i in range(N)]  # with ties
HALVES = [2048.0, *[0.0] * 14, 1.0, 2.0**-12, *[0.0] * (N - 17)]  # float16: 2048 in every order; float32: more
EIGHTHS = [256.0, *[0.0] * 14, 1.0, 2.0**-9, *[0.0] * (N - 17)]  # the same in bfloat16
TINY = [(i % 5 - 2) / 8 for i in range(256)]  # products and sums are exact in TF32
FINE = [1 + 2.0**-12 * (i % 7) for i in range(256)]  # in TF32 they are not
THREES = ("cumsum", "cumsum_back", "cumprod", "scan_larger", "scan_affine", "scan_affine_back")


def reducing(op: str, dtype: str, values: object, axis: object = 1, out: str = "", **options: object) -> Program:
    """Return the program of a reduction or scan of 4×16 elements, broadcast to all of them."""
    name = f"{op}_{dtype}_{'all' if axis is None else axis}"
    constants = {"OP": op, "AXIS": axis, "N": N}
    outputs = ((out or dtype, N), ("int32", 4))
    return Program(name + str(options.pop("mark", "")), reduced, (tensor(dtype, values),), outputs, constants, **options)


def atomic(op: str, dtype: str) -> Program:
    """Return the program of an atomic operation: the old values, then those in memory."""
    first, second = tensor(dtype, [abs(v) for v in SMALL]), tensor(dtype, [abs(v) for v in SMALL[3:] + SMALL[:3]])
    return Program(f"atomic_{op}_{dtype}", atomics, (first, second), ((dtype, 2 * N),), {"OP": op, "N": N})


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
    *(reducing(op, t, SMALL, out=out) for t in FLOAT for op, out in (("sum", t), ("max", "float32"),
      ("min", "float32"), ("argmax", "int32"), ("argmin", "int32"), ("max_at", "int32"), ("largest_at", "int32"))),
    *(reducing("larger", t, SMALL) for t in ("float32", "float16")),
    *(reducing(op, t, SMALL, out="int32") for t in ("int8", "int32") for op in ("sum", "max", "min", "argmax", "xor_sum",
      "largest_at")),
    *(reducing(op, "int64", SMALL) for op in ("sum", "max", "xor_sum", "affine")),
    reducing("sum", "uint8", [abs(v) * 20 for v in SMALL], out="int32"),
    reducing("sum", "bool", [v > 0 for v in SMALL], out="int32"),
    reducing("sum", "int32", [2**30] * N, mark="_wraps"),
    reducing("sum", "float16", HALVES, axis=None, mark="_rounds"),
    reducing("sum", "bfloat16", EIGHTHS, axis=None, mark="_rounds"),
    reducing("sum", "float32", HALVES, axis=None, mark="_exact"),
    *(reducing(op, t, SMALL, axis, out=out) for t in ("int32", "float32") for axis in (0, None)
      for op, out in (("sum", t), ("max", t), ("xor_sum" if t == "int32" else "min", t))),
    *(reducing(op, "int32", SMALL, axis=0) for op in ("argmax", "affine", *THREES)),
    *(reducing(op, "int32", SMALL) for op in ("affine", *THREES)),
    *(reducing(op, t, [v % 4 for v in SMALL], out="float32" if t == "bfloat16" else t) for t in FLOAT
      for op in ("cumsum", "cumsum_back")),
    reducing("scan_larger", "float16", SMALL), reducing("cumsum", "int8", SMALL, out="int32"),
    *(reducing(op, t, given(t).nan_to_num(posinf=9.0, neginf=-9.0).tolist()[:31] + [float("nan"), 0.0, -0.0] * 11,
               out="float32", mark="_nan") for t in FLOAT for op in ("max", "min")),
    *(reducing(op, "float32", given("float32").tolist(), out="int32", mark="_nan", undefined=ORDER)
      for op in ("argmax", "argmin")),
    *(reducing(op, "float32", [0.0, -0.0, -0.0, 0.0] * 16, mark="_zeros") for op in ("max", "min", "sum")),
    *(atomic(op, t) for t in ("int32", "int64", "uint32") for op in ("add", "max", "min", "and", "or", "xor", "xchg",
      "cas")),
    *(atomic(op, "float32") for op in ("add", "max", "min", "xchg", "cas")),
    *(atomic("add", t) for t in ("float16", "bfloat16")),
    *(Program(f"shape_{op}", shapes, (tensor("int32", SMALL),), (("int32", 2 * N),), {"OP": op, "N": N})
      for op in ("trans", "reshape", "permute", "join", "split", "interleave", "flip", "expand", "broadcast", "sort",
                 "gather", "property", "full")),
    *(Program(f"dot_{t}", product, (tensor(t, TINY), tensor(t, TINY[::-1])), (("float32", 256),),
              {"PRECISION": "ieee" if t == "float32" else "tf32", "HALF": False}) for t in FLOAT),
    Program("dot_tf32", product, (tensor("float32", FINE), tensor("float32", FINE[::-1])), (("float32", 256),),
            {"PRECISION": "tf32", "HALF": False}),
    Program("dot_float16_sum", product, (tensor("float16", TINY), tensor("float16", TINY)), (("float16", 256),),
            {"PRECISION": "tf32", "HALF": True}),
]  # fmt: skip
