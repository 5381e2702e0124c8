"""Cases are fitted to what a kernel takes: near, valid, of a size that can run, and then they stay."""

from math import prod

import pytest

from verify_norm.cases.corners import corners
from verify_norm.core import geometry, nearest, only
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

TEXTS = (
    *("ndim=2", "ndim=2,contiguous", "N%8=0", "N<=64", "N>=300", "N=2^k,N>=16", "N=768+1024", "M%4=0,M>=1", "M>=1"),
    *(
        "last%16=0",
        "bytes%16=0",
        "numel>=1",
        "B>=2",
        "weight_dtype=x",
        "aligned",
        "unit_stride=x",
        "eps>=1e-6,eps<=1e-5",
    ),
    "N%3=0,ndim=2,contiguous,weight,eps=1e-6",
)
GROUPED = ("C%32=0", "G=8", "G<=2,C%4=0", "ndim=4", "M=1", "N=2^k", "N%8=0,eps=1e-6")


@pytest.mark.parametrize("text", TEXTS)
def test_every_corner_case_of_rows_has_a_neighbour(text):
    _fits(text, OPS["layernorm_bwd"])


@pytest.mark.parametrize("text", GROUPED)
def test_every_corner_case_of_groups_has_a_neighbour(text):
    _fits(text, OPS["groupnorm_fwd"])


def _fits(text, op):
    for spec in corners(op, ("float32", "bfloat16")):
        fitted = nearest.fit(text, spec, op)
        assert only.refusal(text, fitted, op) is None, (spec, fitted)
        assert nearest.fit(text, fitted, op) == fitted
        assert geometry.refusal(fitted, op) is None or geometry.refusal(spec, op) is not None
        assert prod(fitted.shape) <= max(prod(spec.shape), 2 * nearest.ELEMENTS), (spec.shape, fitted.shape)
        if only.refusal(text, spec, op) is None and not spec.batch:
            assert fitted == spec, "a case that the kernel takes does not change"


@pytest.mark.parametrize(
    ("text", "shape", "near"),
    [
        ("N%8=0", (4, 30), (4, 32)),
        ("N<=16", (4, 30), (4, 16)),
        ("N=2^k", (4, 33), (4, 32)),
        ("ndim=2", (2, 3, 30), (6, 30)),
        ("ndim=3", (6, 30), (1, 6, 30)),
        ("M%4=0", (3, 30), (4, 30)),
        ("M>=4", (30,), (4, 30)),
        ("N>=99999999", (4, 30), (4, 30)),  # too large to run: the case is refused instead
    ],
)
def test_the_nearest_shape(text, shape, near):
    assert nearest.fit(text, CaseSpec(shape), OPS["rmsnorm_fwd"]).shape == near


def test_a_batch_meets_the_clauses_too():
    fitted = nearest.fit("M%4=0", CaseSpec((3, 8), batch=257), OPS["rmsnorm_fwd"])
    assert (fitted.shape, fitted.batch) == ((4, 8), 256)
    assert nearest.fit("M<=16", CaseSpec((3, 8), batch=257), OPS["rmsnorm_fwd"]).batch in (0, 16)
