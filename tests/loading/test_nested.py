"""A run inside a run is refused, with the line that starts it; what imports, decorates or is guarded is not."""

import os
import re
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace

import pytest

import verify_norm
from verify_norm import UsageError
from verify_norm.loading import nested, registry

README = Path(__file__).parents[2] / "README.md"
KERNEL = """
import torch
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""
SPEC = '{"kernel": "k", "shape": [2, 8]}'
STARTS = [  # the line of a file that starts a run, as it is imported
    "import verify_norm; verify_norm.audit(rmsnorm_fwd)",
    "import verify_norm; verify_norm.audit('{path}:rmsnorm_fwd', device='cpu')",
    "import verify_norm; verify_norm.audit('mine:rmsnorm_fwd', device='cpu')",
    f"import verify_norm; verify_norm.replay(rmsnorm_fwd, '{SPEC}')",
    f"import verify_norm; verify_norm.same(rmsnorm_fwd, 'rmsnorm_fwd', replay='{SPEC}')",
    "from verify_norm.gradcheck.gradcheck import gradcheck; gradcheck('{path}:rmsnorm_fwd')",
]


@pytest.mark.parametrize("line", STARTS)
def test_a_file_that_starts_a_run_is_refused_with_its_line(line, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(KERNEL + line.replace("{path}", str(path)) + "\n")
    with pytest.raises(UsageError) as caught:
        registry.load(f"{path}:rmsnorm_fwd")
    assert str(caught.value).startswith(
        f"{path}, line 6 starts a run while {path} is imported; put it under `if __name__"
    )
    path.write_text(KERNEL + f"if __name__ == '__main__': {line}\n")
    assert registry.load(f"{path}:rmsnorm_fwd").op == "rmsnorm_fwd"
    assert nested.VARIABLE not in os.environ


@pytest.mark.parametrize("kernel", ["rmsnorm_fwd", "'audits_itself:rmsnorm_fwd'"])
def test_a_module_that_audits_its_own_kernel_as_it_is_imported_is_refused(kernel, tmp_path, monkeypatch):
    """Here verify-norm imports nothing: the process of the kernel would, and start the run again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "audits_itself.py").write_text(f"{KERNEL}import verify_norm\nverify_norm.audit({kernel})\n")
    with pytest.raises(UsageError, match=r"^\S*audits_itself.py, line 7 starts a run while audits_itself is imported"):
        __import__("audits_itself")


def test_a_command_is_refused_that_a_file_starts(tmp_path):
    said = tmp_path / "said"
    command = [sys.executable, "-m", "verify_norm", "--kernel", "rmsnorm_fwd"]
    ran = f"str(subprocess.run({command}, capture_output=True))"
    line = f"import pathlib, subprocess; pathlib.Path({str(said)!r}).write_text({ran})\n"
    path = tmp_path / "mine.py"
    path.write_text(KERNEL + line)
    assert registry.load(f"{path}:rmsnorm_fwd").op == "rmsnorm_fwd"  # it is the file's to say what its command said
    assert re.search(
        r"returncode=2.*this command is started while \S*mine.py is imported; put it under", said.read_text()
    )


