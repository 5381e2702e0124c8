"""Kernels compile for sm_90, which needs no GPU: the interpreter accepts much that the compiler does not.

The tests also look for vector loads and, in kernels of rows, for spilled registers: without the first, or with the
second, a kernel is right and slow.
"""

import os
import subprocess
import sys

import pytest

# Each runs in a process of its own, since this one may interpret.
COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {"eps": "fp32", "offset": "fp32", "Lock": "*i32", "Table": "*i64"}
TYPES |= dict.fromkeys(("Mean", "Rstd", "DW", "DB", "Lines", "Scale", "Most"), "*fp32")
TYPES |= dict.fromkeys(("X", "R", "H", "Y", "W", "B", "DX", "DY", "DH", "Out"), "*bf16")
TYPES |= dict.fromkeys(("Gate", "DG", "Factor", "Shift", "Cos", "Sin"), "*bf16")

def build(kernel, constants, absent, warps=8):
    constants = {k: v for k, v in (constants | dict.fromkeys(absent)).items() if k in kernel.arg_names}
    types = {p.name: "constexpr" if p.name in constants else p.annotation_type or TYPES.get(p.name, "i64")
             for p in kernel.params}
    return compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
"""

ALL = """
from verify_norm.running import delayed_inputs
from verify_norm.kernels.rows import long
from verify_norm.kernels.variants import groupnorm_welford, layernorm_locked

for flag, absent in ((True, ()), (False, ("W", "B"))):
    build(layernorm_locked._dx_and_locked_sums, {"K": layernorm_locked.Constants(flag, 4, 1024)}, absent)
    build(groupnorm_welford._forward, {"K": groupnorm_welford.Constants(flag, 1024)}, absent)
plain = ("offset", "Scale", "Most")
for vec, absent in ((8, plain), (1, ("W", "B", "R", "H", "Mean", "DH", *plain))):
    build(long._forward, {"K": long.LongConstants(vec, 1024)}, absent)
    build(long._dx, {"K": long.LongConstants(vec, 1024)}, absent)
    build(long._partials, {"K": long.PartialsConstants(vec, 1024, True, vec > 1, 4)}, absent)
TYPES["Y"] = "*fp8e5"
build(long._forward, {"K": long.LongConstants(8, 1024)}, ("R", "H", "offset"))
build(delayed_inputs.arrive, {"EARLY": True, "DELAY": delayed_inputs.DELAY, "BLOCK": delayed_inputs.BLOCK}, ())
print("compiled")
"""

AS_H200 = """
from verify_norm.kernels import launch

launch.multiprocessors, launch.shared_memory, launch.ptx = lambda d: 132, lambda d: 232448, lambda d: True
launch.room = lambda d: launch.H200
"""

ROWS = """
import re, subprocess, tempfile
import torch, triton
from verify_norm.kernels.rows import plan as row_plan
from verify_norm.kernels.rows import rotation_launch

H200, BF16 = torch.device("cuda", 0), torch.bfloat16

def look(title, plan, absent, spare=8):  # an address kept for after the loop
    kernel = build(plan.kernel, {"K": plan.constants}, absent, plan.options["num_warps"])
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
    look(title, plan, (*absent, "Factor", "Shift", *(() if "8 bits" in title else ("Scale", "Most"))))

def backward(title, n, added, centered, offset, *absent, weight=BF16):
    TYPES["W"] = "*bf16" if weight == BF16 else "*fp32"
    plan = row_plan.backward_plan(H200, n, 8, BF16, weight, added, centered, offset, True, True, centered)
    look(title, plan, absent, 16 if plan.constants.RAW and n == 16384 else 8)  # there no register is free

for n in (768, 1024, 8192):
    forward(f"forward {n}", n, 8, BF16, False, True, False, "R", "H", "offset")
forward("forward with a residual", 4096, 8, None, True, False, True, "B", "Mean")
forward("forward one by one", 1023, 1, BF16, False, True, False, "R", "H", "offset")
for TYPES["Y"] in ("*fp8e4nv", "*fp8e5"):
    forward("forward into 8 bits", 4096, 8, BF16, False, True, False, "R", "H", "offset")
for n in (1024, 3072, 6144, 7168, 8192, 12288, 16384):
    backward(f"backward {n}", n, False, True, False, "DH", "offset")
