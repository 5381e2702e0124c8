"""The table of contracts: every name and field, with what it costs."""

import io

import pytest
from rich.console import Console

from verify_norm.cases.allowance import allowances
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import two_digits
from verify_norm.core.known import NAMES, STRICT
from verify_norm.report.contracts import show_contracts


@pytest.mark.slow
def test_it_has_every_name_and_field_and_the_costs_are_computed():
    console = Console(file=io.StringIO(), width=140, highlight=False)
    show_contracts(console)
    lines = console.file.getvalue().splitlines()
    for name in (*NAMES, *STRICT):
        assert any(line.startswith(name) for line in lines), name
    (row,) = (line.split() for line in lines if line.startswith("xhat=x ") and "bfloat16" in line)
    cost = allowances("add_layernorm_fwd", Contract(xhat="x"), "bfloat16")["y"]
    assert row[2] == two_digits(cost)
    assert [line.split()[0] for line in lines if "offset_weight=weight" in line] == [
        "offset_weight=weight",
        "xhat=x,offset_weight=weight",
    ], "it costs nothing where x and the weight are float32"
