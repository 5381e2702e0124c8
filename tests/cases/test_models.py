"""Norm shapes of real models."""

import pytest

from verify_norm.cases import models
from verify_norm.core.ops import OPS

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