def test_a_kernel_that_starts_a_run_raises(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import verify_norm\ndef rmsnorm_fwd(x, weight, eps):\n    verify_norm.audit('rmsnorm_fwd')\n")
    report = verify_norm.replay(f"{path}:rmsnorm_fwd", SPEC, checks="signature", device="cpu", isolate=False)
    (finding,) = report.findings
    assert f"mine.py, line 3 starts a run while the kernel {path}:rmsnorm_fwd runs" in finding.message


def test_a_process_of_a_kernel_starts_no_run_in_any_thread(monkeypatch):
    monkeypatch.setattr(nested, "_sealed", "")
    monkeypatch.setenv(nested.VARIABLE, "")
    nested.seal("the kernel k runs\n")
    assert os.environ[nested.VARIABLE] == r"the kernel k runs\n"
    raised = []

    def start():
        try:
            nested.refuse()
        except UsageError as error:
            raised.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "starts a run while the kernel k runs" in raised[0]


IN_THREADS = [  # how the last line of a file starts a run in a thread; what the refusal names
    ("Thread(target=lambda: start('{target}')).start()", "{path}, line 7 starts"),
    ("thread = Thread(target=start, args=('{target}',)); thread.start(); thread.join()", "{path}, line 7 starts"),
    ("thread = Timer(0, verify_norm.verify, ('{target}',)); thread.start(); thread.join()", "a thread starts"),
    ("with ThreadPoolExecutor(1) as pool: pool.submit(start, '{target}').result()", "{path}, line 7 starts"),
]


@pytest.mark.parametrize(("line", "named"), IN_THREADS)
@pytest.mark.parametrize("target", ["{path}:rmsnorm_fwd", "in_a_thread:rmsnorm_fwd"])
def test_a_thread_that_an_import_starts_starts_no_run(line, named, target, tmp_path, monkeypatch):
    """It would import the file again, and so on without end; or wait for the import, which waits for it."""
    path = tmp_path / "in_a_thread.py"
    head = (
        "from concurrent.futures import ThreadPoolExecutor; from threading import Thread, Timer; import verify_norm\n"
        "def start(target): verify_norm.verify(target, device='cpu')\n"
    )
    path.write_text(KERNEL + head + line.format(target=target.format(path=path)) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "in_a_thread", raising=False)
    raised = Queue()
    monkeypatch.setattr(threading, "excepthook", lambda failed: raised.put(failed.exc_value))
    where = target.rpartition(":")[0].format(path=path)
    try:
        assert registry.load(f"{where}:rmsnorm_fwd").op == "rmsnorm_fwd"
    except UsageError as error:  # the file waits for what its thread raises
        raised.put(error)
    said = str(raised.get(timeout=10))
    assert said.startswith(f"{named.format(path=path)} a run while {where} is imported; put it under")


def test_threads_of_others_start_runs_meanwhile_and_threads_have_a_context_of_their_own():
    may, begun, ended = threading.Event(), [], threading.Event()

    def run():
        may.wait(10)
        nested.refuse()
        begun.append(1)
        ended.set()

    threading.Thread(target=run).start()
    mine: ContextVar[str] = ContextVar("mine", default="")
    mine.set("mine")
    with nested.inside("mine.py is imported"):
        may.set()
        assert ended.wait(10)
        with pytest.raises(UsageError):
            nested.refuse()
        thread = threading.Thread(target=lambda: begun.append(mine.get()))
        thread.start()
        thread.join()
    nested.refuse()
    assert begun == [1, ""]


@pytest.mark.parametrize("waits", [True, False])
def test_a_target_whose_module_another_thread_imports_has_to_wait_for_it(waits, monkeypatch):
    """A module that waits for the thread is refused in the end; one that does not is imported."""
    monkeypatch.setattr(nested, "PATIENCE", 0.1 if waits else 10.0)
    module = ModuleType("half")
    module.__spec__ = SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "half", module)
    if waits:
        with pytest.raises(UsageError, match="starts a run while half is imported"):
            nested.refuse("half:rmsnorm_fwd")
        return
    timer = threading.Timer(0.05, setattr, (module.__spec__, "_initializing", False))
    timer.start()
    nested.refuse("half:rmsnorm_fwd")
    timer.join()


def test_readmes_example_can_be_checked_as_a_file(tmp_path):
    (block,) = [b for b in re.findall(r"```python.*?\n(.*?)```", README.read_text(), re.DOTALL) if "verify(llama)" in b]
    path = tmp_path / "readme_example.py"
    path.write_text(block)
    assert registry.load(f"{path}:llama").contract.xhat == "x"
    path.write_text(block.replace("if __name__", "if True or __name__"))
    with pytest.raises(UsageError, match="starts a run while"):
        registry.load(f"{path}:llama")
