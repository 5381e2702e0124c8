"""Operations in NumPy's words: composites are NumPy's own values, and what has no rule is named."""

import numpy as np
import pytest

from verify_norm.reference.operations.carried import carried
from verify_norm.reference.operations.operand import Complex, UnknownOperationError
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
