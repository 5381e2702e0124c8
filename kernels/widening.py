"""float32 values of what is kept in a narrower type."""

import triton.language as tl

from verify_norm.kernels.launch import jit


@jit
def wide(t, PTX: tl.constexpr):
    """Return float32 values: a bfloat16 is the high half of one. Two instructions convert a pair; Triton takes three.

    PTX says that the target has sm_90's instructions, which the interpreter and other GPUs have not.
    """
    if PTX and t.dtype == tl.bfloat16:
        asm: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        w = tl.inline_asm_elementwise(asm, "=f,=f,r", [t], dtype=tl.float32, is_pure=True, pack=2)
    else:
        w = t.to(tl.float32)
    return w


@jit
def anew(t, PTX: tl.constexpr):
    """Return `wide` of what stays in registers in its own type, converted again for every use.

    The compilers would convert it once and keep the float32 values for the next use, in twice the registers. They do
    not see that two of these instructions do the same, nor that these do the same as those of `wide`.
    """
    if PTX and t.dtype == tl.bfloat16:
        bf: tl.constexpr = "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;"
        w = tl.inline_asm_elementwise(bf, "=f,=f,r", [t], dtype=tl.float32, is_pure=False, pack=2)
    elif PTX and t.dtype == tl.float16:
        half: tl.constexpr = """{
            .reg .b16 low, high; .reg .b32 turned;
            prmt.b32 turned, $2, $2, 0x1032; mov.b32 {high, low}, turned;
            cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"""
        w = tl.inline_asm_elementwise(half, "=f,=f,r", [t], dtype=tl.float32, is_pure=False, pack=2)
    else:
        w = t.to(tl.float32)
    return w
