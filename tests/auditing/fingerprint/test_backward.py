"""Probes of a backward pass, each alone: where its statistics come from, their precision, and the rounding of x̂."""

import emulations as em
import pytest

from verify_norm.auditing.fingerprint import backward
from verify_norm.auditing.fingerprint.rig import Rig
from verify_norm.auditing.fingerprint.statement import UNDECIDED


def rig(run=None, **how):
    return Rig(em.kernel("layernorm_bwd", run or em.layernorm_bwd(**how)), "cpu")


def said(statements):
    return {s.name: s.said for s in statements}


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "value"), [(False, "given"), (True, "recomputed")])
def test_dx_follows_the_given_statistics_or_does_not(recompute, value):
    assert said(backward.source(rig(recompute=recompute))) == {"statistics source": value}


def test_a_dx_that_is_neither_is_undecided():
    right = em.layernorm_bwd()

    def doubled(dy, x, weight, mean, rstd, eps):
        dx, *others = right(dy, x, weight, mean, rstd, eps)
        return 2 * dx, *others

    (statement,) = backward.source(rig(doubled))
    assert (statement.said, statement.confidence) == (UNDECIDED, 0.0)
    assert "dx[0] is 2 and 4" in statement.evidence


@pytest.mark.parametrize(
    ("how", "stats", "xhat"),
    [
        ({}, "float32", "not rounded"),
        ({"stats": "bfloat16"}, "bfloat16", "not rounded"),
        ({"early": "bfloat16"}, "float32", "rounded"),
    ],
)
def test_each_term_of_dweight_shows_what_was_rounded(how, stats, xhat):
    assert said(backward.terms(rig(**how), "float32")) == {"used statistics": stats, "xhat": xhat}


def test_terms_that_no_rounding_explains_are_undecided():
    right = em.layernorm_bwd()

    def off(dy, x, weight, mean, rstd, eps):
        dx, dweight, dbias = right(dy, x, weight, mean, rstd, eps)
        return dx, dweight * (1 + 2.0**-6), dbias

    assert said(backward.terms(rig(off), "float32")) == {"used statistics": UNDECIDED}
