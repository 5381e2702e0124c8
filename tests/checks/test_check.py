"""The decorator of a check: its name and first line, its silence about NaN, and a finding about the run's case."""

from dataclasses import replace

import numpy as np
import pytest
from checking import SPEC, layernorm_fwd, run_of

from verify_norm.checks import check as module
from verify_norm.checks.check import check, finding


@pytest.fixture
def table(monkeypatch):
    """An empty table of checks."""
    monkeypatch.setattr(module, "CHECKS", made := {})
    return made


def test_a_check_is_entered_under_its_name_with_its_first_line(table):
    @check(applies=lambda op: op.name == "rmsnorm_fwd")
    def parity(run):
        """The number of rows is even.

        More about it.
        """
        return ()

    one = table["parity"]
    assert (one.name, one.summary, one.function) == ("parity", "The number of rows is even.", parity)
    run = run_of(layernorm_fwd, SPEC)
    assert not one.applies(run.case.op)
    assert one.looks(run)


def test_a_check_without_words_for_users_is_refused(table):
    def silent(run):
        return ()

    with pytest.raises(AssertionError, match="check silent: expected a docstring"):
        check()(silent)
    assert table == {}


def test_numpy_warns_of_nothing_in_a_check_and_a_generator_is_run_to_its_end(table):
    @check()
    def dividing(run):
        """It divides by zero."""
        yield finding(run, "dividing", "y", f"{np.ones(1) / np.zeros(1)}", got=1.0)

    (found,) = dividing(run_of(layernorm_fwd, SPEC))  # a warning is an error in these tests
    assert (found.kernel, found.status, found.message, found.spec, found.got) == ("k", "fail", "[inf]", SPEC, 1.0)


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize(
    ("fields", "returned"),
    [
        ({}, True),
        ({"outputs": {}}, False),
        ({"outputs": {"y": None}}, False),
        ({"problem": "it fails"}, False),  # whatever came back before
    ],
)
def test_a_check_of_outputs_looks_only_where_the_kernel_came_back_with_one(table, fields, returned, looks):
    asked = []

    def has(run):
        asked.append(run)
        return looks

    def one(run):
        """It says nothing."""
        return ()

    run = replace(run_of(layernorm_fwd, SPEC), **fields)
    check(looks=has)(one)
    assert table["one"].looks(run) == (returned and looks)
    check(looks=has, of_outputs=False)(one)
    assert table["one"].looks(run) == looks
    assert asked == [run] * (1 + returned)


def test_a_finding_names_what_the_interpreter_computes_otherwise(table):
    run = run_of(layernorm_fwd, SPEC)
    assert finding(run, "accuracy", "y", "y is off").message == "y is off"
    told = finding(replace(run, differs_on_gpu=("tl.dot", "tl.atomic_add")), "accuracy", "y", "y is off").message
    assert told.startswith("y is off; ")
    assert "tl.dot and tl.atomic_add," in told
