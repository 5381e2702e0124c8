"""Operations in NumPy's words: composites are NumPy's own values, and what has no rule is named."""

import numpy as np
import pytest

from verify_norm.reference.operations.carried import carried
from verify_norm.reference.operations.operand import Complex, UnknownOperationError, call
from verify_norm.reference.operations.trial import SINGLE

X = np.array([[1.5, -2.0, 0.5], [3.0, 0.25, -1.0]])
SAME = {
    "mean": lambda x: np.mean(x, axis=-1, keepdims=True),
    "var": lambda x: np.var(x, axis=-1),
    "norm": lambda x: np.linalg.norm(x, axis=-1),
    "square": lambda x: np.square(x) + np.reciprocal(x) + x**3 + abs(x) ** -0.5 + x**2 + abs(x) ** 0.5,
    "clip": lambda x: np.clip(x, -1, 1) + x.clip(-2, 2),
    "min": lambda x: x.min(-1) + np.amin(x) + np.max(x, axis=0)[1] + np.amax(x, -1),
    "shapes": lambda x: x.reshape(3, 2) + np.reshape(x, (3, 2)) + x.ndim + np.size(x) + len(np.shape(x)),
    "operators": lambda x: 1 - x / 2 + -x,
}
UNKNOWN = {
    "the operation sin": np.sin,
    "the operation fft": np.fft.fft,
    "the operation add.reduce": np.add.reduce,
    "the operation matmul": lambda x: x @ x,
    "an array's .cumsum": lambda x: x.cumsum(-1),
    "a value taken out of its array": lambda x: x if x.max() > 0 else -x,
    "an index that is no slice": lambda x: x[[0, 1]],
    "a power whose exponent": lambda x: x**x,
    "np.linalg.norm that is no 2-norm": lambda x: np.linalg.norm(x, ord=1, axis=-1),
    "sum with these arguments": lambda x: np.sum(x, -1, dtype=np.float32),
}


@pytest.mark.parametrize("name", SAME)
def test_values_are_numpys(name):
    got = SAME[name](Complex(X + 0j))
    np.testing.assert_allclose(np.real(got.value), SAME[name](X), rtol=1e-14)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_rule_is_named(name):
    with pytest.raises(UnknownOperationError, match=name.replace(".", r"\.")):
        UNKNOWN[name](carried(X, SINGLE))


@pytest.mark.parametrize(
    ("exponent", "same"),
    [
        (1.0, lambda x: x),
        (2, lambda x: x * x),
        (0.5, np.sqrt),
        (-1.0, lambda x: 1.0 / x),
        (-0.5, lambda x: 1.0 / np.sqrt(x)),
        (-2.0, lambda x: 1.0 / (x * x)),
    ],
)
def test_a_usual_power_has_the_error_of_what_kernels_make_of_it(exponent, same):
    """A power by a logarithm and an exponential, as of another exponent, is off by more."""
    x = carried(np.abs(X), SINGLE)
    power, usual = x**exponent, same(x)
    assert np.array_equal(power.value, usual.value)
    assert np.array_equal(power.delta, usual.delta)
    assert ((x**1.5).delta > 0).all()


@pytest.mark.parametrize("exponent", [carried(X, SINGLE), np.array([1.0, 2.0, 3.0]), [2.0, 2.0, 2.0]], ids=str)
def test_a_power_has_a_number_as_its_exponent(exponent):
    with pytest.raises(UnknownOperationError, match="exponent"):
        np.power(carried(X, SINGLE), exponent)
    with pytest.raises(UnknownOperationError, match="exponent"):
        np.power(X, carried(X, SINGLE))


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: np.linalg.norm(x),  # of a matrix
        lambda x: np.linalg.norm(x, axis=(0, 1)),
        lambda x: np.linalg.norm(x[0], ord=3),
        lambda x: np.linalg.norm(x, ord=np.inf, axis=-1),
    ],
)
def test_a_norm_is_the_2_norm_over_one_axis(norm):
    with pytest.raises(UnknownOperationError, match="2-norm"):
        norm(carried(X, SINGLE))


METHODS = {
    "norm of a vector": lambda x: np.linalg.norm(x[0]),
    "2-norm": lambda x: np.linalg.norm(x, ord=2, axis=0),
    "norm that keeps the axis": lambda x: np.linalg.norm(x, axis=-1, keepdims=True),
    "norm that keeps none": lambda x: np.linalg.norm(x, None, -1),
    "var": lambda x: x.var(0),
    "squeeze": lambda x: x[:1].squeeze(0),
    "reshape to a tuple": lambda x: x.reshape((3, 2)),
    "reshape to numbers": lambda x: x.reshape(3, 2),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_norms_have_numpys_shape_and_values(name):
    got, want = METHODS[name](carried(X, SINGLE)), METHODS[name](X)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.value, want, rtol=1e-14)


@pytest.mark.parametrize("name", ["_data", "__cuda_array_interface__"])
def test_a_private_name_is_no_operation(name):
    with pytest.raises(AttributeError, match=name):
        getattr(carried(X, SINGLE), name)
    assert not hasattr(carried(X, SINGLE), name)


def test_a_part_put_back_keeps_its_type():
    whole = call("embed", np.array([1.0 + 2.0j]), slice(1, 2), (3,))
    assert (whole.dtype, whole.tolist()) == (np.complex128, [0, 1 + 2j, 0])
    assert call("embed", np.array([2]), slice(0, 1), (2,)).dtype == np.int64