backward("backward alone", 1024, False, True, False, "DH", "offset", "Lines")
backward("backward without a mean", 16384, False, False, True, "DH", "Mean")
backward("backward with an addition", 12288, True, True, False, "offset")
backward("backward of a float32 weight", 12288, False, True, False, "DH", "offset", weight=torch.float32)
backward("backward of a float32 weight", 16384, False, True, False, "DH", "offset", weight=torch.float32)
for n in (768, 4096, 16384):
    plan = row_plan.backward_plan(H200, n, 8, BF16, BF16, True, True, False, True, False, False)
    look(f"backward without sums {n}", plan, ("Lines", "DW", "DB", "offset"))
for form, n, residual, *absent in (
    ("gate", 4096, True, "H", "Factor", "Shift", "Most"),
    ("l2", 4096, False, "W", "R", "H", "Factor", "Shift", "Most"),
    ("rows", 4096, True, "Factor", "Shift"),
    ("rows", 8192, True, "Factor", "Shift"),
    ("rows", 4096, False, "R", "H", "Factor", "Shift"),
    ("rows", 8192, False, "R", "H", "Factor", "Shift"),
    ("group128", 4096, True, "Factor", "Shift"),
    ("group64", 8192, True, "Factor", "Shift"),
    ("", 4096, False, "R", "H", "Most"),
):
    TYPES |= {"Y": "*fp8e4nv" if form in ("rows", *row_plan.GROUPS) else "*bf16", "W": "*bf16"}
    quantized = None if row_plan.scales(form, n) is None else torch.float8_e4m3fn
    plan = row_plan.forward_plan(H200, n, 8, BF16, BF16, None, residual, not form, False, quantized, form)
    look(f"form {form} {n}", plan, (*absent, "B", "Scale", "offset", *(("Mean",) if form else ())))
for n in (3072, 4096, 8192):
    plan = row_plan.forward_plan(H200, n, 8, BF16, BF16, BF16, False, True, False, None, "", BF16, BF16, True)
    look(f"modulated {n}", plan, ("R", "H", "Scale", "Most", "offset"))
for n in (768, 4096, 8192):
    look(f"gated backward {n}", row_plan.gated_plan(H200, n, 8, BF16, BF16, False), ("offset",))
for n, half, interleaved in ((128, 64, False), (128, 32, False), (128, 64, True)):
    for way in (False, True):
        how = (H200, n, half, 32, 8, BF16, BF16, BF16, False, interleaved, way)
        look(f"{'back' * way}turned {n} {2 * half}", rotation_launch.rotation_plan(*how), ("offset",))
look("fold", row_plan.fold_plan(H200, False, 4, BF16, BF16), ())
"""

GROUPS = """
import re
from verify_norm.kernels.groups.chain import KERNELS

TYPES |= dict.fromkeys(("P", "C1", "C2"), "*fp32") | dict.fromkeys(("OutW", "OutB"), "*bf16")
TYPES |= dict.fromkeys(("RM", "RV"), "*bf16") | {"momentum": "fp32"}
ALONE = ("RM", "RV", "momentum")
BLOCK = {"BLOCK_G": 1, "BLOCK_C": 4, "BLOCK_S": 1024, "BLOCK_M": 128, "STAGES": 3, "COLS": 4, "PTX": True,
         "WIDE": 1, "BLOCKS": 2, "COMPUTED": 2, "LINES": 64, "ONCE": True, "EVICT": "evict_first", "CHANNELS": 4,
         "OWN": False}
READING = ("whole", "held", "sums", "turn")  # x, in vectors

for inner, act, short in (("positions", "silu", ""), ("channels", "gelu", "channels"), ("", None, "positions")):
    vec = 8 if inner == "positions" else 4 if inner else 1
    even = not short
    constants = BLOCK | {"INNER": inner, "ACT": act, "EVEN": even, "SHORT": short, "STREAM": not even, "SUMS": even,
                         "VEC": vec}
    for name, (kernel, form) in KERNELS.items():
        reads = name.endswith(READING)
        constants |= {"RANKS": 64 if even or not reads else 0, "MANY": 2 if name.endswith("merge") else 1}
        values = form(**{field: constants[field] for field in form.__dataclass_fields__})
        absent = (*ALONE, *(() if act else ("W", "B", "DW", "DB", "OutW", "OutB")))
        absent += ("eps",) if name.startswith("backward") else ()
        text = build(kernel, {"K": values}, absent, 4).asm["ptx"]
        if inner and reads:  # 16 bytes a load, or 8
            wide = "v4" if vec == 8 else "v2"
            assert re.search(r"ld\\.global\\S*" + wide + r"|cp\\.async\\.c[ag]\\S* \\[.*, 0x(8|10)", text), name
            assert re.search(r"st\\.global\\S*" + wide, text) or name.endswith("sums"), name
        if name.endswith("turn"):
            assert "griddepcontrol.wait" in text and "griddepcontrol.launch_dependents" in text

