"""Text of others for Rich, which prints it as it is."""

from rich.markup import escape as _escape

from verify_norm.core.errors import visible


def escape(text: str) -> str:
    r"""Return text that Rich takes for no markup; characters that change a terminal's state stand as escapes.

    >>> print(escape("[red]k\x1b[2J"))
    \[red]k\u001b[2J
    """
    shown = "\n".join(map(visible, text.split("\n")))
    bare = shown.rstrip("\\")
    backslashes = 2 * (len(shown) - len(bare)) * "\\"  # before a tag Rich halves them
    return _escape(bare) + (f"{backslashes}[bold][/bold]" if backslashes else "")
