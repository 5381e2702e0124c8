"""One name for several kernels."""

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.loading.several import expanded

NORMS = """
from math import prod
from functools import partial
import sibling_of_norms
def rms_norm(x, weight, eps): ...
def layernorm_bwd(dy, x): ...
def helper(x): ...
def _rms_norm(x): ...
fixed_rms_norm = partial(rms_norm, eps=1e-6)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a_norms.py").write_text(NORMS)
    (tmp_path / "sibling_of_norms.py").write_text("")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "b_norms.py").write_text("from a_norms import helper\ndef other(x, w): ...\n")
    return tmp_path


def test_files_and_patterns_stand_for_their_kernels(folder):
    def of(*names):
        return [name.removeprefix(f"{folder}/") for name in expanded(f"{folder}/{name}" for name in names)]

    assert of("a_norms.py") == [f"a_norms.py:{name}" for name in ("rms_norm", "layernorm_bwd", "fixed_rms_norm")]
    assert of("a_norms.py:*rms*", "a_norms.py:rms_norm") == ["a_norms.py:rms_norm", "a_norms.py:fixed_rms_norm"]
    assert of("?_norms.py:other", "b_norms.py:any") == ["b_norms.py:other", "b_norms.py:any"]
    (folder / "[a]").mkdir()
    (folder / "[a]" / "c_norms.py").write_text("def rms_norm(x, weight, eps): ...\n")
    assert of("[a]/c_norms.py", "[a]/c_norms.py:rms_norm", "[a]/c_norms.py:*") == ["[a]/c_norms.py:rms_norm"]
    assert expanded(["rmsnorm_fwd", "layernorm_fwd_t*", "pkg:fn"]) == ["rmsnorm_fwd", "layernorm_fwd_torch", "pkg:fn"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "b_norms.py",
            "no function and no class has the name of a norm: add :function and --op, "
            "such as --kernel {0}/b_norms.py:other; ",
        ),
        ("empty.py", "no function and no class is defined in {0}/empty.py"),
        ("*_norms.py:absent", "no file has absent: add :function and --op, "),
        ("c*.py", "--kernel {0}/c*.py: no file matches"),
        ("absent.py", "no file {0}/absent.py"),
    ],
)
def test_what_stands_for_nothing_is_one_line(folder, name, said):
    with pytest.raises(UsageError) as caught:
        expanded([f"{folder}/{name}"])
    assert str(caught.value).startswith(said.format(folder))
    with pytest.raises(UsageError, match=r"--kernel nope\*: no kernel matches"):
        expanded(["nope*"])