# BatchNorm: statistics that move in training, those that stay in evaluation
constants |= {"OWN": True, "ACT": None, "INNER": "positions", "VEC": 8, "SHORT": "positions", "EVEN": False,
              "SUMS": False, "RANKS": 64}
for name, (kernel, form) in KERNELS.items():
    constants["MANY"] = 2 if name.endswith("merge") else 1
    values = form(**{field: constants[field] for field in form.__dataclass_fields__})
    forms = (("eps",), ()) if name.startswith("backward") else ((), ("momentum", *(("P",) if "turn" in name else ())))
    for absent in forms[:1] if name.endswith("merge") else forms:
        build(kernel, {"K": values}, absent, 4)
print("compiled")
"""

# What kernels launch in the corner cases, as far as Triton's own front end: it is what refuses an argument of None.
LAUNCHES = """
import contextlib, inspect, math
from triton._C.libtriton import ir
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, mangle_type
from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.ops import OPS
from verify_norm.kernels import KERNELS
from verify_norm.loading.registry import load

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(TARGET)
built = set()

def front_end(self, *arguments, grid, warmup, **named):
    own = {p.name for p in self.params}
    options = BACKEND.parse_options({name: value for name, value in named.items() if name not in own})
    given = inspect.signature(self.fn).bind(*arguments, **{n: v for n, v in named.items() if n in own}).arguments
    constants = {(p.num,): given[p.name] for p in self.params if p.is_constexpr or given[p.name] is None}
    types = {p.name: "constexpr" if (p.num,) in constants else p.annotation_type or mangle_type(given[p.name])
             for p in self.params}
    key = self.fn, *types.items(), *constants.items()
    if key not in built:
        context = ir.context()
        ir.load_dialects(context)
        BACKEND.load_dialects(context)
        codegen = BACKEND.get_codegen_implementation(options)
        ASTSource(self, types, constants).make_ir(TARGET, options, codegen, BACKEND.get_module_map(), context)
        built.add(key)

JITFunction.run = front_end
for name in (kernel.name for kernel in KERNELS if kernel.backend == "triton"):
    kernel, before = load(name), len(built)
    for spec in map(kernel.fitted, corners(OPS[kernel.op], KERNEL_DTYPES)):
        if math.prod(spec.shape) < 2**18 and not kernel.refuses(spec):
            case = make.case(spec, OPS[kernel.op], kernel.contract)
            with contextlib.suppress(ValueError):  # what it refuses: rows that are too long
                kernel.run(**make.named(kernel.run, case.arguments))
    print(name, len(built) - before)
"""


def run(code, folder):
    script = folder / "build.py"
    script.write_text(code)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_compiles_for_a_gpu(tmp_path):
    assert run(COMPILE + ALL, tmp_path) == "compiled\n"


@pytest.mark.nightly
@pytest.mark.slow
def test_every_launch_passes_the_compilers_front_end(tmp_path):
    launches = dict(line.split() for line in run(COMPILE + AS_H200 + LAUNCHES, tmp_path).splitlines())
    assert len(launches) > 30
    assert all(int(count) > 10 for count in launches.values())


@pytest.mark.nightly
@pytest.mark.slow
def test_groups_are_loaded_in_vectors(tmp_path):
    assert run(COMPILE + GROUPS, tmp_path) == "compiled\n"


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_are_loaded_in_vectors_and_held_in_registers(tmp_path):
    ahead, staged = "cp.async.bulk.prefetch", "cp.async.cg.shared.global"
    assert run(COMPILE + AS_H200 + ROWS, tmp_path).splitlines() == [
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
        f"backward alone, in registers, {staged}",
        f"backward without a mean, in registers, {ahead}",
        f"backward with an addition, in registers, {staged}",
        f"backward of a float32 weight, in registers, {staged}",
        f"backward of a float32 weight, in registers, {ahead}",
        *(f"backward without sums {n}, in registers, {ahead}" for n in (768, 4096, 16384)),
        *(
            f"form {form}, in registers, {ahead}"
            for form in (
                "gate 4096",
                "l2 4096",
                *["rows 4096", "rows 8192"] * 2,
                "group128 4096",
                "group64 8192",
                " 4096",
            )
        ),
        *(f"modulated {n}, in registers, {ahead}" for n in (3072, 4096, 8192)),
        *(f"gated backward {n}, in registers, {staged}" for n in (768, 4096)),
        f"gated backward 8192, in registers, {ahead}",
        *(f"{way}turned 128 {turned}, in registers" for turned in (128, 64, 128) for way in ("", "back")),
        "fold, in registers, griddepcontrol.wait",
    ]
