"""Packages that not every install has: which extra brings them, and the line that says so. Standard library only."""

import importlib.util

from verify_norm.core.errors import UsageError

EXTRAS = {  # a package, and the extra of verify-norm that installs it
    "triton": "triton",
    "typer": "cli",
    "rich": "cli",
    "scipy": "cli",
    "mpmath": "cli",
    "jinja2": "html",
    "plotly": "html",
}
NOTES = {"triton": ", or the build of Triton that your torch comes with (CUDA, ROCm, XPU)"}


def present(package: str) -> bool:
    """Return whether a package is installed, without importing it; a folder of its name is none.

    >>> present("numpy"), present("no_such_package")
    (True, False)
    """
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # something keeps it from being imported
        return False
    return found is not None and found.origin is not None


def missing(what: str, *packages: str) -> str | None:
    """Return that `what` needs packages which are not installed, and how to install them; None if all are there.

    >>> missing("an HTML page", "numpy")
    """
    lacking = [package for package in packages if not present(package)]
    if not lacking:
        return None
    extras = ",".join(dict.fromkeys(EXTRAS[package] for package in lacking))
    notes = "".join(NOTES.get(package, "") for package in lacking)
    return f"{what} needs {' and '.join(lacking)}: pip install 'verify-norm[{extras}]'{notes}"


def need(what: str, *packages: str) -> None:
    """Raise UsageError if a package that `what` needs is not installed."""
    if reason := missing(what, *packages):
        raise UsageError(reason)
