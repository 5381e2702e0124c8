"""The files of pages that run elsewhere, in Modal and in the CI of Hugging Face: run here with stand-ins for these."""

import os
import re
import subprocess
import sys

import pytest
import samples

import verify_norm

RIGHT = """
import torch
def rms_norm(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)
"""
KERNELS = """
import sys
def get_kernel(name, *, version):
    assert (name, version) == ("your-org/your-norm", 1)
    import built
    return built
"""
MODAL = """
class Image:
    steps = []
    def __getattr__(self, name):
        return lambda *given, **options: (self.steps.append((name, given, options)), self)[1]
Image.debian_slim = lambda python_version: Image()

class App:
    def __init__(self, name, image):
        assert name and isinstance(image, Image)
    def function(self, gpu, timeout):
        def decorate(function):
            function.remote = function
            return function
        return decorate
    def local_entrypoint(self):
        return lambda function: function
"""


def file(page, name):
    """The file of this name on a page."""
    text = (samples.DOCS / page).read_text(encoding="utf-8")
    (found,) = [block.text for block in samples.blocks(text) if block.title == name]
    return found


def run(folder, *arguments):
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    bin_ = os.path.dirname(sys.executable)
    environment = os.environ | {"PYTHONPATH": path, "PATH": f"{bin_}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.slow
def test_the_file_for_hugging_face_passes_a_right_kernel_and_fails_a_wrong_one(tmp_path):
    text = file("how-to/hf-kernels.md", "tests/test_numerics.py")
    assert "\nSECONDS = 30" in text
    assert text.count("@pytest.mark.kernels_ci") == text.count("\ndef test_") == 3
    short = text.replace("\nSECONDS = 30", "\nSECONDS = 12").replace("(64, 4096), (2, 3, 8192)]", "(2, 3, 96)]")
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_numerics.py").write_text(short)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    kernels_ci: as their builder writes it\n")
    command = ("-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "--strict-markers", "-m", "kernels_ci")
    (tmp_path / "built.py").write_text(RIGHT)
    status, said = run(tmp_path, *command)
    assert (status, "19 passed" in said) == (0, True), said
    wrong = RIGHT.replace("+ eps)", "+ 10 * eps)").replace("    return", "    x.data[..., :1] = 0\n    return")
    (tmp_path / "built.py").write_text(wrong)
    status, said = run(tmp_path, *command, "-k", "shape1-dtype0 or corner")
    assert (status, "3 failed" in said) == (1, True), said


@pytest.mark.nightly
@pytest.mark.slow
def test_the_file_for_modal_runs_the_command_and_brings_its_files(tmp_path):
    text = file("how-to/modal.md", "modal_app.py")
    assert f"verify-norm[cli,html,triton]=={verify_norm.__version__}" in text
    local = text.replace('"/work"', repr(str(tmp_path))).replace('f"/tmp/{name}"', f'f"{tmp_path}/made-{{name}}"')
    local = local.replace('Path("/tmp", name)', f'Path("{tmp_path}", "made-" + name)')
    local = local.replace('["verify-norm"', '[sys.executable, "-m", "verify_norm"').replace(
        "import shlex", "import shlex, sys"
    )
    (tmp_path / "modal.py").write_text(MODAL)
    (tmp_path / "modal_app.py").write_text(local)
    (tmp_path / "norms.py").write_text(RIGHT)
    fast = "--kernel norms.py:rms_norm --op rmsnorm_fwd --checks signature --examples 0 --seconds 1"
    fast += " --only weight,dtype=fp32 --allow-incomplete --device cpu"
    status, said = run(tmp_path, "-c", f"import modal_app; modal_app.main({fast!r})")
    assert (status, "PASS norms.py:rms_norm" in said) == (0, True), said
    for name, start in (("report.json", "{"), ("junit.xml", "<?xml"), ("report.html", "<!DOCTYPE html>")):
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start), name
    status, said = run(tmp_path, "-c", "import modal_app; modal_app.main('--kernel norms.py:none')")
    assert (status, "has no 'none'" in said) == (2, True), said
    steps = re.findall(r"^    \.(\w+)\(", text, re.MULTILINE)
    assert steps == ["apt_install", "uv_pip_install", "add_local_dir"], "files come last: Modal adds them at the start"
