"""What tests of tolerances share: data in which every magnitude is 1, runs that are off by so much, and counts."""

from dataclasses import replace

import numpy as np

from verify_norm.cases import make
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Output, Run
from verify_norm.core.spec import CaseSpec

DTYPES = ("float32", "float16", "bfloat16")
U = 2.0**-24
ROWS, N = 4, 8
X = np.tile([-1.0, 1.0], (ROWS, N // 2))
QUIET = np.tile([-1.0, -1.0, 1.0, 1.0], (ROWS, N // 4))  # dy without a mean, and without x̂ in it: dx is dy
STRICT, TWO_PASS = Contract(), Contract(variance="two_pass")
ATOMIC = Contract(deterministic=False, variance="two_pass")
SPEC = CaseSpec((ROWS, N), eps=1e-12)
PLAIN = replace(SPEC, weight=False, bias=False)


def half(dtype, size=1.0):
    """Half an ulp just above a number."""
    return 0.5 * float(FORMATS[dtype].ulp(np.array(size)))


def case_of(spec, op, contract=TWO_PASS, **values):
    """The case with x = ±1, dy = QUIET, a weight of 1 and a bias of 0."""
    exact = make.exact_inputs(spec, OPS[op])
    usual = {"x": X, "residual_out": X, "dy": QUIET, "weight": np.ones(N), "bias": np.zeros(N)} | values
    exact |= {name: usual[name] for name in exact if name in usual and exact[name] is not None}
    exact |= make.saved(spec, OPS[op], exact)
    return make.build(spec, OPS[op], contract, "cpu", exact, truth=True)


def run_of(case, contract=TWO_PASS, **off):
    """A run whose outputs are the truth, before any rounding, and off by so much."""
    outputs = {}
    for name, expected in case.expected.items():
        if expected is not None:
            got = expected.value + np.broadcast_to(off.get(name, 0.0), expected.value.shape)
            outputs[name] = Output(expected.dtype, got.shape, got, judge.ratio(got, expected))
    return Run(Kernel("k", case.op.name, run=lambda: None, contract=contract), case, outputs)


def one_off(shape, error):
    """An error of the first element alone."""
    off = np.zeros(shape)
    off.flat[0] = error
    return off


C2, C1 = N - 1 + 5, N + 5  # roundings of the sums over a row, their division and product: of terms, and of products
ROOT = 7  # a root, a division and the roundings under the root
RHO = (C1 + 2) / 2 + ROOT  # of rstd: half of the variance's, whose differences are squared, and the root's
DX = 2 + C2 + (2 + C1)  # g, c2, and c1 with those of x̂
SUM, PRODUCTS = 4 * 3, 4 * (4 + 2)  # of 4 rows: of dbias, and of dweight, whose x̂ has two roundings
PASSED = {"dresidual_out": 1000.0 * QUIET}  # what a fused addition adds to dx
GROUPS = replace(PLAIN, num_groups=1)
