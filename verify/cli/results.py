"""What can be done with results: compare two files of them, and describe their JSON."""

from typing import Annotated

import typer

from verify_norm.cli import options
from verify_norm.cli.outputs import apart, summarize, write
from verify_norm.core import files
from verify_norm.core.errors import Exit, UsageError, one_of


def compare(
    context: typer.Context,
    old: Annotated[str, typer.Argument(help="Reports of an earlier run, as --json wrote them.")],
    new: Annotated[str, typer.Argument(help="Reports of a later run, or of another kernel for the same operator.")],
    json_path: Annotated[str, options.JSON] = "",
    markdown_path: Annotated[
        str, typer.Option("--markdown", help="Write Markdown to this file. - is standard output.")
    ] = "",
) -> int:
    """Compare the results of two runs.

    Both have to check equal cases. Lists what got worse or better; exit status 1 if anything is worse.
    """
    apart({"--json": json_path, "--markdown": markdown_path}, read=(old, new))
    files.writable(json_path)
    files.writable(markdown_path, ours=("### ",))
    from verify_norm.report import difference, documents, markdown, terminal
    from verify_norm.report.compare import compare as comparing

    found = comparing.compare(documents.read(old), documents.read(new), context.obj.limits)
    if not found.pairs:
        one, other = (", ".join(names) for names in (found.old_alone, found.new_alone))
        raise UsageError(f"nothing to compare: {old} has {one}; {new} has {other}")
    if "-" not in (json_path, markdown_path):
        difference.show_comparison(found, terminal.console())
    write(documents.dump_comparison(found) if json_path else "", json_path)
    page = markdown.of_comparison(found)
    write(page if markdown_path else "", markdown_path)
    summarize(page)
    return Exit.FINDINGS if found.worse else Exit.PASS


def schema(
    kind: Annotated[
        str, typer.Argument(help="report, audit, comparison, same, exhaust, or case (a replay line).")
    ] = "report",
) -> int:
    """Print the JSON Schema of what --json writes."""
    from verify_norm.report import schema as form

    write(form.text(one_of("kind of document", kind, form.KINDS)), "-")
    return Exit.PASS
