"""What the checks say of a function that stands for a kernel: in one case, or in a search."""

from norms import layernorm

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Run
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute
from verify_norm.search.search import search

ONE_WAY = {"mode": ways.QUICK, "call": ways.VALUES, "called": ways.AS_USUAL, "effect": ways.GROWTH,
           "series": ways.NEW_TENSORS}  # of further runs, as a drawn case has: all of them take a second  # fmt: skip
SPEC = CaseSpec(shape=(4, 6), dtype="bfloat16", **ONE_WAY)
ROWS = CaseSpec(shape=(16, 64), **ONE_WAY)
layernorm_fwd = layernorm("float64")  # more accurate than float32, and rounded once


def run_of(function, spec=ROWS, op="layernorm_fwd", **contract) -> Run:
    """Return one run of it; a keyword is a field of its contract."""
    kernel = Kernel("k", op, run=function, contract=Contract(**contract))
    return execute(kernel, make.case(spec, OPS[op], kernel.contract))


def findings(run, spec=SPEC, op="layernorm_fwd", **fields):
    """What all the checks say of one case, as (check, output)."""
    kernel = Kernel("k", op, run=run, **fields)
    result = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    checks = [c for c in CHECKS.values() if c.applies(OPS[op]) and c.looks(result)]
    found = [f for c in checks for f in c.function(result) if isinstance(f, Finding)]
    assert all(f.message and f.spec == spec for f in found)
    return {(f.check, f.output) for f in found}


def audit(run, op="layernorm_fwd", examples=50, **fields):
    report = search(Kernel("k", op, run=run, **fields), Settings(examples=examples, seconds=30))
    return {(f.check, f.output) for f in report.findings}
