"""Packages that not every install has: which extra brings them, and the line that says so. Standard library only."""

import importlib.metadata
import importlib.util
import re

from verify_norm.core.errors import UsageError

EXTRAS = {  # a package, and the extra of verify-norm that installs it
    "triton": "triton",
    "typer": "cli",
    "rich": "cli",
    "scipy": "cli",
    "mpmath": "cli",
    "jinja2": "html",
    "ray": "ray",
}
TRITON = (3, 6)  # the oldest whose interpreter is patched, and that our own kernels compile with
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


def without_triton() -> str:
    """Return why Triton cannot be used: it is not installed, or too old; "" if it can."""
    if not present("triton"):
        return "Triton is not installed"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build of another name, such as that of ROCm or XPU
        return ""
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    oldest = ".".join(map(str, TRITON))
    return f"Triton {version} is older than {oldest}" if release < TRITON else ""
