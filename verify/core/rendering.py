"""What a report says of itself in Python: text, HTML, JSON, Markdown, rows. The renderers load when they are called."""

import importlib
from typing import Any

from verify_norm.core import packages


def _render(module: str, function: str, *documents: Any) -> Any:
    """Return what a function of verify_norm.report makes of reports: `core` imports nothing that stands above it."""
    try:
        renderer = importlib.import_module(f"verify_norm.report.{module}")
    except ModuleNotFoundError as error:
        if error.name in packages.EXTRAS:
            packages.need("this form of a report", error.name)
        raise
    return getattr(renderer, function)(*documents)


class Rendered:
    """One report or several, as people and programs read them."""

    __slots__ = ()

    def _each(self) -> tuple[Any, ...]:
        return (self,)

    def __str__(self) -> str:
        """Return what the command line prints. Raises UsageError without rich."""
        return str(_render("terminal", "text", *self._each()))

    def _repr_html_(self) -> str:
        """Return a compact table, which notebooks show."""
        return str(_render("notebook", "table", *self._each()))

    def to_json(self, path: str = "") -> str:
        """Return what --json writes, and write it to the file `path` if there is one. Raises UsageError."""
        return _written(_render("documents", "dump", *self._each()), path)

    def to_markdown(self, path: str = "") -> str:
        """Return the report in Markdown, and write it to the file `path` if there is one. Raises UsageError."""
        return _written(_render("markdown", "of", *self._each()), path)

    def to_html(self, path: str = "") -> str:
        """Return the page of --html, and write it to the file `path` if there is one.

        Raises UsageError: the file cannot be written, or Jinja2 is missing.
        """
        return _written(_render("html.page", "pages", *self._each()), path)

    def findings_frame(self) -> Any:
        """Return a pandas.DataFrame with a row for each finding; raises ImportError without pandas."""
        return _render("notebook", "frame", *self._each())


def _written(text: str, path: str) -> str:
    from verify_norm.core import files

    if path:
        files.writable(str(path))
        files.write(text, str(path))
    return text
