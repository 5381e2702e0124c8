"""What is compared of a kernel between accelerators: the bits of its outputs in some cases, and its arithmetic."""

import hashlib
from collections.abc import Sequence
from contextlib import closing
from math import prod

from verify_norm.auditing.fingerprint.probing import fingerprint
from verify_norm.campaign.comparison import BITS, NONE
from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.core.errors import one_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute
from verify_norm.running.patience import LostError, Time
from verify_norm.running.runners import runner

CASES = 16
SIZES = range(64, 2**16)  # elements of x: enough to show an order of summation, few enough to be cheap
SECONDS = 240.0  # after which the kernel counts as lost


def traits(kernel: Kernel, dtype: str, device: str) -> dict[str, str]:
    """Return by name the bits of each output, as a digest for each case, and the statements of the fingerprint.

    A kernel that ends its process, or does not return, has one trait: how.
    """
    op = OPS[kernel.op]
    fitted = (kernel.fitted(spec) for spec in corners(op, (dtype,)) if prod(spec.shape) in SIZES)
    specs = [spec for spec in dict.fromkeys(fitted) if kernel.refuses(spec) is None][:CASES]
    with closing(runner(kernel, device, isolate=True)) as process:
        try:
            return process.call(of, Time(SECONDS), specs, device)
        except LostError as lost:
            return {"not compared": str(lost)}


def of(kernel: Kernel, specs: Sequence[CaseSpec], device: str) -> dict[str, str]:
    """Return the traits, in the process of the kernel."""
    op = OPS[kernel.op]
    bits: dict[str, list[str]] = {tensor.name: [] for tensor in op.outputs}
    for spec in specs:
        outputs = execute(kernel, make.build(spec, op, kernel.contract, device, make.exact_inputs(spec, op))).outputs
        for name, found in bits.items():
            output = outputs.get(name)
            found.append(hashlib.sha256(output.got.tobytes()).hexdigest()[:12] if output is not None else NONE)
    met = {f"{BITS}{name}": ",".join(found) for name, found in bits.items() if set(found) - {NONE}}
    try:
        stated = fingerprint(kernel, device).statements
    except Exception as error:  # of the kernel, on inputs that no case has
        return met | {"arithmetic": f"unknown: {one_line(error)}"}
    return met | {f"{one.name} ({one.dtype})": one.said for one in stated}
