"""Files are written whole or not at all."""

import os
import socket
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from verify_norm.core import files
from verify_norm.core.errors import UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def umask():
    os.umask(mask := os.umask(0))
    return mask


def test_a_file_is_replaced_in_its_mode_and_where_a_link_leads(folder):
    Path("real.json").write_text("{\n}")
    os.chmod("real.json", 0o640)
    Path("link.json").symlink_to("real.json")
    files.writable("link.json")
    files.write('{\n"new": 1}', "link.json")
    assert Path("link.json").is_symlink()
    assert Path("real.json").read_text() == '{\n"new": 1}'
    assert os.stat("real.json").st_mode & 0o777 == 0o640
    Path("dangling.json").symlink_to("later.json")
    files.writable("dangling.json")
    files.write("[]", "dangling.json")
    assert Path("later.json").read_text() == "[]"
    assert os.stat("later.json").st_mode & 0o777 == 0o666 & ~umask()
    assert sorted(os.listdir()) == ["dangling.json", "later.json", "link.json", "real.json"]


def test_a_pipe_and_a_device_are_written_into(folder):
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    files.writable("pipe")
    files.write("report", "pipe")
    reader.join()
    assert read == ["report"]
    files.writable("/dev/null")
    files.write("report", "/dev/null")
    assert not os.path.isfile("/dev/null")
    files.writable("/dev/full")
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left on device"):
        files.write("report", "/dev/full")
    assert os.path.exists("/dev/full")
    assert not os.path.isfile("/dev/full")


def test_an_open_descriptor_is_written_where_it_stands(folder):
    """As `--json /dev/fd/3` with `3> file`, or /dev/stdout: the file keeps what is in it."""
    with open("out", "w") as out:
        out.write("a table\n")
        out.flush()
        for path in (f"/dev/fd/{out.fileno()}", f"/proc/self/fd/{out.fileno()}"):
            files.writable(path)
            files.write("report\n", path)
        out.write("the end\n")
    assert Path("out").read_text() == "a table\nreport\nreport\nthe end\n"


def test_a_file_is_whole_or_as_it_was(folder, monkeypatch):
    Path("r.json").write_text("{\n}")
    Path("r.json.part").write_text("somebody's")

    def fails(*arguments):
        raise OSError(28, "No space left on device")

    for step in ("fchmod", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, step, fails)
            with pytest.raises(UsageError, match=r"cannot write r.json: No space left"):
                files.write("[]", "r.json")
    assert {name: Path(name).read_text() for name in os.listdir()} == {"r.json": "{\n}", "r.json.part": "somebody's"}


@pytest.mark.parametrize("text", ["", "\n", "{\n}", "[\n1]", "[{\n}]", "[]", "\ufeff{\n}"])
def test_a_report_of_ours_may_be_replaced(text, folder):
    Path("r").write_text(text, encoding="utf-8")
    files.writable("r")


@pytest.mark.parametrize("text", ["import torch\n", '{"kernel": "k"}\n', "[tool.ruff]\n", "\x00", "<!DOCTYPE html>"])
def test_a_file_of_something_else_is_kept(text, folder):
    Path("r").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="cannot write r: it is a file of something else; remove it, or name another"):
        files.writable("r")


def test_a_file_is_written_beside_its_target_also_where_its_owner_cannot_be_kept(folder, monkeypatch):
    (folder / "there").mkdir()
    Path("there/r.json").write_text("{\n}")
    moved, replace = [], os.replace

    def refused(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    monkeypatch.setattr(os, "replace", lambda *paths: (moved.append(paths), replace(*paths)))
    files.write("lone \ud800", "there/r.json")
    ((source, target),) = moved
    assert os.path.dirname(source) == os.path.dirname(target) == str(folder / "there")
    assert Path("there/r.json").read_text() == "lone \\ud800"
    monkeypatch.setattr(os, "replace", refused)
    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(UsageError, match=r"cannot write new.json: Operation not permitted"):
        files.write("[]", "new.json")


def test_what_cannot_be_written_to_has_its_reason(folder, monkeypatch):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("server")
        for path, reason in {
            ".": "it is a folder",
            "server": "it is a socket; expected a file, a pipe or a terminal",
            "nul\0": "embedded null byte",
            "x" * 300: "File name too long",
            "none/r.json": f"no writable folder {folder}/none",
        }.items():
            with pytest.raises(UsageError) as caught:
                files.writable(path)
            assert str(caught.value) == f"cannot write {path}: {reason}"
    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_mode=stat.S_IFBLK))
    with pytest.raises(UsageError, match="it is a disk; expected a file"):
        files.writable("/dev/sda")


def test_no_path_and_a_dash_are_no_files(monkeypatch):
    monkeypatch.setattr(files, "_unwritable", lambda path, ours: f"it begins not as {ours}")
    files.writable("")
    files.writable("-")
    with pytest.raises(UsageError, match=r"cannot write r: it begins not as \('x',\)"):
        files.writable("r", ("x",))


def test_a_link_from_another_folder_leads_to_an_open_descriptor(folder):
    (folder / "links").mkdir()
    with open("out", "w") as out:
        Path("links/first").symlink_to("second")
        Path("links/second").symlink_to(f"/dev/fd/{out.fileno()}")
        out.write("a table\n")
        out.flush()
        files.write("report\n", "links/first")
    assert Path("out").read_text() == "a table\nreport\n"


def test_a_new_file_needs_a_folder_that_can_be_written(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(folder))
    with pytest.raises(UsageError, match=f"cannot write new.json: no writable folder {folder}$"):
        files.writable("new.json")


def test_a_folder_in_which_no_file_can_be_made_is_found_before_the_run(folder, monkeypatch):
    """As root may write to /proc, by os.access, where no file can be made."""
    made = os.open

    def refuses(path, flags, mode=0o777):
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return made(path, flags, mode)

    files.writable("new.json")
    assert os.listdir() == []
    monkeypatch.setattr(os, "open", refuses)
    with pytest.raises(UsageError, match=f"cannot write new.json: no file can be made in {folder}: Read-only file"):
        files.writable("new.json")
