"""`list` and `show`."""

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.core.only import CLAUSES
from verify_norm.loading import builtin


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("name", ["layernorm_bwd", "rmsnorm_fwd", "accuracy", "groupnorm_bwd"])
def test_show(name):
    result = run("show", name)
    assert result.exit_code == 0
    assert name in result.stdout


def test_show_contracts():
    result = run("show", "contracts")
    assert result.exit_code == 0
    assert "llama" in result.stdout
    assert run("show", "contract").stdout == result.stdout
    near = run("show", "contrakt")
    assert near.exit_code == 2
    assert "did you mean contracts?" in near.stderr


def test_show_only_has_every_clause():
    result = run("show", "only")
    assert result.exit_code == 0
    assert all(f"\n{clause} " in result.stdout for clause in CLAUSES)


def test_list_names_everything():
    result = run("list")
    assert result.exit_code == 0
    for name in [*builtin.BUILTIN, "accuracy", "statistics", "signature", "nonfinite", "groupnorm_bwd"]:
        assert name in result.stdout
