"""What is compiled is counted, and what another process has compiled is found on disk."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from small_runs import rmsnorm_fwd, run
from torch._dynamo import callback
from triton import knobs

from verify_norm.core.work import Compiled
from verify_norm.running import compilation


def heard(seconds, *, cached=False):
    """Tell Triton's listener of a kernel, as Triton does."""
    times = SimpleNamespace(total=seconds * 1e6)
    knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=cached)


@pytest.fixture
def meter(monkeypatch):
    """A meter, and what a listener of the user hears; afterwards nobody listens."""
    theirs, handler = [], callback.callback_handler
    for name in ("start_callbacks", "end_callbacks"):
        monkeypatch.setattr(handler, name, list(getattr(handler, name)))
    monkeypatch.setattr(knobs.compilation, "listener", lambda **facts: theirs.append(facts["cache_hit"]))
    made = compilation.Meter()
    made.watch()
    made.watch()
    made.theirs = theirs
    return made


def test_kernels_are_counted_and_a_listener_of_the_user_still_hears_them(meter):
    heard(1.5)
    heard(0.25)
    heard(9.0, cached=True)
    assert meter.total == Compiled(kernels=2, cached=1, seconds=1.75)
    assert meter.theirs == [False, False, True]


def test_a_listener_of_the_user_hears_all_that_triton_tells(monkeypatch):
    theirs = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **facts: theirs.append(facts))
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback")  # without torch.compile there is Triton alone
    compilation.Meter().watch()
    facts = {"times": SimpleNamespace(total=5), "cache_hit": True, "src": "a kernel", "metadata": {}}
    knobs.compilation.listener(**facts)
    assert theirs == [facts]


def test_nothing_is_listened_to_that_is_not_imported(monkeypatch):
    monkeypatch.setattr(knobs.compilation, "listener", None)
    for name in ("torch._dynamo.callback", "triton.knobs"):
        monkeypatch.delitem(sys.modules, name)
    compilation.Meter().watch()
    assert knobs.compilation.listener is None


def test_the_seconds_so_far_are_told(meter):
    heard(1.5)  # to nobody
    told = []
    meter.tell = told.append
    heard(0.25)
    heard(9.0, cached=True)
    assert told == [1.75, 1.75]


def test_a_graph_whose_beginning_was_not_heard_is_not_counted():
    meter = compilation.Meter()
    meter._graph_ends()
    assert meter.total == Compiled()


def test_a_graph_includes_its_kernels(untraced, meter):
    def backend(graph, inputs):
        heard(1000.0)
        return graph.forward

    function = torch.compile(lambda x: x + 1, backend=backend)
    assert function(torch.zeros(2)).tolist() == function(torch.ones(2) - 1).tolist() == [1, 1]
    assert (meter.total.graphs, meter.total.kernels) == (1, 1)
    assert 0 < meter.total.seconds < 100
    heard(2.0)
    assert meter.total.kernels == 2
    assert meter.total.seconds > 2


def test_a_run_adds_up_what_its_cases_compile(meter, few_corners, monkeypatch):
    few_corners(slice(3))
    for module in ("search.examine", "running.clock"):
        monkeypatch.setattr(f"verify_norm.{module}.METER", meter)

    def compiles(x, weight, eps, weight_offset, normalized_shape):
        heard(2.0)
        heard(0.0, cached=True)
        return rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)

    report = run(compiles, examples=0, checks=("signature",))
    assert report.cases == 3
    assert report.work.compiled == Compiled(kernels=3, cached=3, seconds=6.0)
    assert (report.work.workers, report.work.started) == (1, 0)
    assert report.seconds_in_kernel == 0.0


KERNEL = """
import triton, triton.language as tl

@triton.jit
def scale(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, 2.0 * tl.load(X + at, mask=at < n), mask=at < n)

def rmsnorm_fwd(x, weight, eps):
    return x
"""
COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from verify_norm.loading import registry
from verify_norm.running.compilation import METER

kernel = registry.load(sys.argv[1] + ":rmsnorm_fwd").run.__globals__["scale"]
METER.watch()
for block in (64, 128):
    types = {"X": "*fp32", "Y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    compile(ASTSource(kernel, types, {"BLOCK": block}), target=GPUTarget("cuda", 90, 32))
print(METER.total.kernels, METER.total.cached, METER.total.seconds > 0)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_second_process_finds_what_the_first_has_compiled(tmp_path):
    """Whatever the seed of hashes and the working folder are: our loader gives a file's kernel the same key."""
    (tmp_path / "mine.py").write_text(KERNEL)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    said = []
    for number, (folder, path) in enumerate(((tmp_path, "mine.py"), (tmp_path.parent, str(tmp_path / "mine.py")))):
        command = [sys.executable, "-c", COMPILE, path]
        seeded = environment | {"PYTHONHASHSEED": str(number)}
        done = subprocess.run(command, cwd=folder, env=seeded, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [["2", "0", "True"], ["0", "2", "False"]]
