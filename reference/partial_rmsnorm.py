"""Partial RMSNorm: y = w·x̂ with x̂ = x/√(mean x² + eps), the mean over the first K elements of each row alone.

As pRMSNorm of Zhang & Sennrich ("Root Mean Square Layer Normalization", NeurIPS 2019, section 4), and `variance_size`
of vLLM's rms_norm. A base of chains.

**Backward.** With r = 1/√(Σ_{i<K} x²/K + eps), a change ẋ of the row changes r by −r²·Σ_{i<K} x̂ẋ/K alone. So with
g = w·dy, and c1 = mean(g·x̂) over all N elements,

    dx = r(g − s·x̂·c1)      s = N/K in the first K elements, 0 in the others

**Errors** are those of RMSNorm with a sum of K squares, in which the terms of c1 count s times. A kernel may divide its
Σg·x̂ by K at once. Outside of the first K elements x̂ has no bound √K.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify_norm.reference import rmsnorm
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, View


@np.errstate(all="ignore")
def norm(view: View, x: Array, weight: Array | None, eps: float, offset: float, size: int) -> Norm:
    """Return x divided by the root mean square of the first `size` elements of its rows.

    Raises
    ------
    ValueError : `size` is not between 1 and the length of a row.

    >>> from verify_norm.reference.view import rows
    >>> x = np.array([[3.0, 4.0, 6.0]])
    >>> norm(rows(x, None), x, None, 0.0, 0.0, 1).y.tolist()
    [[1.0, 1.3333333333333333, 2.0]]
    """
    if not 1 <= size <= view.count:
        raise ValueError(f"variance_size: expected 1 to {view.count}, the length of a row, got {size}")
    n, x = rmsnorm.norm(view, x, weight, eps, offset), x.reshape(view.shape)
    var = (x[:, :size] * x[:, :size]).mean(1, keepdims=True)
    rstd = 1.0 / np.sqrt(var + eps)
    return replace(n, var=var, rstd=rstd, xhat=x * rstd, first=size)
