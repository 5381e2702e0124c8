"""The kernels that prove, at every start, what the patches promise; only an interpreter that is on may import them."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def cast(X, Explicit, Stored):
    """Convert 256 numbers to the type of the outputs: by a cast, and by a store."""
    i = tl.arange(0, 256)
    x = tl.load(X + i)
    tl.store(Explicit + i, x.to(Explicit.dtype.element_ty))
    tl.store(Stored + i, x)


@triton.jit
def loops(Out, far, near, big):
    """Store what a loop of each kind computes, and the width of a loop's variable."""
    start = tl.program_id(0) + far
    for t in range(start, start + near, near):
        tl.store(Out, t + tl.program_id(0))
        tl.store(Out + 5, (t + tl.program_id(0)).dtype.primitive_bitwidth - 32)
    for t in tl.range(start, start - 1, -7):
        tl.store(Out + 1, t)
    u, end = start, far + 2 * near
    while u < end:
        u += near
    tl.store(Out + 2, u)
    for t in range(2, 3):
        tl.store(Out + 3, t * big)
    for t in tl.static_range(7, 8):
        tl.store(Out + 4, t)
