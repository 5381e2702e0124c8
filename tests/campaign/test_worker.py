"""A unit is searched as its plan says: with its own seed, types, contract and cases, and what the plan has for all."""

from dataclasses import replace

import campaigns
import pytest

from verify_norm.campaign import traits, worker
from verify_norm.campaign.plan import checked, expand
from verify_norm.search import search

ASKED = {"kernels": ["rmsnorm_fwd_torch"], "examples": 6, "block": 3, "checks": ["accuracy"], "device": "cpu"}


@pytest.fixture(scope="module")
def plan():
    """A plan for the CPU; no constant, since a process whose Triton is the GPU's refuses it."""
    return checked(ASKED)


@pytest.fixture
def units(plan):
    return expand(plan)


@pytest.fixture
def searched(monkeypatch):
    """What is searched, instead of searches."""
    met = []
    monkeypatch.setattr(search, "search", lambda kernel, settings: met.append((kernel, settings)) or campaigns.report())
    monkeypatch.setattr(traits, "traits", lambda kernel, dtype, device: {"of": f"{kernel.name} {dtype} {device}"})
    return met


OWN = {"seed": 41, "examples": 2, "dtype": "bfloat16", "contract": "xhat=x", "only": "ndim=2"}
EXPECTED = {"dtype": ("bfloat16",), "contract": "x"}


@pytest.mark.parametrize("name", OWN)
def test_what_a_unit_has_itself(searched, plan, units, name):
    for unit in (units[0], replace(units[0], **{name: OWN[name]})):
        found = worker.examine(unit, plan.settings, "w")
        assert (found.problem, found.worker, found.unit) == ("", "w", unit.id)
    usual, own = (
        {"seed": s.seed, "examples": s.examples, "dtype": s.dtypes, "contract": k.contract.xhat, "only": k.only}
        for k, s in searched
    )
    assert usual == {"seed": 0, "examples": 3, "dtype": ("float32",), "contract": None, "only": ""}
    assert own == usual | {name: EXPECTED.get(name, OWN[name])}


def test_the_first_block_has_the_tables_and_what_is_compared(searched, plan, units):
    for unit in units:
        found = worker.examine(replace(unit, accelerator="H100"), plan.settings, "w")
        assert bool(found.traits) == (unit.block == 0)
        assert searched[-1][1].tables == (unit.block == 0)
    assert not worker.examine(units[0], plan.settings, "w").traits
    assert {unit.block for unit in units} == {0, 1}


def test_a_file_that_has_changed_is_a_problem(searched, plan, units):
    found = worker.examine(replace(units[0], source="another"), plan.settings, "w")
    assert "not the one that the plan was made of" in found.problem
    assert not searched
