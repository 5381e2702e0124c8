"""Fifty digits against values that are worked out by hand."""

from dataclasses import replace

import numpy as np

from verify_norm.validation.certify import exact, problems


def test_the_fifty_digits_are_right():
    """Against the definition at a point where it can be worked by hand, and against the mean of a constant."""
    problem = next(p for p in problems.every("layernorm") if p.family == "x alone")
    x = np.array([[1.0, 3.0]])
    by_hand = replace(
        problem,
        args={"x": x, "weight": None, "bias": None},
        dy=np.array([[1.0, 0.0]]),
        tangents={"x": np.array([[0.0, 1.0]]), "weight": None, "bias": None},
        options={"eps": 0.5625},
        index=np.array([[0, 1]]),
    )
    truth = exact.evaluate(by_hand)
    assert truth["values"]["y"].astype(float).tolist() == [-0.8, 0.8]
    np.testing.assert_allclose(truth["gradients"]["dx"].astype(float), [0.144, -0.144], rtol=1e-15)
    np.testing.assert_allclose(truth["jvp"]["y"].astype(float), [-0.144, 0.144], rtol=1e-15)
    # 1.25 = √(1 + 0.5625): y₂ = −y₁ = δ/√(δ² + eps) with δ = (x₂ − x₁)/2, whose second derivative is −3δ·eps/1.25⁵
    curvature = -3 * 0.5625 / 1.25**5 / 4
    np.testing.assert_allclose(truth["second"]["x"].astype(float), [curvature, -curvature], rtol=1e-15)
