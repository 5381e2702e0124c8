"""The stages of the rounding analysis: what a row shares cancels in sums, and two runs have more in common than one."""

from dataclasses import replace

from checking import ROWS, run_of
from norms import layernorm_bwd

from verify_norm.checks.relations.stages import stages, sum_error


def test_the_sums_allow_less_than_their_elements_do():
    run = run_of(layernorm_bwd(), replace(ROWS, shape=(4, 1024)), "layernorm_bwd")
    s, delta, dy = stages(run), run.case.expected["dx"].delta, run.case.exact["dy"]
    for phi in (0 * s.norm.xhat + 1, s.norm.xhat):
        elements = (abs(phi) * delta).sum(1, keepdims=True)
        assert (sum_error(s, dy, None, delta, phi) < 0.75 * elements).all()
