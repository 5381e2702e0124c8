"""HTML by construction: every text is escaped, unless it was made here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from verify_norm.report.html.words import number
from verify_norm.report.model import Report
from verify_norm.report.text import replay_line
from verify_norm.spec import CaseSpec

VOID = ("br", "link", "meta")
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}  # to their pictures


class Html(str):
    """Text that is markup already. Only this module makes one of a plain string, and of strings of this project."""

    __slots__ = ()


def text(value: object) -> Html:
    """The value as it reads, in markup: nothing in it has a meaning, and what UTF-8 has no code for is a "?".

    >>> text("</script>"), text(Html("<b>bold</b>"))
    ('&lt;/script&gt;', '<b>bold</b>')
    """
    if isinstance(value, Html):
        return value
    plain = str(value).translate(CONTROLS).encode("utf-8", "replace").decode()
    return Html(html.escape(plain))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Children are escaped where they are no Html, and left out where they are None.

    Attributes are named as in Python: `class_`, `aria_label`. One that is True stands alone; None or False is left out.

    >>> tag("p", "a < b", tag("br"), class_="note", hidden=True)
    '<p class="note" hidden>a &lt; b<br></p>'
    """
    inner = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{inner}>")
    return Html(f"<{name}{inner}>{join(children)}</{name}>")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def join(parts: Iterable[object]) -> Html:
    """The parts one after the other."""
    return Html("".join(text(part) for part in parts if part is not None))


def verbatim(source: str) -> Html:
    """A style sheet, a script, or a drawing of our own, as it is; never what comes from a kernel or a report."""
    return Html(source)


def data(value: Any) -> Html:
    """The value as JSON that may stand in a <script> element, which nothing in it can end.

    >>> data({"name": "</script><!--"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 is \u2028, half a pair is one too
    return Html(plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def label(value: object) -> str:
    """The value for a label of plotly's, which reads a few of HTML's tags.

    >>> label("<b>a & b</b>")
    '&lt;b&gt;a &amp; b&lt;/b&gt;'
    """
    return html.escape(str(value).translate(CONTROLS).encode("utf-8", "replace").decode(), quote=False)


def table(
    caption: str, heads: Iterable[str], rows: Iterable[Iterable[object]], *, words: int = 1, prose: bool = False
) -> Html:
    """A table whose first `words` columns are words, and the others numbers; the first heads its row.

    Where it is wider than the page it scrolls sideways; one of `prose` has its rows as blocks there instead, and says
    to those who do not see it that it is a table still.
    """
    heads = list(heads)

    def cell(at: int, value: object) -> Html:
        if at == 0:
            return tag("th", value, scope="row", role="rowheader" if prose else None)
        kind, role = None if at < words else "n", "cell" if prose else None
        return tag("td", value, class_=kind, role=role, data_head=heads[at] if prose else None)

    role = "row" if prose else None
    names = (tag("th", name, scope="col", class_=None if at < words else "n") for at, name in enumerate(heads))
    body = (tag("tr", *(cell(at, value) for at, value in enumerate(row)), role=role) for row in rows)
    inner = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *names)), tag("tbody", *body),
        role="table" if prose else None, class_="prose" if prose else None,
    )  # fmt: skip
    return tag("div", inner, class_="wide", tabindex=0, role="region", aria_label=caption)


def pairs(rows: Iterable[tuple[object, object]], class_: str = "facts") -> Html:
    """Names and what they stand for."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows), class_=class_)


def folded(summary: object, *inner: object) -> Html:
    """What is opened at will."""
    return tag("details", tag("summary", summary), *inner)


def replay(report: Report, spec: CaseSpec) -> Html:
    """The line that runs a case again; the page's script adds a button that copies it."""
    return tag("div", tag("code", replay_line(report, spec)), class_="replay")


def judged(ratio: float) -> Html:
    """An error/bound, marked where it is more than 1."""
    over = not ratio <= 1
    return tag("span", number(ratio), class_="over" if over else None, title="over its bound" if over else None)
