"""How the launches of a call depend on its number of rows: read from calls of several sizes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_ROWS = 4096  # of one program


class Affine(NamedTuple):
    """slope·M + base."""

    slope: int
    base: int


class Form(NamedTuple):
    """Launches for every M: the call with each number that depends on M as an `Affine`, and ⌈M/rows⌉ tiles of rows.

    A tile has `each` programs, as many as a sample has groups; they are numbered from each·tile on. Without rows it is
    the call of one M.
    """

    call: Mapping[str, Any]
    rows: int = 0
    each: int = 1


def form(sizes: Sequence[int], calls: Sequence[dict[str, Any]]) -> Form | None:
    """Return what calls of these numbers of rows have in common; None if a number is not affine in M.

    All launches have to have the same tiles: ⌈M/rows⌉ of one program, or M of `each` programs.
    """
    tiles: set[tuple[int, int] | None] = set()
    structures = [[event.get("launch", sorted(event)) for event in call["events"]] for call in calls]
    if any(one != structures[0] for one in structures):
        return None
    for k, event in enumerate(calls[0]["events"]):
        if "launch" in event:
            grids = [call["events"][k]["grid"] for call in calls]
            if any(grid[1:] != [1, 1] for grid in grids):
                return None
            tiles.add(_tiles(sizes, [grid[0] for grid in grids]))
    common = _affine(sizes, [_without_grids(call) for call in calls])
    found = tiles.pop() if len(tiles) == 1 else None
    return None if found is None or common is None else Form(common, *found)


def _without_grids(call: dict[str, Any]) -> dict[str, Any]:
    events = [{key: value for key, value in event.items() if key != "grid"} for event in call["events"]]
    return {**call, "events": events}


def _tiles(sizes: Sequence[int], programs: Sequence[int]) -> tuple[int, int] | None:
    """Return the rows of a tile and its programs."""
    pairs = list(zip(sizes, programs, strict=True))
    fitting = [(r, 1) for r in range(1, MOST_ROWS + 1) if all(-(-m // r) == g for m, g in pairs)]
    each = programs[0] // sizes[0]
    if each > 1 and all(each * m == g for m, g in pairs):
        fitting.append((1, each))
    return fitting[0] if len(fitting) == 1 else None


def _affine(sizes: Sequence[int], values: Sequence[Any]) -> Any:
    """Return values that are alike, with each integer that differs as an `Affine`; None if they do not fit."""
    first = values[0]
    if isinstance(first, dict):
        if any(one.keys() != first.keys() for one in values):
            return None
        found = {key: _affine(sizes, [one[key] for one in values]) for key in first}
        return None if any(found[key] is None and first[key] is not None for key in first) else found
    if isinstance(first, list):
        if any(len(one) != len(first) for one in values):
            return None
        parts = [_affine(sizes, [one[i] for one in values]) for i in range(len(first))]
        return None if any(p is None and first[i] is not None for i, p in enumerate(parts)) else parts
    if all(one == first and type(one) is type(first) for one in values):
        return first
    if not all(type(one) is int for one in values):
        return None
    slope, rest = divmod(values[1] - values[0], sizes[1] - sizes[0])
    base = values[0] - slope * sizes[0]
    fits = not rest and all(slope * m + base == one for m, one in zip(sizes, values, strict=True))
    return Affine(slope, base) if fits else None
