"""Every kernel compiles for sm_90, which needs no GPU: the interpreter accepts much that the compiler does not."""

import os
import subprocess
import sys

# Runs in a process of its own, since this one may interpret.
COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from verify_norm.kernels import affine, groupnorm, groupnorm_welford, layernorm, layernorm_locked, rmsnorm

TYPES = {"eps": "fp32", "offset": "fp32", "Lock": "*i32"}
TYPES |= dict.fromkeys(("Mean", "Rstd", "DW", "DB", "Lines"), "*fp32")
TYPES |= dict.fromkeys(("X", "Y", "W", "B", "DX", "DY", "Out"), "*bf16")

def build(kernel, constants, absent):
    constants = {k: v for k, v in (constants | dict.fromkeys(absent)).items() if k in kernel.arg_names}
    types = {n: "constexpr" if n in constants else TYPES.get(n, "i32") for n in kernel.arg_names}
    compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})

for flag, absent in ((True, ()), (False, ("W", "B"))):
    for module in (layernorm, rmsnorm, groupnorm, layernorm_locked, groupnorm_welford):
        for name in ("_forward", "_dx", "_channel_sums", "_dx_and_locked_sums"):
            if kernel := getattr(module, name, None):
                sizes = {"BLOCK_M": 4, "BLOCK_N": 1024, "BLOCK": 1024, "UNIT": flag, "CHANNELS_INNER": flag}
                build(kernel, sizes, absent)
    build(affine._partials, {"BLOCK_M": 4, "BLOCK_N": 1024, "UNIT": flag}, absent and ("Mean", "DB"))
build(affine._fold, {"BLOCK_M": 16, "BLOCK_N": 128}, ())
print("compiled")
"""


def test_compiles_for_a_gpu(tmp_path):
    script = tmp_path / "build.py"
    script.write_text(COMPILE)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "compiled\n", done.stderr
