"""Compares Triton's interpreter with a GPU: the bits of the same small programs, run on both.

    python benchmarks/interpreter.py --gpu --out benchmarks/results/interpreter.json    # on a GPU
    python benchmarks/interpreter.py                                                    # compares, where there is none

The first needs torch, NumPy and Triton, and nothing of verify_norm. `KNOWN` names the programs whose results differ for
a reason that is not mended; tests/running/interpreter/test_likeness.py holds the rest to the same bits.
"""

import argparse
import base64
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "interpreter.json"

KNOWN: dict[str, str] = {  # why each of these programs gives other results than a GPU
    "dot_tf32": "tensor cores drop 13 bits of float32, and the interpreter multiplies all of them",
    "cast_float8_e5m2_bfloat16": "Triton 3.6 takes infinity and NaN of e5m2 for the next numbers: 65536 and more",
}


def run(program: Any, device: str) -> list[bytes]:
    """Return the bytes of each output of a program."""
    import torch

    inputs = [value.to(device, copy=True) if isinstance(value, torch.Tensor) else value for value in program.inputs]
    types = [getattr(torch, dtype) for dtype, _ in program.outputs]
    sizes = [kind.itemsize * size for kind, (_, size) in zip(types, program.outputs, strict=True)]
    zeros = [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]
    outputs = [data.view(kind) for data, kind in zip(zeros, types, strict=True)]
    program.kernel[(program.grid,)](*inputs, *outputs, **program.constants)
    return [data.cpu().numpy().tobytes() for data in zeros]


def values(data: bytes, dtype: str) -> NDArray[Any]:
    """Return the numbers of an output, those of floating types in float64."""
    import torch

    bits = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(getattr(torch, dtype))
    return bits.double().numpy() if "float" in dtype else bits.numpy()


def unlike(dtype: str, got: bytes, want: bytes, ulp: float) -> NDArray[Any]:
    """Return the indices at which two outputs differ: any NaN is like any other, +0 is not −0.

    With `ulp` of float32, subnormals are 0, as some of PTX's approximations have it.
    """
    a, b = values(got, dtype), values(want, dtype)
    if "float" not in dtype:
        return np.flatnonzero(a != b)
    with np.errstate(all="ignore"):
        alike = ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
        if ulp:
            least = float(np.finfo(np.float32).tiny)
            spacing = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(np.abs(b), least))) - 23), 0)
            flushed = np.maximum(np.abs(a), np.abs(b)) <= least
            alike |= (np.abs(a - b) <= ulp * spacing) | flushed
    return np.flatnonzero(~alike)


def compare(program: Any, recorded: list[str] | str) -> list[str]:
    """Return a line for each output of the interpreted program that differs from the recorded one.

    `recorded` is in base64, or an error of the compiler.
    """
    if isinstance(recorded, str):
        return [f"a GPU gives no result: {recorded}"]
    lines = []
    for number, (got, want) in enumerate(zip(run(program, "cpu"), map(base64.b64decode, recorded), strict=True)):
        dtype = program.outputs[number][0]
        where = unlike(dtype, got, want, program.ulp)
        if where.size:
            i = where[0]
            pair = f"{values(got, dtype)[i]!r}, a GPU {values(want, dtype)[i]!r}"
            lines.append(f"output {number}: {where.size} elements differ, first [{i}]: interpreted {pair}")
    return lines


def measure(programs: list[Any]) -> dict[str, Any]:
    """Return the outputs of all programs on a GPU, and where it was."""
    import torch
    import triton

    outputs: dict[str, list[str] | str] = {}
    for program in programs:
        try:
            outputs[program.name] = [base64.b64encode(data).decode() for data in run(program, "cuda")]
        except Exception as error:  # a program that one version does not compile: the rest is worth having
            print(f"{program.name}: {type(error).__name__}: {str(error).splitlines()[-1]}", file=sys.stderr)
            outputs[program.name] = f"{type(error).__name__}: {error}"[:200]
    return {
        "device": torch.cuda.get_device_name(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": np.__version__,
        "programs": outputs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="run on a GPU and write --out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="programs whose names contain this")
    options = parser.parse_args()
    if not options.gpu:
        from verify_norm.running.interpreter import patch

        patch.enable()
    from interpreted import PROGRAMS  # Triton is not imported before its interpreter may be enabled

    programs = [program for program in PROGRAMS if options.only in program.name]
    if options.gpu:
        options.out.write_text(json.dumps(measure(programs), indent=0) + "\n")
        return 0
    recorded, differ = json.loads(options.out.read_text())["programs"], 0
    for program in programs:
        if not program.undefined and (lines := compare(program, recorded[program.name])):
            differ += program.name not in KNOWN
            print(f"{program.name}{' (known)' if program.name in KNOWN else ''}: {'; '.join(lines)}")
    print(f"{len(programs)} programs, {differ} with an unknown difference")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
