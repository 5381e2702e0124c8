"""Where a case has NaN and infinities."""

from typing import Any

import numpy as np

from verify_norm.core.spec import CaseSpec


def special_values(spec: CaseSpec, shape: tuple[int, ...]) -> list[tuple[float, Any]]:
    """Return each special value, and where an input with elements of this shape holds it; a later one counts."""
    marks = _places(spec, shape)
    if spec.special != "nan+inf":
        return [(float(str(spec.special)), marks)]
    nan, turn = marks.copy(), np.arange(shape[-1]) % 2
    if spec.special_at == "row":
        nan &= turn == 0
    elif spec.special_at == "rows":
        nan[2::4] = False
    return [(np.inf, marks | np.roll(marks, 1, -1)), (np.nan, nan)]


def _places(spec: CaseSpec, shape: tuple[int, ...]) -> Any:
    """Return True where `special_at` says, False elsewhere."""
    marks = np.zeros(shape, bool)
    if spec.special_at == "rows":
        rows = marks.reshape(shape[0], -1)
        index = np.arange(0, len(rows), 2)
        rows[index, index * rows.shape[1] // len(rows)] = True  # each at another place
    elif spec.special_at == "row":
        marks[shape[0] // 2] = True
    else:
        place = {"first": lambda n: 0, "middle": lambda n: n // 2, "last": lambda n: n - 1}[spec.special_at]
        marks[tuple(map(place, shape))] = True
    return marks
