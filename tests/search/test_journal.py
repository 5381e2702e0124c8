"""A journal keeps whole lines, for the same kernel, settings and versions."""

import re
from dataclasses import replace

import pytest

from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.search.examined import Examined
from verify_norm.search.journal import Journal, path_of, source

FIRST, SECOND = (Examined(CaseSpec((2, n)), looked=("accuracy",)) for n in (3, 4))


def written(path):
    journal = Journal(path, resume=False)
    for examined in (FIRST, SECOND):
        journal.enter(examined)
    journal.close(complete=False)


def test_a_resumed_run_has_the_whole_lines(tmp_path):
    path = tmp_path / "new" / "state" / "k.jsonl"
    written(path)
    path.write_text(path.read_text() + '{"spec": {"sha')
    journal = Journal(path, resume=True)
    assert journal.done == {FIRST.spec: FIRST, SECOND.spec: SECOND}
    assert len(path.read_text().splitlines()) == 2
    journal.close(complete=True)
    assert not path.exists()


def test_a_run_that_does_not_resume_begins_anew(tmp_path):
    path = tmp_path / "k.jsonl"
    written(path)
    journal = Journal(path, resume=False)
    assert not journal.done
    assert path.read_text() == ""
    other = Journal(path, resume=True)
    assert other.done == {}, "another run has the file"
    other.enter(FIRST)
    other.close(complete=True)
    assert path.read_text() == "", "what is another run's stays"
    journal.close(complete=False)


def test_a_closed_journal_keeps_nothing_and_may_be_gone(tmp_path):
    path = tmp_path / "k.jsonl"
    journal = Journal(path, resume=False)
    path.unlink()
    for _ in range(2):
        journal.close(complete=True)
        journal.enter(FIRST)
    assert not path.exists()


def test_the_name_follows_from_the_kernel_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kernel, settings = Kernel("a:k", "rmsnorm_fwd", target="a:k"), Settings()
    path = path_of(kernel, settings)
    assert path.parent == tmp_path / "verify-norm"
    again = replace(settings, seconds=3.0, workers=4, allow_incomplete=True)
    assert path_of(kernel, again) == path, "more time, and other workers, may be given to the same run"
    assert path_of(kernel, replace(settings, seed=1)) != path
    assert path_of(replace(kernel, bind="eps=1"), settings) != path
    assert path_of(replace(kernel, target=""), settings) is None
    assert path_of(kernel, replace(settings, untrusted=True)) is None, "its cases are new in each run"


def test_an_edited_kernel_begins_anew(tmp_path, monkeypatch):
    file, named = tmp_path / "k.py", {}
    file.write_text("def k(x):\n    return x\n")
    exec(compile(file.read_text(), file, "exec"), named)
    kernel = Kernel("k.py:k", "rmsnorm_fwd", run=named["k"], target="k.py:k")
    before = path_of(kernel, Settings())
    assert before == path_of(kernel, Settings())
    file.write_text("def k(x):\n    return 2 * x\n")
    assert path_of(kernel, Settings()) != before


def test_the_same_functions_have_other_addresses_in_the_next_run():
    def functions():
        return {"run": lambda x: x, "forward_run": lambda x: x, "unsupported": lambda spec: None}

    first, second = (path_of(Kernel("k", "rmsnorm_fwd", target="a:k", **functions()), Settings()) for _ in range(2))
    assert first == second


def test_a_kernel_without_a_file_has_no_source():
    assert source(Kernel("k", "rmsnorm_fwd")) == source(Kernel("k", "rmsnorm_fwd", run=print)) == b""


def test_journals_are_in_the_users_state_folder_and_have_the_kernels_name(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = path_of(Kernel("a/Kernel-7.py:My_norm", "rmsnorm_fwd", target="a:k"), Settings())
    assert path.parent == tmp_path / ".local" / "state" / "verify-norm"
    assert path.name.startswith("a_Kernel_7_py_My_norm-")


@pytest.mark.parametrize(
    "name",
    [
        *("C:\\norms\\k.py:k", "../../etc/passwd:k", "a/b.py:k<b>", 'k"|?*', "k\n\x00\x1b[31m", "k. ", "CON", "nul"),
        *("", "\u202ek", "k" * 4000, "\U0001d4dd" * 70, "日本.py:k"),
    ],
)
def test_every_kernel_has_a_file_name_that_is_one_on_windows_too(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = path_of(Kernel(name, "rmsnorm_fwd", target="a:k"), Settings())
    assert path.parent == tmp_path / "verify-norm"
    assert re.fullmatch(r"[0-9A-Za-z_]{0,60}-[0-9a-f]{16}\.jsonl", path.name)
    journal = Journal(path, resume=False)
    journal.enter(FIRST)
    journal.close(complete=False)
    again = Journal(path, resume=True)
    assert again.done == {FIRST.spec: FIRST}
    again.close(complete=True)
