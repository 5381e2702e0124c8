"""What is done with results that are there: comparing two files of them, and describing their shape."""

from __future__ import annotations

from typing import Annotated

import typer

from verify_norm import config, session
from verify_norm.bind import UsageError
from verify_norm.commands import options


def compare(
    old: Annotated[str, typer.Argument(help="The reports of an earlier run, as --json wrote them.")],
    new: Annotated[str, typer.Argument(help="Those of a later one, or of another kernel for the same operator.")],
    json_path: Annotated[str, options.JSON] = "",
    markdown_path: Annotated[str, typer.Option("--markdown", help="Write Markdown there; - for standard output.")] = "",
) -> None:
    """Tell what got worse or better from one run to another, beyond sampling noise; worse is exit status 1."""
    with session.usage_errors():
        session.writable(json_path)
        session.writable(markdown_path)
        if json_path and json_path == markdown_path:
            raise UsageError(f"--json and --markdown are both {json_path}")
        from verify_norm.report import compare as comparing
        from verify_norm.report import difference, markdown, terminal
        from verify_norm.report import json as form

        limits = config.limits()
        found = comparing.compare(form.read(old), form.read(new), limits)
        if not found.pairs:
            one, other = (", ".join(names) for names in (found.old_alone, found.new_alone))
            raise UsageError(f"nothing to compare: {old} has {one}; {new} has {other}")
        if "-" not in (json_path, markdown_path):
            difference.show(found, terminal.console())
        session.write(form.dump_comparison(found) if json_path else "", json_path)
        page = markdown.of_comparison(found)
        session.write(page if markdown_path else "", markdown_path)
        session.summarize(page)
        raise typer.Exit(1 if found.worse else 0)


def schema(
    kind: Annotated[str, typer.Argument(help="report, audit, comparison, or case: a replay line's.")] = "report",
) -> None:
    """Print the JSON Schema of what --json writes."""
    with session.usage_errors():
        from verify_norm.registry import one_of
        from verify_norm.report import schema as form

        session.write(form.text(one_of("kind of document", kind, form.KINDS)), "-")
