import sys

import pytest
import torch

from verify_norm.cases import corners, make
from verify_norm.checks import CHECKS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.running.execute import execute
from verify_norm.running.interpreter import patch
from verify_norm.search.diagnosis import Trial

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    patch.enable()  # before any test module imports Triton


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture
def few_corners(monkeypatch):
    """Called with a slice, lets every search of this test run these corner cases alone."""
    table = corners.corners

    def few(which):
        monkeypatch.setattr(corners, "corners", lambda *arguments, **options: table(*arguments, **options)[which])

    return few


@pytest.fixture
def unexplained(monkeypatch):
    """No search of this test tries weaker contracts on what it finds: that takes longer than the search."""
    monkeypatch.setattr(Trial, "diagnoses", lambda *_: ())


@pytest.fixture(autouse=True)
def where_modules_are_found():
    """What a test adds to sys.path is gone after it."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture
def untraced():
    """A process in which torch.compile has compiled nothing, whatever other tests did."""
    from torch import _dynamo

    _dynamo.reset()
    _dynamo.utils.counters.clear()


@pytest.fixture(scope="session")
def findings(device):
    """What all checks, or these, say of a kernel over a few cases: the last message of each, by (check, output)."""

    def of(kernel, specs, names=tuple(CHECKS)):
        found = {}
        for spec in specs:
            run = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract, device))
            assert run.problem is None, run.problem
            looking = [CHECKS[name] for name in names if CHECKS[name].applies(run.case.op) and CHECKS[name].looks(run)]
            said = [f for c in looking for f in c.function(run) if isinstance(f, Finding)]
            found |= {(f.check, f.output): f.message for f in said}
        return found

    return of
