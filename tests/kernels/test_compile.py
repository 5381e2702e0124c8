"""Kernels compile for sm_90, which needs no GPU: the interpreter accepts much that the compiler does not.

Those of rows are also looked at: a vector load that is none, or a register that went to memory, is right and slow.
"""

import os
import subprocess
import sys

# Each runs in a process of its own, since this one may interpret.
COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from verify_norm import late
from verify_norm.kernels import groupnorm_welford, layernorm_locked, long_rows

TYPES = {"eps": "fp32", "offset": "fp32", "Lock": "*i32", "Table": "*i64"}
TYPES |= dict.fromkeys(("Mean", "Rstd", "DW", "DB", "Lines", "Scale", "Most"), "*fp32")
TYPES |= dict.fromkeys(("X", "R", "H", "Y", "W", "B", "DX", "DY", "DH", "Out"), "*bf16")

def build(kernel, constants, absent, warps=8):
    constants = {k: v for k, v in (constants | dict.fromkeys(absent)).items() if k in kernel.arg_names}
    types = {n: "constexpr" if n in constants else TYPES.get(n, "i64") for n in kernel.arg_names}
    return compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
"""

ALL = """
for flag, absent in ((True, ()), (False, ("W", "B"))):
    for module in (layernorm_locked, groupnorm_welford):
        for name in ("_forward", "_dx_and_locked_sums"):
            if kernel := getattr(module, name, None):
                sizes = {"BLOCK_M": 4, "BLOCK_N": 1024, "BLOCK": 1024, "UNIT": flag, "CHANNELS_INNER": flag}
                build(kernel, sizes, absent)
plain = ("offset", "Scale", "Most")
for vec, absent in ((8, plain), (1, ("W", "B", "R", "H", "Mean", "DH", *plain))):
    for kernel in (long_rows._forward, long_rows._dx, long_rows._partials):
        build(kernel, {"VEC": vec, "ROWS": 4, "CHUNK": 1024, "DWEIGHT": True, "DBIAS": vec > 1}, absent)
TYPES["Y"] = "*fp8e5"
build(long_rows._forward, {"VEC": 8, "CHUNK": 1024}, ("R", "H", "offset"))
build(late.arrive, {"EARLY": True, "DELAY": late.DELAY, "BLOCK": late.BLOCK}, ())
print("compiled")
"""

ROWS = """
import re, subprocess, tempfile
import torch, triton
from verify_norm.kernels import row_plan

row_plan.multiprocessors, row_plan.shared_memory, row_plan.ptx = lambda d: 132, lambda d: 232448, lambda d: True
H200, BF16 = torch.device("cuda", 0), torch.bfloat16

def look(title, plan, absent, spare=8):  # an address kept for after the loop
    constants = dict(plan.constants)
    constants.pop("launch_pdl", None)
    kernel = build(plan.kernel, constants, absent, constants.pop("num_warps"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ptx = kernel.asm["ptx"]
    stack = int(re.search("STACK:([0-9]+)", usage)[1])
    words = ["in registers" if stack <= spare else f"{stack} bytes on the stack"]
    if re.search(r"(ld|st)\\.global[.a-z0-9:]*\\.b16", ptx):
        words.append("16 bits at a time")
    special = ("cp.async.cg.shared.global", "cp.async.bulk.prefetch", "griddepcontrol.wait")
    words += [word for word in special if word in ptx]
    print(title, *words, sep=", ")

def forward(title, n, vec, bias, residual, centered, offset, *absent):
    plan = row_plan.forward_plan(H200, n, vec, BF16, BF16, bias, residual, centered, offset)
    look(title, plan, absent if "8 bits" in title else (*absent, "Scale", "Most"))

def backward(title, n, added, centered, offset, *absent, weight=BF16):
    TYPES["W"] = "*bf16" if weight == BF16 else "*fp32"
    plan = row_plan.backward_plan(H200, n, 8, BF16, weight, added, centered, offset, True, True, centered)
    look(title, plan, absent, 16 if plan.constants["RAW"] and n == 16384 else 8)  # there no register is free

for n in (768, 1024, 8192):
    forward(f"forward {n}", n, 8, BF16, False, True, False, "R", "H", "offset")
forward("forward with a residual", 4096, 8, None, True, False, True, "B", "Mean")
forward("forward one by one", 1023, 1, BF16, False, True, False, "R", "H", "offset")
for TYPES["Y"] in ("*fp8e4nv", "*fp8e5"):
    forward("forward into 8 bits", 4096, 8, BF16, False, True, False, "R", "H", "offset")
for n in (1024, 3072, 6144, 7168, 8192, 12288, 16384):
    backward(f"backward {n}", n, False, True, False, "DH", "offset")
backward("backward without a mean", 16384, False, False, True, "DH", "Mean")
backward("backward with an addition", 12288, True, True, False, "offset")
backward("backward of a float32 weight", 12288, False, True, False, "DH", "offset", weight=torch.float32)
backward("backward of a float32 weight", 16384, False, True, False, "DH", "offset", weight=torch.float32)
look("fold", row_plan.fold_plan(H200, False, 4, BF16, BF16), ())
"""


def run(code, folder):
    script = folder / "build.py"
    script.write_text(code)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compiles_for_a_gpu(tmp_path):
    assert run(COMPILE + ALL, tmp_path) == "compiled\n"


def test_rows_are_loaded_in_vectors_and_held_in_registers(tmp_path):
    ahead, staged = "cp.async.bulk.prefetch", "cp.async.cg.shared.global"
    assert run(COMPILE + ROWS, tmp_path).splitlines() == [
        f"forward 768, in registers, {ahead}",
        f"forward 1024, in registers, {ahead}",
        f"forward 8192, in registers, {ahead}",
        f"forward with a residual, in registers, {ahead}",
        "forward one by one, in registers, 16 bits at a time",
        f"forward into 8 bits, in registers, {ahead}",
        f"forward into 8 bits, in registers, {ahead}",
        f"backward 1024, in registers, {staged}",
        f"backward 3072, in registers, {staged}",
        f"backward 6144, in registers, {staged}",
        f"backward 7168, in registers, {staged}",
        f"backward 8192, in registers, {staged}",
        f"backward 12288, in registers, {staged}",
        f"backward 16384, in registers, {staged}",
        f"backward without a mean, in registers, {ahead}",
        f"backward with an addition, in registers, {staged}",
        f"backward of a float32 weight, in registers, {staged}",
        f"backward of a float32 weight, in registers, {ahead}",
        "fold, in registers, griddepcontrol.wait",
    ]
