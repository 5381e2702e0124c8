"""The points of certification: the same for a seed, with every option, and which parameter serves which element."""

import numpy as np
import pytest

from verify_norm.validation.certify import problems
from verify_norm.validation.certify.problems import Setup, draw


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm", "groupnorm"])
def test_a_seed_draws_the_same_points_and_another_one_others(op):
    first, again, other = (next(iter(problems.every(op, seed))).args["x"] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()
    families = [p.family for p in problems.every(op)]
    assert {"no weight", "x alone", "offset 1e+06", "long rows"} <= set(families)
    assert ("weight_offset 1" in families) == (op != "groupnorm")
    assert {p.small for p in problems.every(op)} == {True, False}


def test_the_parameter_of_each_element_by_hand():
    group = draw("groupnorm", Setup("f", (2, 4, 3), groups=2))
    assert group.index.tolist() == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]] * 2
    assert group.options == {"eps": 1e-5, "num_groups": 2}
    row = draw("layernorm", Setup("f", (2, 2, 3), ndim=2, weight_offset=1.0))
    assert row.options == {"eps": 1e-5, "normalized_shape": (2, 3), "weight_offset": 1.0}
    assert row.index.tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert row.args["weight"].shape == row.tangents["bias"].shape == (2, 3)


def test_what_is_not_given_has_no_tangent_and_rmsnorm_no_bias():
    alone = draw("layernorm", Setup("f", (2, 6), given=()))
    assert [name for name, value in alone.args.items() if value is None] == ["weight", "bias"]
    assert alone.tangents["weight"] is alone.tangents["bias"] is None
    rms = draw("rmsnorm", Setup("f", (2, 6), weight_offset=1.0))
    assert set(rms.args) == {"x", "weight"}
    assert rms.options["weight_offset"] == 1.0
    assert (rms.centred, alone.centred) == (False, True)


def test_offset_and_scale_are_those_of_x():
    x = draw("layernorm", Setup("f", (4, 1000), offset=10.0, scale=2.0**-20)).args["x"] * 2.0**20
    assert abs(x.mean() - 10.0) < 0.1
    assert abs(np.std(x) - 1.0) < 0.05
