"""Plots of results as SVG: lines over a size, or one dot for each contestant and piece of work."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#e377c2", "#7f7f7f", "#bcbd22")
STYLE = "text{font:12px sans-serif;fill:#222}.e{text-anchor:end}.m{text-anchor:middle}.t{font-weight:bold}"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 476, 70, 56, 190, 50


def lines(
    series: Mapping[str, Points],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    subject: str = "",
    level: Sequence[str] = (),
) -> str:
    """Return a plot with one line for each name: the `subject` is thickest, the lines in `level` are dashed."""
    points = [p for some in series.values() for p in some]
    if not points:
        return _page(title, ["<text x='70' y='80'>no result is both right and timed</text>"], WIDTH, HEIGHT)
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = _round_up(max(y for _, y in points))
    along, across = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        share = _share(x, low, high, log=log_x)
        return LEFT + along * share, TOP + across * (1 - y / top)

    drawn = []
    for value in _ticks(top):
        _, y = place(low, value)
        drawn.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="e">{value:g}</text>')
    last = -math.inf
    for size in sorted({x for x, _ in points}):
        x, _ = place(size, 0)
        if x - last >= along / 12:  # labels must not overlap
            drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" class="m">{size:g}</text>')
            last = x
    for number, (name, some) in enumerate(series.items()):
        colour, thick = COLOURS[number % len(COLOURS)], 3 if name == subject else 1.6
        dashes = ' stroke-dasharray="5 4"' if name in level else ""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*p) for p in sorted(some)))
        if path:
            drawn.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{thick}"{dashes}/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in (place(*p) for p in some)]
        drawn.append(_key(number, name, colour))
    drawn.append(f'<text x="{LEFT + along / 2:.0f}" y="{HEIGHT - 10}" class="m">{escape(x_label)}</text>')
    drawn.append(f'<text x="{LEFT}" y="{TOP - 8}">{escape(y_label)}</text>')
    return _page(title, drawn, WIDTH, HEIGHT)


def dots(rows: Mapping[str, Mapping[str, float]], title: str, label: str) -> str:
    """Return a plot with a row for each piece of work and a dot for each name at its value, about 0 to 1."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    left, step = 330, 24
    along, height = WIDTH - left - RIGHT, TOP + 24 + step * len(rows) + 40
    top = max([1.0, *(value for row in rows.values() for value in row.values())])
    drawn = []
    for tenth in range(0, math.floor(10 * top) + 1, 2):
        x, y = left + along * tenth / 10 / top, height - 34
        drawn.append(f'<path d="M{x:.1f} {TOP + 10}V{y}" stroke="{"#999" if tenth == 10 else "#ddd"}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{y + 16}" class="m">{tenth / 10:g}</text>')
    for line, (what, row) in enumerate(rows.items()):
        y = TOP + 28 + step * line
        drawn.append(f'<text x="{left - 12}" y="{y + 4}" class="e">{escape(what)}</text>')
        for name, value in sorted(row.items(), key=lambda item: names.index(item[0]), reverse=True):  # ours on top
            number, x = names.index(name), left + along * value / top
            colour, size = COLOURS[number % len(COLOURS)], 6 if number == 0 else 4.5
            drawn.append(f'<circle cx="{x:.1f}" cy="{y}" r="{size}" fill="{colour}" fill-opacity="0.85"/>')
    drawn += [_key(number, name, COLOURS[number % len(COLOURS)]) for number, name in enumerate(names)]
    drawn.append(f'<text x="{left + along / 2:.0f}" y="{height - 4}" class="m">{escape(label)}</text>')
    return _page(title, drawn, WIDTH, height)


def _key(number: int, name: str, colour: str) -> str:
    x, y = WIDTH - RIGHT + 20, TOP + 14 + 20 * number
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/><text x="{x + 12}" y="{y + 4}">{escape(name)}</text>'


def _page(title: str, drawn: list[str], width: int, height: int) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    paper = f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>'
    return f'{head}{paper}<text x="10" y="20" class="t">{escape(title)}</text>{"".join(drawn)}</svg>\n'


def _share(x: float, low: float, high: float, *, log: bool) -> float:
    if high == low:
        return 0.5
    return math.log(x / low) / math.log(high / low) if log else (x - low) / (high - low)


def _round_up(value: float) -> float:
    """Return the smallest of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten that is not below the value.

    >>> _round_up(4139.0), _round_up(0.7)
    (5000.0, 0.8)
    """
    unit = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 11) if step * unit >= value)


def _ticks(top: float) -> list[float]:
    return [top * part / 5 for part in range(6)]
