"""The claims of the references: their names, their directions, and paths whose slope is the claim."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.validation.certify import probes, shipped
from verify_norm.validation.certify.problems import Setup, draw

SMALL, WIDE = Setup("f", (2, 6)), Setup("f", (4, 37))


def of(op, setup):
    return list(probes.of(draw(op, setup), shipped(op), np.random.default_rng(0)))


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_every_claim_is_probed(op):
    found = {p.quantity for p in of(op, SMALL)}
    bias = {"dbias"} if op == "layernorm" else set()
    mean = {"jvp mean"} if op == "layernorm" else set()
    second = {f"double backward {name}" for name in ("dy", "x", "weight")}
    assert found == {"dx", "dweight", "jvp y", "jvp rstd", *second, *bias, *mean}
    assert "dweight" not in {p.quantity for p in of(op, replace(SMALL, given=()))}


def test_small_problems_compare_every_entry_and_large_ones_some_directions():
    assert next(p for p in of("layernorm", SMALL) if p.quantity == "dx").claim.size >= 12
    wide = [p for p in of("layernorm", WIDE) if p.quantity == "dx"]
    assert [p.claim.size for p in wide] == [1] * probes.DIRECTIONS


@pytest.mark.parametrize("setup", [SMALL, WIDE], ids=["small", "wide"])
def test_the_slope_of_a_path_is_its_claim(setup):
    for p in of("layernorm", setup):
        slope = p.path(1e-200j).imag / 1e-200
        assert slope.shape == p.claim.shape == np.broadcast_shapes(p.size.shape, p.magnitude.shape)
        assert (np.abs(slope - p.claim) <= 1e-12 * p.size).all(), p.quantity
        assert np.isfinite(p.path(p.length / 2)).all()


def test_what_is_missing_or_of_another_size_is_nan():
    assert np.isnan(probes.flat(None, 3)).tolist() == [True] * 3
    assert np.isnan(probes.flat(np.ones(2), 3)).tolist() == [True] * 3
    assert probes.flat(np.array([[1.0, 2.0]]), 2).tolist() == [1.0, 2.0]
