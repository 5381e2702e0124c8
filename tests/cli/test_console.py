"""Standard error: a mistake is one line and status 2, and what a user typed is printed as it is."""

import pytest
import typer

from verify_norm.cli import console
from verify_norm.core.errors import UsageError


def test_a_mistake_is_one_line_and_status_2(capsys):
    with pytest.raises(typer.Exit) as caught, console.statuses():
        raise UsageError("no file [red]mine.py[/] " + "x" * 300)
    assert caught.value.exit_code == 2
    said = capsys.readouterr()
    assert said.err == f"verify-norm: no file [red]mine.py[/] {'x' * 300}\n"  # neither wrapped nor taken for markup
    assert said.out == ""


def test_any_other_error_is_ours_and_says_how_to_report_it(capsys):
    with pytest.raises(typer.Exit) as caught, console.statuses():
        1 / 0  # noqa: B018
    assert caught.value.exit_code == 70
    assert "ZeroDivisionError" in (said := capsys.readouterr().err)
    assert "report it" in said


def test_a_note_is_a_line_as_it_is(capsys):
    console.complain("second [bold]")
    assert capsys.readouterr().err == "verify-norm: second [bold]\n"
