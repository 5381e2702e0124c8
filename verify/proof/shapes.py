"""How the launches of a call depend on its number of rows: read from calls of several sizes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_ROWS = 4096  # of one tile


class Affine(NamedTuple):
    """slope·M + base, or slope·G + base of the number of programs that share the tiles."""

    slope: int
    base: int
    of: str = "M"


class Form(NamedTuple):
    """Launches for every M: the call with each number that depends on M as an `Affine`, and ⌈M/rows⌉ tiles of rows.

    A tile has `each` programs, as many as a sample has groups; they are numbered from each·tile on. Or G programs share
    the tiles, at most one a tile and at most `programs[1]`, so that none has more than ⌈⌈M/rows⌉/programs[0]⌉ of them;
    other launches of such a call have a grid of one size. Without rows it is the call of one M.
    """

    call: Mapping[str, Any]
    rows: int = 0
    each: int = 1
    programs: tuple[int, int] | None = None


def form(sizes: Sequence[int], calls: Sequence[dict[str, Any]]) -> Form | None:
    """Return what calls of these numbers of rows have in common; None if a number is not affine in M or in G.

    All launches have to have the same tiles: ⌈M/rows⌉ of one program, M of `each` programs, or those that G programs
    share.
    """
    structures = [[event.get("launch", sorted(event)) for event in call["events"]] for call in calls]
    if any(structure != structures[0] for structure in structures):
        return None
    launches = [place for place, event in enumerate(calls[0]["events"]) if "launch" in event]
    grids = [[call["events"][place]["grid"] for call in calls] for place in launches]  # by launch and call
    if any(grid[1:] != [1, 1] for of_launch in grids for grid in of_launch):
        return None
    programs = {tuple(grid[0] for grid in of_launch) for of_launch in grids}
    tiles = _tiles(sizes, next(iter(programs))) if len(programs) == 1 else None
    if tiles is not None:
        common = _affine(sizes, [_without_grids(call) for call in calls])
        return None if common is None else Form(common, *tiles)
    varying = [counts for counts in programs if len(set(counts)) > 1]
    if len(varying) != 1:
        return None
    shared = _shared(sizes, varying[0])
    if shared is None:
        return None
    common = _affine(sizes, list(calls), varying[0])
    return None if common is None else Form(common, shared[0], 1, shared[1])


def _without_grids(call: dict[str, Any]) -> dict[str, Any]:
    events = [{key: value for key, value in event.items() if key != "grid"} for event in call["events"]]
    return {**call, "events": events}


def _shared(sizes: Sequence[int], programs: Sequence[int]) -> tuple[int, tuple[int, int]] | None:
    """Return the rows of a tile, and the least and the largest P for which as many programs as these share the tiles.

    Of T tiles min(T, P) programs take some each, or ⌈T/⌈T/P⌉⌉. None if no number of rows fits, or several do.
    """
    fitting, m, g = [], np.array(sizes)[:, None], np.array(programs)[:, None]
    for rows in range(1, MOST_ROWS + 1):
        tiles = -(-m // rows)
        most = np.arange(g.max(), tiles.max())  # P: with more, each tile would have a program of its own
        if (g <= tiles).all() and len(most):
            turns = -(-tiles // most)
            fits = (g == np.minimum(tiles, most)).all(0) | (g == -(-tiles // turns)).all(0)
            if fits.any():
                fitting.append((rows, (int(most[fits][0]), int(most[fits][-1]))))
    return fitting[0] if len(fitting) == 1 else None


def _tiles(sizes: Sequence[int], programs: Sequence[int]) -> tuple[int, int] | None:
    """Return the rows of a tile and its number of programs; None if no tile fits, or several do."""
    pairs = list(zip(sizes, programs, strict=True))
    fitting = [(r, 1) for r in range(1, MOST_ROWS + 1) if all(-(-m // r) == g for m, g in pairs)]
    each = programs[0] // sizes[0]
    if each > 1 and all(each * m == g for m, g in pairs):
        fitting.append((1, each))
    return fitting[0] if len(fitting) == 1 else None


def _affine(sizes: Sequence[int], values: Sequence[Any], programs: Sequence[int] = ()) -> Any:
    """Return values that are alike, with each integer that differs as an `Affine`; None if they do not fit."""
    first = values[0]
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            return None
        items = {key: _affine(sizes, [value[key] for value in values], programs) for key in first}
        return None if any(items[key] is None and first[key] is not None for key in first) else items
    if isinstance(first, list):
        if any(len(value) != len(first) for value in values):
            return None
        parts = [_affine(sizes, [value[i] for value in values], programs) for i in range(len(first))]
        return None if any(p is None and first[i] is not None for i, p in enumerate(parts)) else parts
    if all(value == first and type(value) is type(first) for value in values):
        return first
    if not all(type(value) is int for value in values):
        return None
    return _line("M", sizes, values) or (_line("G", programs, values) if programs else None)


def _line(of: str, at: Sequence[int], values: Sequence[int]) -> Affine | None:
    """Return the line through all values; None if there is none."""
    other = next(i for i, position in enumerate(at) if position != at[0])
    slope, rest = divmod(values[other] - values[0], at[other] - at[0])
    base = values[0] - slope * at[0]
    fits = not rest and all(slope * m + base == value for m, value in zip(at, values, strict=True))
    return Affine(slope, base, of) if fits else None
