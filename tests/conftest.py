import gc
import os
import pickle
import signal
import sys
import time
from collections import defaultdict
from math import ceil
from pathlib import Path
from zlib import crc32

import pytest
import torch
from filelock import FileLock  # torch requires it

from verify_norm.cases import corners, covering, make
from verify_norm.checks import CHECKS, calls, honesty
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.running.execute import execute
from verify_norm.running.interpreter import patch
from verify_norm.search.diagnosing import Trial

gc.disable()  # until all is imported and collected, which leaves hardly any garbage
ROOT = str(Path(__file__).parent.parent)
# `python -m pytest` puts it there: then tests, reference and kernels are packages, which no user has.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != ROOT]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Else inductor compiles a program to try each set of instructions.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    patch.enable()  # before any test module imports Triton
# A series of calls is as short as it may be: else a right kernel under all checks spends half of the time in it.
SERIES = {check: check.SECONDS for check in (calls, honesty)}
for check in SERIES:
    check.SECONDS = 0.0


def pytest_addoption(parser):
    parser.addoption("--cases", type=int, metavar="N", help="at most N cases of each test, the same in every run")


def by_test(items):
    """Return the cases of each test, in an order that mixes what alternates, the same in every run."""
    tests = defaultdict(list)
    for item in sorted(items, key=lambda item: crc32(item.name.encode())):
        tests[item.path, item.function].append(item)
    return tests.values()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave most cases of a `sampled` test to make nightly, and with --cases, of all that are chosen, all but some."""
    for cases in by_test(items):
        sampled = cases[0].get_closest_marker("sampled")
        for item in cases[ceil(len(cases) / sampled.args[0]) :] if sampled else ():
            item.add_marker("nightly")
    yield
    if most := config.getoption("--cases"):
        tests = by_test(items)
        config.hook.pytest_deselected(items=[item for cases in tests for item in cases[most:]])
        items[:] = [item for cases in tests for item in cases[:most]]


def pytest_collection_finish():
    """Leave torch and ten thousand tests out of every later garbage collection: they took a quarter of the time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Called with a name and a function, returns the function's result; of all workers one calls it."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def of(name, function):
        path = folder / f"{name}.pickle"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                path.write_bytes(pickle.dumps(function()))
        return pickle.loads(path.read_bytes())

    return of


@pytest.fixture
def few_corners(monkeypatch):
    """Called with a slice, lets every search of this test run these corner cases alone, and few of others."""
    table = corners.corners

    def few(which):
        monkeypatch.setattr(covering, "LAST_TRIES", 1)  # nearly all are made for pairs that cannot meet
        monkeypatch.setattr(corners, "corners", lambda *arguments, **options: table(*arguments, **options)[which])

    return few


@pytest.fixture
def long_series(monkeypatch):
    """A series of calls is as long as in a user's run: a race between two threads needs it."""
    for check, seconds in SERIES.items():
        monkeypatch.setattr(check, "SECONDS", seconds)


@pytest.fixture
def unexplained(monkeypatch):
    """No search of this test tries weaker contracts on what it finds: that takes longer than the search."""
    monkeypatch.setattr(Trial, "diagnoses", lambda *_: ())


@pytest.fixture
def pause(monkeypatch):
    """The clock counts this process's work alone, whatever else the machine does; a call of this lets seconds pass."""
    passed = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: time.process_time() + passed[0])
    return lambda seconds: passed.append(passed.pop() + seconds)


@pytest.fixture(autouse=True)
def where_modules_are_found():
    """What a test adds to sys.path is gone after it."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def untraced():
    """What torch.compile has compiled in a test is gone after it: `modes` does not compile where it is in use."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    counters = dynamo.utils.counters if dynamo else {}
    if dynamo and (counters["frames"]["ok"] or counters["stats"]["unique_graphs"]):  # no frames by fullgraph=True
        dynamo.reset()
        counters.clear()


@pytest.fixture(scope="session")
def findings(device):
    """What checks say of a kernel in some cases, all if none is named: the last message of each, by (check, output)."""

    def of(kernel, specs, *names):
        found, chosen = {}, [CHECKS[name] for name in names or CHECKS]
        for spec in specs:
            run = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract, device))
            assert run.problem is None, run.problem
            looking = [c for c in chosen if c.applies(run.case.op) and c.looks(run)]
            said = [f for c in looking for f in c.function(run) if isinstance(f, Finding)]
            found |= {(f.check, f.output): f.message for f in said}
        return found

    return of
