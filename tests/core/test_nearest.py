"""Cases are fitted to what a kernel takes: near, valid, of a size that can run, and then they stay."""

import re
from math import prod

import pytest

from verify_norm.cases.corners import corners
from verify_norm.core import geometry, nearest, only
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.errors import UsageError
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
PARTIAL = "partial_rmsnorm_fwd"
QUARTER = CaseSpec((2, 3), rotary="quarter")
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
        ("N%7=0", (4, 37), (4, 35)),
        ("N=2^k", (4, 100), (4, 128)),
        ("N=1000", (4, 30), (4, 1000)),
        ("N>1000", (4, 30), (4, 1001)),
        ("N<1000", (4, 4000), (4, 999)),
        ("N<1000,N%8=0", (4, 4000), (4, 992)),
        ("N%3=0", (200000,), (200001,)),
        ("N%8=0", (300, 1007), (130, 1008)),  # a case that grows beyond ELEMENTS gets fewer rows
        ("N%8=0,M%13=0", (300, 1007), (130, 1008)),
        ("N%8=0,M%13=0", (300, 1008), (299, 1008)),
        ("ndim=2", (2, 150, 1008), (300, 1008)),
        ("N=200000,M>=1", (2, 8), (1, 200000)),
        ("numel>=64", (30,), (64,)),
        ("numel>=64", (4, 8), (8, 8)),
        ("M=7", (2, 3, 8), (7, 1, 8)),  # no number of rows of 3 is 7
        ("N>=4194304", (1, 8), (1, 4194304)),  # as large as a case may become
        ("N>=4194305", (1, 8), (1, 8)),
        ("N>=99999999", (4, 30), (4, 30)),  # too large to run: the case is refused instead
    ],
)
def test_the_nearest_shape(text, shape, near):
    fitted = nearest.fit(text, CaseSpec(shape), OPS["rmsnorm_fwd"])
    assert fitted.shape == near
    assert all(type(size) is int for size in fitted.shape)


def test_a_batch_meets_the_clauses_too():
    fitted = nearest.fit("M%4=0", CaseSpec((3, 8), batch=257), OPS["rmsnorm_fwd"])
    assert (fitted.shape, fitted.batch) == ((4, 8), 256)
    assert nearest.fit("M<=16", CaseSpec((3, 8), batch=257), OPS["rmsnorm_fwd"]).batch in (0, 16)


