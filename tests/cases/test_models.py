"""Norm shapes of real models."""

import pytest

from verify_norm.cases import models
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("op", OPS)
def test_models(op):
    small, too_large = models.model_cases(OPS[op], full=False, dtypes=DTYPES)
    full, none = models.model_cases(OPS[op], full=True, dtypes=DTYPES)
    assert len(small) + len(too_large) == len(full) >= 6
    assert not none
    layouts = {"contiguous", "channels_last"} if OPS[op].view == "groups" and full[0].num_groups else {"contiguous"}
    assert {spec.x_layout for spec in small} == {spec.dy_layout for spec in full} == layouts
    for few, all_ in zip(small, full[: len(small)], strict=True):
        if few.num_groups is None:
            assert few.shape[-1] == all_.shape[-1]
        else:
            assert few.shape[1] // few.num_groups == all_.shape[1] // all_.num_groups
            assert few.shape[2:] == all_.shape[2:]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("rmsnorm_fwd", [(1, 3, 4096), (1, 3, 8192), (1, 3, 3584), (1, 3, 128), (1, 3, 3584), (1, 3, 1024)]),
        ("batchnorm_fwd", [(32, 2, 112, 112), (32, 2, 7, 7), (32, 2, 14, 14), (64, 2, 7, 7), (32, 2, 35, 35)]),
        ("instancenorm_fwd", [(1, 2, 256, 256), (1, 2, 128, 128), (1, 2, 64, 64), (1, 2, 256, 256)]),
        (
            "groupnorm_fwd",
            [
                *((1, 20, 64, 64), (1, 40, 32, 32), (1, 160, 8, 8), (1, 20, 64, 64), (1, 60, 64, 64)),
                *((1, 8, 512, 512), (1, 8, 64, 64), (1, 8, 512, 512)),  # two groups of 2²⁰ elements are not too large
                (1, 4, 1024, 1024),  # nor is one of 2²²
            ],
        ),
    ],
)
def test_a_cpu_gets_few_rows_groups_or_channels_as_long_as_the_models(op, shapes):
    small, too_large = models.model_cases(OPS[op], full=False, dtypes=DTYPES)
    assert [spec.shape for spec in small][: len(shapes)] == shapes
    assert {type(n) for spec in small for n in spec.shape} == {int}
    assert too_large == (["X = 2240"] if op == "groupnorm_fwd" else [])
    groups = [spec.num_groups for spec in small]
    assert groups == ([2] * 8 + [1] if op == "groupnorm_fwd" else [None] * len(small))


def test_at_full_size_a_case_is_the_models_layer():
    large = models.model_cases(OPS["groupnorm_bwd"], full=True, dtypes=("float16",))[0]
    options = {"data": "channel", "x_layout": "channels_last", "dy_layout": "channels_last"}
    assert large[-1] == CaseSpec((2, 960, 64, 64), "float16", num_groups=32, eps=1e-5, **options)
    gemma = models.model_cases(OPS["rmsnorm_fwd"], full=True, dtypes=("bfloat16",))[0][-1]
    assert gemma == CaseSpec((1, 4096, 3584), "bfloat16", eps=1e-6, weight_offset=1.0, data="channel")


def test_a_type_that_is_not_tried_has_no_models():
    for dtype in DTYPES:
        some, _ = models.model_cases(OPS["layernorm_fwd"], full=True, dtypes=(dtype,))
        assert {spec.dtype for spec in some} == {dtype}
