"""Workers in processes of their own: one sees its GPU alone, and what ends one ends no other."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import light_worker
import pytest

from verify_norm.api import run_campaign
from verify_norm.campaign import local, run
from verify_norm.campaign.merging import merged
from verify_norm.campaign.model import Unit
from verify_norm.campaign.plan import checked
from verify_norm.campaign.store import Store
from verify_norm.core.errors import Exit, UsageError

OPS = """
import torch


def right(x, weight, eps):
    y = x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()
    return (y if weight is None else y * weight.double()).to(x.dtype)


def wrong(x, weight, eps):
    y = x.double() / (x.double().square().mean(-1, keepdim=True).sqrt() + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)
"""


def plan(**other):
    return checked({"kernels": ["k"], "device": "cpu"} | other)


def outcomes(path, kernels, jobs, monkeypatch):
    """The problems that light workers return of the units of these kernels, the findings, and how workers ended."""
    monkeypatch.setattr(local.worker, "examine", light_worker.examine)
    units = tuple(
        Unit(str(number), number, kernel, "layernorm_fwd", "", "", "", "float32", 0, 0, 0, "")
        for number, kernel in enumerate(kernels)
    )
    run.run(plan(), units, str(path), local.Local(plan(), jobs))
    with Store.reading(str(path)) as store:
        return (
            dict(store.query("SELECT kernel, problem FROM outcomes JOIN units ON unit = id")),
            dict(store.query("SELECT kernel, message FROM findings JOIN units ON unit = id")),
            sorted(store.query("SELECT kernel, ended FROM losses JOIN units ON unit = id")),
        )


@pytest.mark.nightly
@pytest.mark.slow
def test_what_ends_one_worker_is_done_again_or_a_finding_and_ends_no_other(tmp_path, monkeypatch, capfd):
    kernels = ("right", f"killed:{tmp_path / 'killed'}", f"once:{tmp_path / 'once'}", "prints")
    met, findings, losses = outcomes(tmp_path / "s", kernels, 2, monkeypatch)
    mine = f"{os.getpid()} cpu"
    assert met == {"right": mine, kernels[1]: "", kernels[2]: mine, "prints": mine}
    by_signal = "it ended its process by SIGKILL, for example when memory is exhausted"
    assert losses == [(kernels[1], by_signal)] * 3 + [(kernels[2], by_signal)]
    assert findings == {kernels[1]: f"the unit has ended the process of 3 workers; the last time {by_signal}"}
    printed = capfd.readouterr()
    assert "the kernel prints" not in printed.out
    assert "the kernel prints" in printed.err


def unit(kernel):
    return Unit("id", 0, kernel, "layernorm_fwd", *[""] * 3, "float32", 0, 0, 0, "")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_unit_that_hangs_ends_its_worker_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(local.worker, "examine", light_worker.examine)
    one = local._Worker("w", "", limit=60.0)
    assert one.examine(unit(f"starts:{tmp_path / 'pid'}"), {"device": "cpu"}).problem == f"{os.getpid()} cpu"
    started = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert started.exists()
    one._limit = 0.2
    assert one.examine(unit("hangs"), {"device": "cpu"}).ended == "it was not done after 0.2 s, and was ended"
    assert not started.exists() or started.read_text().split()[2] == "Z"
    one._limit = 60.0
    assert one.examine(unit("fine"), {"device": "cpu"}).problem == f"{os.getpid()} cpu"
    one.close()


def test_a_copy_of_a_worker_that_a_unit_has_forked_ends(monkeypatch):
    forked = []

    def search(unit, settings):
        forked.append(os.fork())
        return None, {}

    monkeypatch.setattr(local.worker, "_search", search)
    assert local.worker.examine(unit("k"), {}, "w").unit == "id"
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 0


def test_a_kernel_whose_file_is_another_one_has_a_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPS)
    found = replace(unit("ops.py:right"), op="rmsnorm_fwd", source="0123")
    problem = local.worker.examine(found, plan().settings, "w").problem
    assert problem == "the kernel's file here is not the one that the plan was made of"


BEGIN = """
import os, sys
from multiprocessing import get_context
from verify_norm.campaign import worker

def seen(queue):
    queue.put((os.environ.get("CUDA_VISIBLE_DEVICES"), "torch" in sys.modules))

if __name__ == "__main__":
    queue = get_context("spawn").SimpleQueue()
    worker.begin("GPU-7")
    seen(queue)
    print(*queue.get(), file=sys.stderr)
