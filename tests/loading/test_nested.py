"""A run inside a run is refused, with the line that starts it; what imports, decorates or is guarded is not."""

import os
import re
import sys
import threading
from pathlib import Path

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


def test_a_module_that_audits_its_own_kernel_as_it_is_imported_is_refused(tmp_path, monkeypatch):
    """Here verify-norm imports nothing: the process of the kernel would, and start the run again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "audits_itself.py").write_text(f"{KERNEL}import verify_norm\nverify_norm.audit(rmsnorm_fwd)\n")
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


def test_another_thread_may_start_a_run_meanwhile():
    with nested.inside("mine.py is imported"):
        thread = threading.Thread(target=nested.refuse)
        thread.start()
        thread.join()
        with pytest.raises(UsageError):
            nested.refuse()
    nested.refuse()


def test_readmes_example_can_be_checked_as_a_file(tmp_path):
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "verify(llama)" in b]
    path = tmp_path / "readme_example.py"
    path.write_text(block)
    assert registry.load(f"{path}:llama").contract.xhat == "x"
    path.write_text(block.replace("if __name__", "if True or __name__"))
    with pytest.raises(UsageError, match="starts a run while"):
        registry.load(f"{path}:llama")
