"""BatchNorm's evaluation: values and gradients by hand, and what may underflow or overflow."""

import numpy as np
import pytest
from references import EPS, FLOAT32

from verify_norm.core.judge import ratio
from verify_norm.core.run import Expected
from verify_norm.reference import batchnorm, fixed


def test_a_sum_of_subnormals_may_be_flushed():
    """In evaluation with x of 2⁻¹³⁰, eps = 0 and a larger variance, r·Σ dy·(x − mean) loses what underflows."""
    rng = np.random.default_rng(5)
    dy, x = (rng.normal(size=(30, 2)).astype(np.float32).astype(float) for _ in range(2))
    args = dy, x * 2.0**-130, np.ones(2), np.zeros(2), np.full(2, 2.0**-130), np.full(2, 2.0**-40)
    value = batchnorm.backward(*args, training=False, eps=0.0)
    error = batchnorm.backward_error(*args, training=False, eps=0.0, arithmetic=FLOAT32)
    flushed = Expected(value.dweight, error.dweight, "float32")
    assert ratio(np.zeros(2), flushed).max() <= 1
    assert ratio(np.full(2, 2.0**-90), flushed).min() > 1


def test_a_difference_from_the_running_mean_may_overflow():
    largest = FLOAT32.huge
    x, mean, var = np.array([[largest, 1.0], [0.0, 2.0]]), np.array([-largest, 0.0]), np.full(2, largest)
    args, options = (x, None, None, mean, var), {"training": False, "momentum": 0.3, "eps": EPS}
    value = batchnorm.forward(*args, **options)
    error = batchnorm.forward_error(*args, **options, arithmetic=FLOAT32)
    assert np.isfinite(value.y).all()
    assert np.isfinite(error.y).tolist() == [[False, True], [False, True]]  # 0 − mean is the largest number


def test_x_hat_may_overflow_although_y_does_not():
    """Here x̂ is 4 times the largest number and y a half of it; the other channel is judged."""
    largest = FLOAT32.huge
    x, weight, mean, var = np.array([[largest / 2, 1.0]]), np.full(2, 0.125), np.zeros(2), np.array([0.0, 1.0])
    args, options = (x, weight, None, mean, var), {"training": False, "momentum": 0.3, "eps": 2.0**-6}
    value = batchnorm.forward(*args, **options)
    error = batchnorm.forward_error(*args, **options, arithmetic=FLOAT32)
    assert value.y[0, 0] == largest / 2
    assert np.isfinite(error.y).tolist() == [[False, True]]


def test_values_and_gradients_by_hand():
    """r = 1/√(3 + 1) = ½; x̂ = ½(x − 1) is (1, −1)."""
    x, dy = np.array([[3.0], [-1.0]]), np.array([[2.0], [4.0]])
    n = fixed.norm(batchnorm.channels(x, False), x, np.array([5.0]), np.array([7.0]), np.ones(1), np.full(1, 3.0), 1.0)
    assert n.y.ravel().tolist() == [12.0, 2.0]
    dx, dweight, dbias = fixed.gradients(n, dy)
    assert dx.tolist() == [[5.0], [10.0]]  # w·r·dy: no mean is subtracted
    assert (dweight.tolist(), dbias.tolist()) == ([-2.0], [6.0])


@pytest.mark.parametrize("missing", [0, 1])
def test_evaluation_needs_both_statistics(missing):
    x, running = np.ones((2, 1)), [np.ones(1), np.ones(1)]
    running[missing] = None
    with pytest.raises(ValueError, match=r"^running_mean, running_var: evaluation needs both, got None$"):
        fixed.norm(batchnorm.channels(x, False), x, None, None, *running, 1.0)


def test_the_mean_is_exact_and_only_the_root_is_off():
    """Without a weight y is x̂, off by γ(5) in r and two roundings, whatever the offset of x and of the mean."""
    for offset in (0.0, 1e6):
        x = offset + np.array([[1.0], [-1.0]])
        n = fixed.norm(batchnorm.channels(x, False), x, None, None, np.full(1, offset), np.ones(1), 0.0)
        error = fixed.normalize_error(n, FLOAT32)
        assert (error.y >= FLOAT32.gamma(5)).all()
        assert (error.y <= FLOAT32.gamma(10)).all()
        assert error.mean.max() < 1e-30
