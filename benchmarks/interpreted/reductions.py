"""Reductions, scans, atomic operations, shapes and products of matrices."""

import triton
import triton.language as tl

from .program import FLOAT, N, Program, described, given, tensor


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
        _v, r = tl.max(x, AXIS, return_indices=True, keep_dims=True)
    elif OP == "xor_sum":
        r = tl.xor_sum(x, AXIS, keep_dims=True)
    elif OP == "larger":
        r = tl.reduce(x, AXIS, larger, keep_dims=True)
    elif OP == "largest_at":
        _v, r = tl.reduce((x, i), AXIS, largest_at, keep_dims=True)
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
    return Program(
        name + str(options.pop("mark", "")), reduced, (tensor(dtype, values),), outputs, constants, **options
    )


def atomic(op: str, dtype: str) -> Program:
    """Return the program of an atomic operation: the old values, then those in memory."""
    first, second = tensor(dtype, [abs(v) for v in SMALL]), tensor(dtype, [abs(v) for v in SMALL[3:] + SMALL[:3]])
    return Program(f"atomic_{op}_{dtype}", atomics, (first, second), ((dtype, 2 * N),), {"OP": op, "N": N})


COMMUTES = "tl.reduce takes the operands in an order of its own"
ORDER = "NaN is neither larger nor smaller: the order of the reduction decides"

PROGRAMS = [
    *(reducing(op, t, SMALL, out=out) for t in FLOAT for op, out in (("sum", t), ("max", "float32"),
      ("min", "float32"), ("argmax", "int32"), ("argmin", "int32"), ("max_at", "int32"), ("largest_at", "int32"))),
    *(reducing("larger", t, SMALL) for t in ("float32", "float16")),
    *(reducing(op, t, SMALL, out="int32") for t in ("int8", "int32") for op in ("sum", "max", "min", "argmax",
      "xor_sum", "largest_at")),
    *(reducing(op, "int64", SMALL) for op in ("sum", "max", "xor_sum")),
    reducing("sum", "uint8", [abs(v) * 20 for v in SMALL], out="int32"),
    reducing("sum", "bool", [v > 0 for v in SMALL], out="int32"),
    reducing("sum", "int32", [2**30] * N, mark="_wraps"),
    reducing("sum", "float16", HALVES, axis=None, mark="_rounds"),
    reducing("sum", "bfloat16", EIGHTHS, axis=None, mark="_rounds"),
    reducing("sum", "float32", HALVES, axis=None, mark="_exact"),
    *(reducing(op, t, SMALL, axis, out=out) for t in ("int32", "float32") for axis in (0, None)
      for op, out in (("sum", t), ("max", t), ("xor_sum" if t == "int32" else "min", t))),
    *(reducing(op, "int32", SMALL, axis=0) for op in ("argmax", *THREES)),
    *(reducing(op, "int32", SMALL) for op in THREES),
    *(reducing("affine", t, SMALL, undefined=COMMUTES) for t in ("int32", "int64")),
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
