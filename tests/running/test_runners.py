"""Where a kernel runs, by what was asked for and by whether another process can find it."""

import pytest

from verify_norm.core.kernel import Kernel
from verify_norm.loading import functions, registry
from verify_norm.running import isolate, runners
from verify_norm.running.isolate import InProcess, Isolated
from verify_norm.running.untrusted import runner as untrusted

NAMED = registry.load("rmsnorm_fwd")
UNNAMED = Kernel("k", "rmsnorm_fwd", run=NAMED.run)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch):
    monkeypatch.setattr(functions, "_remembered", None)


@pytest.mark.parametrize(
    ("kernel", "isolates", "note"),
    [(NAMED, False, "a crash"), (UNNAMED, False, "a crash"), (UNNAMED, True, isolate.NO_TARGET)],
)
def test_a_kernel_runs_here_where_it_shall_or_must(kernel, isolates, note):
    place = runners.runner(kernel, "cuda:1", isolate=isolates)
    assert isinstance(place, InProcess)
    assert (place.kernel, place.device) == (kernel, "cuda:1")
    assert place.note.startswith("none: ")
    assert note in place.note
    assert functions.remembered() is functions.remembered(), "of the judge, before the kernel runs"


@pytest.mark.parametrize(("options", "preload"), [({}, isolate.__name__), ({"preload": "json"}, "json")])
def test_a_kernel_with_a_name_runs_in_a_child(options, preload):
    place = runners.runner(NAMED, "cuda:1", isolate=True, **options)
    assert isinstance(place, Isolated)
    assert (place.kernel, place.device, place._preload) == (NAMED, "cuda:1", preload)
    place.close()


def test_a_kernel_that_nobody_trusts_runs_by_proxy(monkeypatch):
    monkeypatch.setattr(untrusted, "Untrusted", lambda *given: given)
    assert runners.runner(NAMED, "cuda:1", isolate=False, untrusted=True) == (NAMED, "cuda:1")
