"""A journal keeps whole lines, for the same kernel, settings and versions."""

from dataclasses import replace

from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.search.examine import Examined
from verify_norm.search.journal import Journal, path_of

FIRST, SECOND = (Examined(CaseSpec((2, n)), looked=("accuracy",)) for n in (3, 4))


def written(path):
    journal = Journal(path, resume=False)
    for examined in (FIRST, SECOND):
        journal.enter(examined)
    journal.close(complete=False)


def test_a_resumed_run_has_the_whole_lines(tmp_path):
    path = tmp_path / "state" / "k.jsonl"
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
    assert Journal(path, resume=True).done == {}, "another run has the file"
    journal.close(complete=False)


def test_the_name_follows_from_the_kernel_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kernel, settings = Kernel("a:k", "rmsnorm_fwd", target="a:k"), Settings()
    path = path_of(kernel, settings)
    assert path.parent == tmp_path / "verify-norm"
    assert path_of(kernel, replace(settings, seconds=3.0)) == path, "more time may be given to the same run"
    assert path_of(kernel, replace(settings, seed=1)) != path
    assert path_of(replace(kernel, bind="eps=1"), settings) != path
    assert path_of(replace(kernel, target=""), settings) is None
