"""Reports and audits as one page that needs nothing else: it works offline, on paper, and as text without JavaScript.

The modules beside this one prepare the content of the page's parts, and `templates` lays it out. Jinja2's autoescape
escapes every text, wherever it comes from; only the style sheet and the scripts of this package are markup. A policy
lets the browser take the page's own scripts and style sheet only, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict
from importlib import resources
from typing import TYPE_CHECKING, Any

from verify_norm import __version__
from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.core import packages
from verify_norm.core.case_words import case, count
from verify_norm.core.errors import UsageError
from verify_norm.core.report_text import declaration, explanation, next_step, replay_line
from verify_norm.core.spec import LAYOUTS
from verify_norm.report import basis, words
from verify_norm.report.detected import detected, detected_by_all, relative
from verify_norm.report.glossary import GLOSSARY
from verify_norm.report.html.errors import errors
from verify_norm.report.html.fingerprint import fingerprint
from verify_norm.report.html.ladders import ladders
from verify_norm.report.html.rows import rows
from verify_norm.report.ladders import algorithm
from verify_norm.report.numbers import number, percent, step
from verify_norm.report.worst import CONDITION, worst_cases

if TYPE_CHECKING:
    from jinja2 import Environment

FILTERS = (algorithm, words.contract, words.no_data, number, percent, words.setting, words.skip_line, step)
BEGIN = 'document.documentElement.classList.add("js");'  # before anything is shown
POLICY = "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'"


def missing() -> str | None:
    """Return why no page can be made here, and what to do about it; None where one can.

    >>> missing()
    """
    return packages.missing("an HTML page", "jinja2")


def pages(*documents: Document, title: str = "") -> str:
    """Return one page of several reports or audits, for example of a forward and a backward, one after the other.

    Parameters
    ----------
    documents : one or more; the page has all parts of an audit, and the verdict, errors and checks of a report.
    title : of the page; by default "verify-norm report" or "audit", and in the window's bar the kernels' verdicts.

    Raises
    ------
    UsageError : a package that the page needs is missing.
    ValueError : there is no document.
    """
    if reason := missing():
        raise UsageError(reason)
    if not documents:
        raise ValueError("expected one or more reports, got none")
    from markupsafe import Markup  # the page alone needs it

    articles = [_article(document, place) for place, document in enumerate(documents, 1)]
    script, style = resource("page.js"), resource("page.css")
    names = "; ".join(f"{one['report'].kernel}: {one['headline'].word}" for one in articles)
    kind = "audit" if any(isinstance(one, Audit) for one in documents) else "report"
    template = environment().get_template("page.html")
    return template.render(
        articles=articles,
        date=next((report_of(one).environment.get("date") for one in documents), None),
        glossary=GLOSSARY,
        policy=POLICY.format(f"{hashed(BEGIN)} {hashed(script)}", hashed(style)),
        scripts={"begin": Markup(BEGIN), "end": Markup(script)},
        style=Markup(style),
        title=title or f"verify-norm {kind}",
        version=__version__,
        window_title=title or f"{names} (verify-norm)",
    )


def resource(name: str) -> str:
    """Return the text of a file of this package."""
    return resources.files("verify_norm.report.html").joinpath(name).read_text(encoding="utf-8")


def hashed(source: str) -> str:
    """Return a script or a style sheet as the page's policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def environment() -> Environment:
    """Return the environment of the templates: what they print is printable, and escaped unless it is markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("verify_norm.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else words.printable(value),
    )
    made.filters |= {one.__name__: one for one in FILTERS} | {"case": case, "quantity": count}
    made.filters |= {"largest": lambda values: max(values, default=0.0), "thousands": "{:,}".format}
    made.filters["relative"] = relative
    made.globals |= {"detected": detected, "detected_by_all": detected_by_all, "replay_line": replay_line}
    made.globals |= {"declaration": declaration, "explanation": explanation, "next_step": next_step}
    made.globals |= {"worst_cases": worst_cases, "condition_heads": list(CONDITION)}
    return made


def _article(document: Document, place: int) -> dict[str, Any]:
    """Return the content of one kernel: the verdict, the findings, and the content of each part by its name."""
    report, audit = report_of(document), document if isinstance(document, Audit) else None
    parts: dict[str, Any] = {"Errors": errors(document)}
    if audit is not None:
        parts |= {"Ladders": ladders(audit), "Fingerprint": fingerprint(audit), "Rows": rows(audit)}
    skipped = audit.skipped if audit else ()
    parts["Checks"] = {"skipped": report.skipped + skipped, "layouts": _layouts(report.layouts)}
    parts["Environment"] = {"settings": asdict(report.settings), "schema": document.schema}
    absent = {skip.what: f"Nothing to show: {skip.reason}." for skip in skipped}
    return {
        "id": f"run-{place}",
        "report": report,
        "headline": words.headline(document),
        "evidence": basis.evidence(report),
        "seen": basis.seen(report),
        "disagreements": audit.disagreements if audit else (),
        "absent": absent | {"errors": "No output was compared with the truth."},
        "parts": parts,
    }


def _layouts(layouts: dict[str, int]) -> dict[str, Any]:
    """Return a table with a row for each tensor: in how many cases it had each layout."""
    times: dict[str, dict[str, int]] = {}  # by tensor, then by layout
    for key, cases in layouts.items():
        tensor, _, layout = key.rpartition(" ")
        times.setdefault(tensor, {})[layout] = cases
    known = {layout: place for place, layout in enumerate(LAYOUTS)}
    met = {layout for of_tensor in times.values() for layout in of_tensor}
    columns = sorted(met, key=lambda layout: (known.get(layout, len(known)), layout))
    rows = [(tensor, *(of_tensor.get(layout, "–") for layout in columns)) for tensor, of_tensor in times.items()]
    return {"heads": ["tensor", *(layout.replace("_", " ") for layout in columns)], "rows": rows}
