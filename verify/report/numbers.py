"""Numbers of a report as text: errors, shares, and values that are set."""

from math import inf, isfinite

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """Return an error in ulp or in bounds: with two decimals, or with a power of ten.

    >>> number(0.5), number(12345.6), number(1.2e-9), number(float("inf"))
    ('0.50', '12,346', '1.2 × 10⁻⁹', '∞')
    """
    if value != value:
        return "NaN"
    sign = "−" if value < 0 else ""
    size = abs(value)
    if size == inf:
        return sign + "∞"
    if size == 0 or 0.005 <= size < 999.995:
        return f"{sign}{size:.2f}" if size else "0"
    if 999.995 <= size < 999_999.5:
        return f"{sign}{size:,.0f}"
    digits, power = f"{size:.1e}".split("e")
    return f"{sign}{digits} × 10{str(int(power)).translate(RAISED)}"


def ascii_number(value: float) -> str:
    """Return a number with two decimals, or as a power of ten, in ASCII."""
    return f"{value:.2f}" if value < 1000 else f"{value:.0e}".replace("e+0", "e+")


def step(value: float) -> str:
    """Return a value that is set, such as an offset or a length: short, and whole where it is whole.

    >>> step(262144.0), step(1e-30), step(31.622776)
    ('262,144', '10⁻³⁰', '31.6')
    """
    if isfinite(value) and value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    if not isfinite(value) or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("-", "−")
    digits, power = f"{value:.2e}".split("e")
    times = "" if float(digits) == 1 else f"{float(digits):g} × "
    return f"{times}10{str(int(power)).translate(RAISED)}"


def percent(share: float) -> str:
    """Return a share as a percentage with two decimals."""
    return f"{100 * share:.2f} %"
