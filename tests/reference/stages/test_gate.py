"""A gate: its gradients in all activations, and where its bound ends."""

import numpy as np
import pytest
from references import FLOAT32

from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.stage import Approximate, passed

Z = np.array([[2.0, -3.0, 0.5, 1.0]])
EXACT = Approximate(Z, 0 * Z, np.abs(Z))


@pytest.mark.parametrize("name", ["silu", "sigmoid", "gelu"])
def test_gradients_are_differences(name):
    rng, gate, h = np.random.default_rng(0), np.array([[0.3, -1.2, 4.0, 0.0]]), 1e-5
    dy, stage = rng.normal(size=Z.shape), Gate(name)
    dz, own = stage.pull(dy, Z, {"gate": gate})
    by_gate = (stage.value(Z, {"gate": gate + h}) - stage.value(Z, {"gate": gate - h})) / (2 * h)
    by_z = (stage.value(Z + h, {"gate": gate}) - stage.value(Z - h, {"gate": gate})) / (2 * h)
    np.testing.assert_allclose(own["gate"], dy * by_gate, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(dz, dy * by_z, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["silu", "sigmoid", "gelu"])
def test_an_infinite_gate_is_not_judged_and_a_closed_one_is(name):
    given = {"gate": np.array([[np.inf, -np.inf, np.nan, -200.0]])}
    with np.errstate(all="ignore"):
        y = passed(Gate(name), EXACT, given, FLOAT32)
        errors = Gate(name).pull_error(Z, 0.0, EXACT, given, FLOAT32)
    for delta in (y.delta, errors.lost, errors.gradients["gate"]):
        assert not np.isfinite(delta[0, :3]).any()
        assert 0 < delta[0, 3] < (1e-3 if name == "gelu" else 1e-30)  # 1 + erf errs by an ulp of 1


def test_the_terms_of_z_are_rounded_where_they_cancel():
    given = {"gate": np.full((1, 4), 3.0)}
    plain, terms = (
        passed(Gate(), Approximate(0 * Z, 0 * Z, size), given, FLOAT32).delta for size in (0 * Z, 0 * Z + 9)
    )
    assert (plain < 1e-30).all()
    assert (terms > 9 * 2.0**-24).all()  # b·m − w·m·x̂, each rounded
