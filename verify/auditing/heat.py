"""Where in its rows a kernel is wrong: the errors of one case as a grid that a page can show."""

from __future__ import annotations

from math import prod

import numpy as np

from verify_norm.auditing import textbook
from verify_norm.auditing.model import Heat
from verify_norm.dtypes import FORMATS
from verify_norm.spec import Run
from verify_norm.ulp import distance

MOST_ROWS, MOST_COLUMNS = 32, 64  # cells of a grid


def heat(run: Run, name: str) -> Heat | None:
    """The errors of the output `name`, in ulp, by rows and places in them; None where it has not been returned.

    A row is what is normalized together; dweight, dbias and statistics are one row.
    """
    output, expected = run.outputs.get(name), run.case.expected.get(name)
    if output is None or expected is None or output.ratio is None or not output.got.size:
        return None
    ulps = distance(output.got, expected.value, FORMATS[expected.dtype])
    view = textbook.viewed(run.case)
    if ulps.size == prod(view.shape) and name not in ("mean", "rstd"):
        kept = [axis for axis in range(len(view.shape)) if axis not in view.axes]
        ulps = ulps.reshape(view.shape).transpose(*kept, *view.axes)
        grid = ulps.reshape(-1, view.count)
    else:
        grid = ulps.reshape(1, -1)
    rows, columns = grid.shape
    for axis, most in ((0, MOST_ROWS), (1, MOST_COLUMNS)):
        grid = np.maximum.reduceat(
            grid, np.unique(np.linspace(0, grid.shape[axis], most, endpoint=False).astype(int)), axis
        )
    return Heat(name, expected.dtype, rows, columns, tuple(map(tuple, grid.tolist())), run.case.spec)
