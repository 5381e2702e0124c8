"""The rig: values reach the kernel as they are, rows of any operator; an output that is missing hides a property."""

from dataclasses import replace

import emulations as em
import numpy as np
import pytest
import torch

from verify_norm.auditing.fingerprint.rig import CHANNELS, SPACE, Feed, Rig
from verify_norm.auditing.fingerprint.statement import HiddenError
from verify_norm.loading.registry import load

X = np.arange(24.0).reshape(2, 12)


def seen_by(op, feed, way="rows"):
    """The arguments that a kernel of this operator gets."""
    seen = {}

    def run(**arguments):
        seen.update(arguments)

    getattr(Rig(replace(em.kernel(op, run), dtypes=("float32",)), "cpu"), way)(feed)
    return seen


def test_what_is_not_given_is_zero_and_rstd_one():
    seen = seen_by("layernorm_bwd", Feed(X, weight=1.5))
    assert seen["x"].tolist() == X.tolist()
    assert seen["dy"].count_nonzero() == seen["mean"].count_nonzero() == 0
    assert seen["rstd"].tolist() == [1.0, 1.0]
    assert seen["weight"].unique().tolist() == [1.5]


def test_a_row_of_groupnorm_is_a_sample_of_one_group():
    seen = seen_by("groupnorm_fwd", Feed(X))
    assert tuple(seen["x"].shape) == (2, CHANNELS, 3)
    assert seen["num_groups"] == 1
    assert seen["x"].reshape(2, 12).tolist() == X.tolist()


def test_columns_of_groupnorm_are_its_channels():
    x = np.arange(16.0 * 3).reshape(16, 3)
    seen = seen_by("groupnorm_bwd", Feed(x, 2 * x), "columns")
    assert tuple(seen["dy"].shape) == (2, 3, SPACE)
    for channel in range(3):
        assert seen["dy"][:, channel].flatten().tolist() == (2 * x[:, channel]).tolist()


def test_what_a_kernel_does_not_take_or_return_is_hidden():
    rig = Rig(replace(load("layernorm_fwd"), dtypes=("float16",)), "cpu")
    assert not rig.rows(Feed(X)).values  # float32 is none of its types
    assert rig.runs == 0
    alone = Rig(em.kernel("layernorm_fwd", em.layernorm_fwd(returns=1)), "cpu").rows(Feed(X))
    assert "y" in alone
    assert "mean" not in alone
    with pytest.raises(HiddenError, match="mean"):
        alone["mean"]


def test_the_same_columns_run_once_and_every_run_is_counted():
    calls = []

    def run(dy, x, weight, mean, rstd):
        calls.append(x)
        return x, (dy * x).sum(0), dy.sum(0)

    rig = Rig(em.kernel("layernorm_bwd", run), "cpu")
    first, again = rig.columns(Feed(X, 2 * X)), rig.columns(Feed(X.copy(), 2 * X))
    assert first is again
    assert len(calls) == rig.runs == 1
    rig.columns(Feed(X + 1, 2 * X))
    assert rig.runs == 2
    assert torch.equal(calls[1], calls[0] + 1)