"""


def test_a_worker_sees_its_gpu_before_torch_is_imported(tmp_path):
    (tmp_path / "begin.py").write_text(BEGIN)
    done = subprocess.run([sys.executable, tmp_path / "begin.py"], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["GPU-7", "False"]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "visible"), [(2, "3,GPU-5"), (3, "")])
def test_units_are_spread_over_the_gpus_and_each_process_sees_its_own(tmp_path, monkeypatch, number, visible):
    monkeypatch.setattr(local, "gpus", lambda: number)
    monkeypatch.setattr(local, "device", lambda name: "cuda:0")
    monkeypatch.setattr(local.worker, "examine", light_worker.seen)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    units = [replace(unit(f"{number}:{tmp_path}"), id=f"{n}", number=n) for n in range(2 * number)]
    run.run(plan(device="cuda"), tuple(units), str(tmp_path / "s"), local.Local(plan(device="cuda")))
    with Store.reading(str(tmp_path / "s")) as store:
        met = dict(store.query("SELECT DISTINCT worker, problem FROM outcomes"))
    assert len(list(tmp_path.glob("*.at"))) == number, "each has one process for all its units"
    assert met == {f"cuda:{n}": visible.split(",")[n] if visible else f"{n}" for n in range(number)}


@pytest.mark.parametrize(
    ("device", "visible", "names", "seen"),
    [
        ("auto", "", ["cuda:0", "cuda:1"], ["0", "1"]),
        ("cuda", "5,GPU-3", ["cuda:0", "cuda:1"], ["5", "GPU-3"]),
        ("cuda:1", "5, 7", ["cuda:1"], ["7"]),
        ("cpu", "", ["cpu 1", "cpu 2", "cpu 3"], ["", "", ""]),
    ],
)
def test_each_gpu_has_one_worker(monkeypatch, device, visible, names, seen):
    monkeypatch.setattr(local, "gpus", lambda: 2)
    monkeypatch.setattr(local, "device", lambda name: {"auto": "cuda:0", "cuda": "cuda:0"}.get(name, name))
    monkeypatch.setattr(local, "cores", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    made = local.Local(plan(device=device))
    assert [one.name for one in made._workers] == names
    assert [one._gpu for one in made._workers] == seen
    assert made.places == {"": len(names)}
    if device != "cpu":
        with pytest.raises(UsageError, match="--jobs: on GPUs there is one worker for each"):
            local.Local(plan(device=device), 2)


def test_workers_are_those_of_the_accelerators_of_the_plan(monkeypatch):
    names = ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA T4"]
    monkeypatch.setattr(local, "gpus", lambda: 3)
    monkeypatch.setattr(local, "device", lambda name: "cuda:0")
    monkeypatch.setattr(local, "_device_name", lambda name: names[int(name[-1])])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = local.Local(plan(device="cuda", accelerators="H100, A100, B200"))
    assert made.places == {"A100": 1, "H100": 1}
    assert [one._gpu for one in made._workers] == ["0", "1"]
    with pytest.raises(UsageError, match=r"the plan is for B200, and this machine has NVIDIA A100.* and NVIDIA T4"):
        local.Local(plan(device="cuda", accelerators="B200"))


WAITS = """
import sys
from verify_norm.campaign import local, worker
import light_worker

if __name__ == "__main__":
    one = local._Worker("w", "", 60.0)
    future = one._started().submit(light_worker.wait, 60)
    while not future.running():
        pass
    print(one._context.made.pid, flush=True)
    future.result()
"""


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(tmp_path):
    (tmp_path / "waits.py").write_text(WAITS)
    path = os.pathsep.join(filter(None, sys.path))
    given = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | {"PYTHONPATH": path}}
    with subprocess.Popen([sys.executable, tmp_path / "waits.py"], **given) as parent:
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
        time.sleep(0.5)  # it has begun
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(600):
        try:
            state = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker goes on without its parent")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_kernel_from_plan_to_report(tmp_path, monkeypatch):
    """Nothing stands in for anything: both workers run the real search of a right and of a wrong kernel."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPS)
    kernels = [{"kernel": f"ops.py:{name}", "op": "rmsnorm_fwd"} for name in ("right", "wrong")]
    keys = {"kernels": kernels, "dtypes": ["fp32"], "examples": 2, "block": 1, "device": "cpu"}
    found = run_campaign(keys | {"checks": ["signature", "accuracy"], "only": "ndim=2"}, "s", jobs=1)
    assert [(row.verdict, row.done) for row in found.rows] == [(Exit.PASS, 2), (Exit.FINDINGS, 2)]
    assert {one.check for one in found.findings} == {"accuracy"}
    assert 'verify-norm replay \'{"kernel": "ops.py:wrong"' in found.findings[0].replay
    with Store.reading("s") as store:
        (first, second) = store.query(
            "SELECT corners, corners_done FROM outcomes JOIN units ON unit = id "
            "WHERE kernel = 'ops.py:right' ORDER BY block"
        )
        assert first[0] == first[1] > 50
        assert second == (0, 0)
        assert merged(store.reports("ops.py:right", "rmsnorm_fwd")).verdict is Exit.PASS
