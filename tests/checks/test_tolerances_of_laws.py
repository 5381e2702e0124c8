"""Tolerances of the laws from both sides, as in `test_tolerances`: two runs near a case, of which one is off."""

from dataclasses import replace

import numpy as np
import pytest
from counted import (
    ATOMIC,
    C2,
    DTYPES,
    DX,
    GROUPS,
    PASSED,
    PLAIN,
    PRODUCTS,
    QUIET,
    RHO,
    ROOT,
    SPEC,
    SUM,
    TWO_PASS,
    U,
    X,
    case_of,
    half,
    one_off,
    run_of,
)

from verify_norm.cases import make
from verify_norm.checks.relations import symmetries


@pytest.fixture
def law_finds(monkeypatch):
    """Whether a law finds an output that is off by so much in its first further run alone."""

    def found(law, op, output, spec, contract, error, **values):
        run, calls = run_of(case_of(spec, op, contract, **values), contract), []

        def nearby(run, exact, spec=None, *, truth=False):
            built = make.build(
                spec or run.case.spec, run.case.op, contract, "cpu", {**run.case.exact, **exact}, truth=True
            )
            values = [np.ravel(case.expected[output].value)[0] for case in (built, run.case)]
            calls.append(abs(values[0] / values[1]) if law.startswith("scale") else 1.0)
            outwards = np.copysign(error, values[0]) * calls[0] if len(calls) == 1 else 0.0
            off = one_off(built.expected[output].value.shape, outwards)
            return run_of(built, contract, **{output: off})

        monkeypatch.setattr(symmetries, "nearby", nearby)
        (equation,) = (e for e in symmetries.LAWS[law](run) if e.output == output)
        return bool(equation.ratio.max() > 1)

    return found


LAWS = {  # law, operator, output: roundings of float32, sizes of what is rounded last, spec, contract
    ("scale", "layernorm_fwd", "y"): (2 * (ROOT + 2), (1, 1), PLAIN, TWO_PASS),
    ("scale", "layernorm_fwd", "rstd"): (2 * ROOT, (1, 1), PLAIN, TWO_PASS),
    ("scale", "rmsnorm_fwd", "y"): (2 * (ROOT + 1), (1, 1), PLAIN, TWO_PASS),
    ("scale", "layernorm_fp8_fwd", "amax"): (2 * (ROOT + 2), (1, 1), PLAIN, TWO_PASS),
    ("scale", "groupnorm_silu_fwd", "y"): (2 * (1.0998 * (ROOT + 2) + 2.86), (0.27, 0.27), GROUPS, TWO_PASS),
    ("scale", "layernorm_bwd", "dx"): (2 * (DX + ROOT + 6), (1, 1), PLAIN, TWO_PASS),
    ("scale", "add_layernorm_bwd", "dx"): (2 * (3 * 1000 + DX + ROOT + 6), (1000, 1000), PLAIN, TWO_PASS, PASSED),
    ("scale", "layernorm_bwd", "dweight"): (2 * (PRODUCTS + 4 * ROOT), (4, 4), SPEC, TWO_PASS),
    ("scale", "layernorm_bwd", "dbias"): (0, (), SPEC, TWO_PASS),
    ("scale_dy", "layernorm_bwd", "dx"): (0, (), SPEC, TWO_PASS),
    ("scale_dy", "layernorm_bwd", "dweight"): (2 * PRODUCTS, (4, 4), SPEC, ATOMIC),
    ("scale_dy", "layernorm_bwd", "dbias"): (2 * SUM, (4, 4), SPEC, ATOMIC),
    ("scale", "layernorm_fwd", "rstd "): (2 * ROOT, (1, 1), PLAIN, replace(TWO_PASS, stats="bfloat16")),
    ("linearity", "layernorm_bwd", "dx"): (2 * (DX + 6), (1, 1), PLAIN, TWO_PASS),
    ("linearity", "add_layernorm_bwd", "dx"): (2 * 3 * 1000, (1000, 500), PLAIN, TWO_PASS, PASSED),
    ("linearity", "add_rmsnorm_bwd", "dx"): (2 * 2 * 1000, (1000, 500), PLAIN, TWO_PASS, PASSED),
    ("linearity", "layernorm_bwd", "dweight"): (2 * PRODUCTS, (4, 2, 2), SPEC, TWO_PASS),
    ("linearity", "layernorm_bwd", "dbias"): (2 * SUM, (4, 2, 2), SPEC, TWO_PASS),
    ("shift", "layernorm_fwd", "y"): (C2 + 2 * C2 + 2 * (RHO + 2), (1, 1), PLAIN, TWO_PASS),
    ("shift", "layernorm_fwd", "rstd"): (2 * RHO, (1, 1), PLAIN, TWO_PASS),
    ("shift", "layernorm_fwd", "mean"): (C2 + 2 * C2, (2,), PLAIN, TWO_PASS),
    ("permutation", "layernorm_fwd", "y"): (0, (), PLAIN, replace(TWO_PASS, batch_invariant=True)),
    ("permutation", "layernorm_fwd", "rstd"): (2 * RHO, (1, 1), PLAIN, TWO_PASS),
    ("permutation", "layernorm_fwd", "y "): (2 * (C2 + RHO + 2), (1, 1), PLAIN, TWO_PASS),
    ("permutation", "layernorm_bwd", "dweight"): (2 * PRODUCTS, (4, 4), SPEC, replace(TWO_PASS, batch_invariant=True)),
    ("permutation", "layernorm_bwd", "dweight "): (2 * (4 * (C2 + RHO) + PRODUCTS), (4, 4), SPEC, TWO_PASS),
    ("permutation", "layernorm_bwd", "dbias"): (2 * SUM, (4, 4), SPEC, TWO_PASS),
    ("permutation", "layernorm_fp8_fwd", "amax"): (0, (), SPEC, replace(TWO_PASS, batch_invariant=True)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("law", "op", "output"), LAWS)
def test_a_law(law_finds, law, op, output, dtype):
    roundings, last, spec, contract, *values = LAWS[law, op, output]
    output = output.strip()
    form = contract.stats if output in ("rstd", "mean") else "float32" if output == "amax" else dtype
    tolerance = roundings * U + sum(half(form, size) for size in last)
    near = 0.7 if law == "linearity" else 0.93  # which elements are in which half is drawn
    for share, found in ((near, tolerance == 0), (1 / near, True)):
        error = share * (tolerance or 2.0**-40)
        assert law_finds(law, op, output, replace(spec, dtype=dtype), contract, error, **dict(*values)) == found, (
            share,
            tolerance,
        )


def test_a_law_of_subnormal_numbers(monkeypatch):
    """dx of 2⁻²² is subnormal in float16, and 2¹⁰ times as much is not."""
    run = run_of(case_of(replace(PLAIN, dtype="float16"), "layernorm_bwd", dy=QUIET * 2.0**-22))
    for error, found in ((2.0**-25, False), (1.5 * 2.0**-25, True)):

        def nearby(run, exact, error=error):
            off = one_off(X.shape, error * 2.0**10)
            return run_of(
                make.build(run.case.spec, run.case.op, TWO_PASS, "cpu", {**run.case.exact, **exact}, truth=True), dx=off
            )

        monkeypatch.setattr(symmetries, "nearby", nearby)
        (equation,) = symmetries.scale_dy(run)
        assert bool(equation.ratio.max() > 1) == found
