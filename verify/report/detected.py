"""The errors that a run would have detected, in words: `verify_norm.checks.power` says what they are."""

from math import inf

from verify_norm.core.results import Report

PLACES = {
    "everything": "all of any output",
    "row": "one row of it in every case",
    "element": "one element of it in every case",
}


def detected(report: Report, check: str = "", errors: str = "everything") -> str:
    """Return the e of a factor 1 ± e on any one output that would have shown, in words, type by type; "" if untold.

    By this check alone, or by any of the run. Each type has the e of its least sensitive output. `errors` names a field
    of Detectable.
    """
    found: dict[str, dict[str, float]] = {}
    for one in report.detectable:
        error = getattr(one, errors)
        if error is not None and check in ("", one.check):
            outputs = found.setdefault(one.dtype, {})
            outputs[one.output] = min(error, outputs.get(one.output, inf))
    words = []
    for dtype, outputs in found.items():
        name = max(outputs, key=outputs.__getitem__)
        words.append(f"{relative(outputs[name])} ({dtype} {name})")
    return ", ".join(words)


def detected_by_all(report: Report) -> list[tuple[str, str]]:
    """Return the same of the whole run: where the error is put in, and the e; nothing if untold."""
    found = [(place, detected(report, errors=name)) for name, place in PLACES.items()]
    return [(place, words) for place, words in found if words]


def relative(error: float) -> str:
    """Return a relative error; from 1 on there is no factor 1 − e to detect.

    >>> relative(1.234e-5), relative(float("inf"))
    ('1.2e-05', 'none')
    """
    return f"{error:.1e}" if error < 1 else "none"