@pytest.mark.parametrize(
    ("text", "op", "spec", "near"),
    [
        ("ndim=3", "rmsnorm_fwd", CaseSpec((2, 3, 4, 5), normalized_ndim=2), CaseSpec((6, 4, 5), normalized_ndim=2)),
        ("ndim=2", "rmsnorm_fwd", CaseSpec((2, 3, 4, 5), normalized_ndim=2), CaseSpec((4, 5), normalized_ndim=2)),
        ("normalized_ndim=2", "rmsnorm_fwd", CaseSpec((2, 3, 4)), CaseSpec((6, 1, 4), normalized_ndim=2)),
        ("normalized_ndim=2", "rmsnorm_fwd", CaseSpec((6, 4), batch=9), CaseSpec((1, 4), normalized_ndim=2)),
        ("ndim=1", "rmsnorm_fwd", CaseSpec((2, 3), batch=300), CaseSpec((3,))),
        ("ndim=3", "rmsnorm_fwd", CaseSpec((2, 3), batch=300), CaseSpec((1, 2, 3), batch=300)),
        ("ndim=5", "rmsnorm_fwd", CaseSpec((7,)), CaseSpec((1, 1, 1, 1, 7))),
        ("ndim=2", "batchnorm_fwd", CaseSpec((2, 3, 4, 5)), CaseSpec((40, 3))),
        ("ndim=3", "batchnorm_fwd", CaseSpec((2, 3, 4, 5)), CaseSpec((2, 3, 20))),
        ("ndim=5", "batchnorm_fwd", CaseSpec((2, 3, 4)), CaseSpec((2, 3, 4, 1, 1))),
        ("ndim=1", "batchnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3))),  # it has none
        ("ndim=6", "rmsnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3))),
        ("ndim=4", "batchnorm_fwd", CaseSpec((2, 3, 4, 5, 6)), CaseSpec((2, 3, 20, 6))),
        ("ndim=1", "rmsnorm_fwd", CaseSpec((2, 0), batch=300), CaseSpec((0,))),
        ("normalized_ndim<1", "rmsnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3))),
        ("N=7", "rmsnorm_fwd", CaseSpec((2, 3, 5), normalized_ndim=2), CaseSpec((2, 1, 7), normalized_ndim=2)),
        ("N>=1000", "rmsnorm_fwd", CaseSpec((4, 3, 10), normalized_ndim=2), CaseSpec((4, 3, 334), normalized_ndim=2)),
        ("N=16", "batchnorm_fwd", CaseSpec((5, 3)), CaseSpec((16, 3))),
        ("N=16", "batchnorm_fwd", CaseSpec((2, 3, 5)), CaseSpec((2, 3, 8))),
        ("N=7", "batchnorm_fwd", CaseSpec((2, 3, 5)), CaseSpec((1, 3, 7))),
        ("N=7", "batchnorm_fwd", CaseSpec((2, 3, 5, 5)), CaseSpec((1, 3, 1, 7))),
        ("M=8", "batchnorm_fwd", CaseSpec((2, 3, 5)), CaseSpec((2, 8, 5))),
        ("M=8", "instancenorm_fwd", CaseSpec((3, 4, 5)), CaseSpec((2, 4, 5))),
        ("M=7", "groupnorm_fwd", CaseSpec((2, 6, 5), num_groups=3), CaseSpec((7, 6, 5), num_groups=1)),
        ("N=7", "groupnorm_fwd", CaseSpec((2, 6, 5, 5), num_groups=3), CaseSpec((2, 3, 1, 7), num_groups=3)),
        ("N=7", "groupnorm_fwd", CaseSpec((0, 6, 5, 5), num_groups=3), CaseSpec((1, 3, 1, 7), num_groups=3)),
        ("G=4", "groupnorm_fwd", CaseSpec((2, 6, 5)), CaseSpec((2, 24, 5), num_groups=4)),
        ("G=2+16", "groupnorm_fwd", CaseSpec((2, 8, 20), num_groups=4), CaseSpec((2, 4, 20), num_groups=2)),
        ("G=2+16", "groupnorm_fwd", CaseSpec((2, 40, 5), num_groups=20), CaseSpec((2, 32, 5), num_groups=16)),
        ("C=5", "instancenorm_fwd", CaseSpec((2, 3, 5)), CaseSpec((2, 5, 5))),
        ("M<=3", "rmsnorm_fwd", CaseSpec((3, 8), batch=257), CaseSpec((3, 8))),
        ("M<=4", "rmsnorm_fwd", CaseSpec((3, 8), batch=257), CaseSpec((3, 8), batch=4)),
        ("weight", "rmsnorm_fwd", CaseSpec((4, 8), weight=False, batch=3), CaseSpec((4, 8), batch=3)),
        ("G=2", "groupnorm_fwd", CaseSpec((2, 0, 5), num_groups=3), CaseSpec((2, 2, 5), num_groups=2)),
        ("dropout_p>0.9", "dropout_add_rmsnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3))),  # 1 is none
        ("modulation=token", "modulate_rmsnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3), modulation="token")),
        ("rotary=half+quarter", "qk_norm_rope_fwd", CaseSpec((2, 3)), CaseSpec((2, 3), rotary="half")),
        ("rotary=half+quarter", "qk_norm_rope_fwd", QUARTER, QUARTER),
        ("eps>=1e-6,eps<1e-5", "rmsnorm_fwd", CaseSpec((2, 3), eps=1e-4), CaseSpec((2, 3), eps=1e-6)),
        ("eps>=1e-6,eps<1e-9", "rmsnorm_fwd", CaseSpec((2, 3), eps=1e-4), CaseSpec((2, 3), eps=1e-4)),
        ("eps>0", "rmsnorm_fwd", CaseSpec((2, 3), eps=0.0), CaseSpec((2, 3), eps=1e-12)),
        ("eps>0,eps<1e-13", "rmsnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3), eps=5e-14)),
        ("weight_offset>0", "rmsnorm_fwd", CaseSpec((2, 3)), CaseSpec((2, 3), weight_offset=0.25)),
        ("G=4", "groupnorm_fwd", CaseSpec((2, 6, 5), num_groups=3), CaseSpec((2, 8, 5), num_groups=4)),
        ("C%4=0", "groupnorm_fwd", CaseSpec((2, 6, 5), num_groups=3), CaseSpec((2, 12, 5), num_groups=3)),
        ("weight_dtype=x", "rmsnorm_fwd", CaseSpec((2, 3), weight_dtype="float16"), CaseSpec((2, 3))),
        (
            "residual_dtype=x",
            "add_rmsnorm_fwd",
            CaseSpec((2, 4), "float16", residual_dtype="float32"),
            CaseSpec((2, 4), "float16"),
        ),
        ("other_dtype=x", "qk_norm_rope_fwd", CaseSpec((2, 4), other_dtype="float16"), CaseSpec((2, 4))),
        (
            "weight_dtype=bf16",
            "rmsnorm_fwd",
            CaseSpec((2, 3), weight_dtype="float16"),
            CaseSpec((2, 3), weight_dtype="bfloat16"),
        ),
        ("weight=false,contiguous", "rmsnorm_fwd", CaseSpec((2, 3), x_layout="far"), CaseSpec((2, 3), weight=False)),
        ("weight=false,bias", "layernorm_fwd", CaseSpec((2, 3), bias=False), CaseSpec((2, 3), weight=False)),
        (
            "contiguous=x",
            "layernorm_bwd",
            CaseSpec((2, 3), x_layout="far", dy_layout="far"),
            CaseSpec((2, 3), dy_layout="far"),
        ),
        ("variance_size%2=0", PARTIAL, CaseSpec((2, 9)), CaseSpec((2, 9))),  # half of a row: 4
        ("variance_size%2=0", PARTIAL, CaseSpec((2, 7)), CaseSpec((2, 7), variance_size=2)),
        ("variance_size=5", PARTIAL, CaseSpec((2, 7), variance_size=99), CaseSpec((2, 7), variance_size=5)),
        ("variance_size%4=0", PARTIAL, CaseSpec((2, 14)), CaseSpec((2, 14), variance_size=8)),
        ("variance_size=7", PARTIAL, CaseSpec((2, 7)), CaseSpec((2, 7), variance_size=7)),
        ("variance_size<2", PARTIAL, CaseSpec((2, 7)), CaseSpec((2, 7), variance_size=1)),
        ("variance_size<1", PARTIAL, CaseSpec((2, 7)), CaseSpec((2, 7))),
        ("variance_size>7", PARTIAL, CaseSpec((2, 7)), CaseSpec((2, 7))),  # it has none
        ("N%8=0,variance_size%8=0", PARTIAL, CaseSpec((2, 15)), CaseSpec((2, 16))),
        ("variance_size=5", "rmsnorm_fwd", CaseSpec((2, 7)), CaseSpec((2, 7))),
        ("C=8,training", "rmsnorm_fwd", CaseSpec((2, 3), training=False), CaseSpec((2, 3), training=False)),
    ],
)
def test_the_nearest_case(text, op, spec, near):
    fitted = nearest.fit(text, spec, OPS[op])
    assert fitted == near
    assert all(type(size) is int for size in fitted.shape)


def refused(text, *names):
    nearest.refuse_impossible(text, [OPS[name] for name in names], lambda op: corners(op, KERNEL_DTYPES))


@pytest.mark.parametrize(
    "text", [*TEXTS, "N>=9999999,M>=10000", "M=0", "weight_dtype=fp32,weight_dtype=x", "dtype=bf16,bytes=2"]
)
def test_what_a_case_can_meet_is_not_refused(text):
    refused(text, "layernorm_fwd", "layernorm_bwd")


@pytest.mark.parametrize("text", [*GROUPED, "G=8,C%8=0", "N=7,C=8,G=8,ndim=3", "B=0"])
def test_what_a_case_of_groups_can_meet_is_not_refused(text):
    refused(text, "groupnorm_fwd")


@pytest.mark.parametrize(
    ("text", "op", "words"),
    [
        ("ndim=2,weight,ndim=3", "layernorm_fwd", "both ndim=2 and ndim=3"),
        ("N=2^k,N%3=0", "layernorm_fwd", "both N=2^k and N%3=0"),
        ("N%8=0,N%7=0,N<=50", "layernorm_fwd", "all of N%8=0 and N%7=0 and N<=50"),
        ("eps>2,eps<1", "rmsnorm_bwd", "both eps>2.0 and eps<1.0"),
        ("weight,weight=false", "rmsnorm_fwd", "both weight and weight=false"),
        ("dtype=bf16,dtype=fp16", "rmsnorm_fwd", "both dtype=bfloat16 and dtype=float16"),
        ("dtype=fp32,bytes<4", "rmsnorm_fwd", "both dtype=float32 and bytes<4"),
        ("bytes=7", "rmsnorm_fwd", "bytes=7"),
        ("weight,bytes=7,eps>0", "rmsnorm_fwd", "bytes=7"),
        ("N<8,variance_size>8", PARTIAL, "both N<8 and variance_size>8"),
        ("G=8,C=12", "groupnorm_fwd", "both G=8 and C=12"),
        ("training,training=false", "batchnorm_fwd", "both training and training=false"),
    ],
)
def test_what_no_case_can_meet_is_refused(text, op, words):
    with pytest.raises(UsageError, match=re.escape(f"only: found no case that meets {words}") + "$"):
        refused(text, op)


def test_what_one_of_two_operators_can_meet_is_not_refused():
    refused("weight_offset=1,bias=false", "layernorm_fwd", "rmsnorm_fwd")
    with pytest.raises(UsageError, match=r"weight_offset=1\.0 and weight_offset=0\.0"):
        refused("weight_offset=1,weight_offset=0", "rmsnorm_fwd", "rmsnorm_bwd")
