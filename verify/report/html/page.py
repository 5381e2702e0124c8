"""Reports and audits as one page that needs nothing else: it works offline, on paper, and as text without JavaScript.

The page stands on `markup`, which escapes whatever comes from a kernel, a path or a message, and on a policy that lets
the browser run the page's own scripts alone, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.util import find_spec

from verify_norm import __version__
from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.bind import UsageError
from verify_norm.report.html.checks import checks, environment, rows
from verify_norm.report.html.errors import errors
from verify_norm.report.html.figures import Drawn
from verify_norm.report.html.fingerprint import fingerprint
from verify_norm.report.html.ladders import ladders
from verify_norm.report.html.markup import Html, data, pairs, replay, tag, verbatim
from verify_norm.report.html.words import contract, count, evidence, number, verdict
from verify_norm.report.model import Report
from verify_norm.spec import Finding

BEGIN = 'document.documentElement.classList.add("js");'  # before anything is shown
POLICY = (  # plotly sets styles as it draws, and draws maps as images of its own
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)


def missing() -> str | None:
    """Why no page can be made here, and what to do about it; None where one can.

    >>> missing()
    """
    if find_spec("plotly") is None:
        return "an HTML page needs plotly, which is not installed here: pip install 'verify-norm[html]'"
    return None


def page(document: Document, title: str = "") -> str:
    """The page of one report or audit, as `pages` makes it."""
    return pages(document, title=title)


def pages(*documents: Document, title: str = "") -> str:
    """One page of several reports or audits, as of a forward and a backward, one after the other.

    Parameters
    ----------
    documents
        one or more; of an audit all parts are shown, of a report its verdict, errors, checks and environment.
    title
        the page's; if not said, what it is, and in the window's bar the kernels and their verdicts.

    Raises
    ------
    UsageError : plotly is missing.
    ValueError : there is no document.
    """
    if reason := missing():
        raise UsageError(reason)
    if not documents:
        raise ValueError("no report to make a page of")
    from plotly.offline import get_plotlyjs  # the page alone needs it

    drawn = Drawn()
    articles = [_article(document, at, drawn) for at, document in enumerate(documents, 1)]
    scripts = (BEGIN, get_plotlyjs().replace("\r\n", "\n"), _file("page.js"))  # as a browser reads them, for the hashes
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    policy = POLICY.format(" ".join(f"'sha256-{one}'" for one in hashes))
    begin, plotly, end = map(verbatim, scripts)
    names = "; ".join(f"{report_of(one).kernel}: {verdict(one).word}" for one in documents)
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"), tag("title", title or f"{names} (verify-norm)"),
        tag("link", rel="icon", href="data:,"), tag("style", verbatim(_file("page.css"))),
        tag("script", begin),
    )  # fmt: skip
    kept = (  # as text, for the page's script
        tag("script", data(drawn.figures), type="application/json", id="figures"),
        tag("script", plotly, type="text/plain", id="plotly"),
    )
    body = tag("body", _top(documents, title), tag("main", *articles), _foot(), *kept, tag("script", end))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return resources.files("verify_norm.report.html").joinpath(name).read_text(encoding="utf-8")


def _top(documents: tuple[Document, ...], title: str) -> Html:
    """What the page is; of several documents, where they are."""
    what = "audit" if any(isinstance(one, Audit) for one in documents) else "report"
    date = next((report_of(one).environment.get("date") for one in documents), None)
    links = (
        tag("li", tag("a", report_of(one).kernel, href=f"#run-{at}"), " ", tag("span", said.word, class_=said.kind))
        for at, one in enumerate(documents, 1) for said in [verdict(one)]
    )  # fmt: skip
    contents = tag("nav", tag("ul", *links), aria_label="Kernels") if len(documents) > 1 else None
    brand = tag("div", tag("h1", title or f"verify-norm {what}"), tag("p", date) if date else None, class_="brand")
    return tag("header", brand, contents)


def _foot() -> Html:
    made = f"Made by verify-norm {__version__}: the truth is a float64 reference, the bounds follow from the contract."
    without = "Without JavaScript there are no figures; what they show is in the tables and the sentences beside them."
    live = tag("p", class_="live", role="status", aria_live="polite")
    return tag("footer", tag("p", made), tag("noscript", tag("p", without)), live)


def _article(document: Document, at: int, drawn: Drawn) -> Html:
    """One kernel: the verdict, the findings, and the parts."""
    parts = [(name, content, f"run-{at}-{name.lower()}") for name, content in _parts(document, drawn) if content]
    spoken = f"Parts of the report on {report_of(document).kernel}"
    tabs = tag("nav", *(tag("a", name, href=f"#{id_}") for name, _, id_ in parts), class_="tabs", aria_label=spoken)
    panels = (tag("section", tag("h3", name), content, id=id_, class_="panel") for name, content, id_ in parts)
    return tag("article", _verdict(document), *_findings(document), _against(document), tabs, *panels, id=f"run-{at}")


def _parts(document: Document, drawn: Drawn) -> Iterator[tuple[str, Html | None]]:
    yield "Errors", errors(document, drawn) or tag("p", "No output was compared with the truth.")
    if isinstance(document, Audit):
        why = {skip.what: skip.reason for skip in document.skipped}
        for name, content in (
            ("Ladders", ladders(document, drawn)), ("Fingerprint", fingerprint(document)),
            ("Rows", rows(document, drawn)),
        ):  # fmt: skip
            yield name, content or tag("p", f"Nothing to show: {why.get(name.lower(), 'this part was not done')}.")
    yield "Checks", checks(document)
    yield "Environment", environment(document)


def _verdict(document: Document) -> Html:
    report, said = report_of(document), verdict(document)
    label = evidence(report)
    facts = (
        ("Operator", report.op), ("Device", report.environment.get("device", report.settings.device)),
        ("Backend", report.backend), ("Types", ", ".join(report.settings.dtypes)),
        ("Contract", contract(report.contract)),
    )  # fmt: skip
    heading = tag("h2", tag("span", report.kernel), tag("strong", said.word, class_="word"))
    lines = (tag("p", said.line, class_="line"), tag("p", label, class_="label") if label else None)
    return tag("header", heading, *lines, pairs(facts), class_=f"verdict {said.kind}")


def _findings(document: Document) -> Iterator[Html]:
    report = report_of(document)
    if report.findings:
        listed = tag("ol", *(_finding(report, one) for one in report.findings), class_="findings")
        yield tag("section", tag("h3", count(len(report.findings), "finding")), listed)


def _finding(report: Report, one: Finding) -> Html:
    """What failed, where, got, wanted, how far, what was allowed, and the line that replays it."""
    unit = " ULP" if one.ulp is not None else ""  # what is allowed between two results has the unit of these
    facts: list[tuple[object, object]] = []
    if one.got is not None and one.want is not None:
        facts += [("got", tag("code", repr(one.got))), ("want", tag("code", repr(one.want)))]
    facts += [(name, number(value) + unit) for name, value in (("error", one.ulp), ("allowed", one.allowed))
              if value is not None]  # fmt: skip
    facts += [("seen in", count(one.cases, "case"))]
    facts += [("first in", f"case {one.after:,}")] if one.after > 1 else []
    facts += [("during", one.during)] if one.during else []
    where = " · ".join(part for part in (one.check, one.output, one.spec.dtype) if part)
    message = tag("p", one.message, class_="message")
    return tag("li", tag("h4", where), message, pairs(facts), replay(report, one.spec))


def _against(document: Document) -> Html | None:
    if not isinstance(document, Audit) or not document.disagreements:
        return None
    lines = tag("ul", *(tag("li", line) for line in document.disagreements), class_="against")
    return tag("section", tag("h3", "Against its contract"), lines)
