"""L2Norm: y = x/√(Σx² + eps) along each row, as a base of chains.

As fla's `l2norm.py`, in Gated DeltaNet and Kimi-Linear. `torch.nn.functional.normalize` divides by max(‖x‖, eps), which
is another operator: it differs wherever ‖x‖ is not far above eps.

With N elements a row, r = 1/√(Σx² + eps) is 1/√N times RMSNorm's 1/√(mean x² + eps/N), so

    y = x̂/√N      with RMSNorm's x̂ at eps/N

and gradients and errors are those of that RMSNorm, with 1/√N for its weight. What a kernel saves as rstd is r. Of N
squares the sum errs as their mean does, less a division; where RMSNorm's analysis counts a product with the weight, a
kernel has none. So the bound has up to 6 roundings more than it needs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify_norm.reference import rmsnorm
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, View


def norm(view: View, x: Array, eps: float) -> Norm:
    """Return x, its rows divided by √(Σx² + eps).

    >>> from verify_norm.reference.view import rows
    >>> x = np.array([[3.0, 4.0]])
    >>> n = norm(rows(x, None), x, eps=0.0)
    >>> n.y.round(12).tolist(), n.saved_rstd.round(12).tolist()
    ([[0.6, 0.8]], [[0.2]])
    """
    N = view.count
    n = rmsnorm.norm(view, x, np.full(view.parameter, N**-0.5), eps / N, 0.0)
    return replace(n, rstd_scale=N**-0.5)
