"""A campaign as one page without scripts: a row for each kernel, and the findings."""

from verify_norm import __version__
from verify_norm.campaign.comparison import SAME
from verify_norm.campaign.summary import Summary, lacking
from verify_norm.core import packages
from verify_norm.core.errors import Exit
from verify_norm.report.campaign import basis
from verify_norm.report.html.page import POLICY, environment, hashed, resource

WORDS = {  # of a verdict: its class in the style sheet, and itself
    Exit.PASS: ("pass", "PASS"),
    Exit.FINDINGS: ("fail", "FAIL"),
    Exit.NOTHING: ("none", "nothing checked"),
    Exit.INCOMPLETE: ("part", "INCOMPLETE"),
}


def page(found: Summary) -> str:
    """Return the page; raises UsageError if a package that it needs is missing."""
    packages.need("an HTML page", "jinja2")
    from markupsafe import Markup

    style = resource("page.css")
    return (
        environment()
        .get_template("campaign.html")
        .render(
            found=found,
            basis=basis(found),
            same=SAME,
            lacking=lacking(found),
            policy=POLICY.format("'none'", hashed(style)),
            style=Markup(style),
            verdicts=WORDS,
            version=__version__,
            window_title=f"{found.path} (verify-norm campaign)",
        )
    )
