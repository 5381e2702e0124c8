"""Which parts of an input move which parts of the outputs."""

import numpy as np
import pytest
import torch

from verify_norm.gradcheck.layout import layout_of


def layout(function, *shape):
    rng = np.random.default_rng(0)
    point = torch.from_numpy(rng.standard_normal(shape))
    step = torch.from_numpy(np.asarray(0.01 * rng.choice((-1.0, 1.0), shape)))
    base = function(point)
    return layout_of(lambda p: list(function(p)), point, list(base), step, rng)


X = torch.arange(20.0, dtype=torch.float64).reshape(4, 5)


@pytest.mark.parametrize(
    ("function", "shape", "units", "axes"),
    [
        (lambda x: [x.sin()], (6, 5), 6, (0,)),
        (lambda x: [x.sin(), x.sum(1)], (6, 5), 6, (0, 0)),
        (lambda x: [x.sin(), x.sum()], (6, 5), 1, ()),
        (lambda x: [x - x.mean(0)], (6, 5), 1, ()),
        (lambda x: [x - x.amax(0)], (4, 1), 1, ()),
        (lambda x: [x.roll(1, 0)], (6, 5), 1, ()),
        (lambda w: [X * w], (5,), 5, (1,)),
        (lambda w: [X[:, :4] * w], (4,), 4, (1,)),
        (lambda w: [X * w[:, None]], (4,), 4, (0,)),
        (lambda w: [X * w], (), 1, ()),
        (lambda x: [x.sin()], (1, 5), 1, ()),
    ],
)
def test_units_are_rows_that_move_alone(function, shape, units, axes):
    found = layout(function, *shape)
    assert (found.units, found.axes) == (units, axes)
