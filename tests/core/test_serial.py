"""A case as one line of JSON: what is read back, and what is refused in words."""

import doctest
import os
import threading
from pathlib import Path

import pytest

from verify_norm.core import serial
from verify_norm.core.errors import UsageError
from verify_norm.core.spec import CaseSpec


def test_doctests():
    assert doctest.testmod(serial).failed == 0


def test_a_line_holds_what_differs_from_the_defaults():
    spec = CaseSpec((2, 3), eps=1e-3, frozen=("weight",))
    text = serial.spec_text("k", spec, "rmsnorm_bwd")
    assert text == '{"kernel": "k", "op": "rmsnorm_bwd", "shape": [2, 3], "eps": 0.001, "frozen": ["weight"]}'
    assert serial.read_spec(text) == ("k", "rmsnorm_bwd", spec)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("eps", -1, "a finite number of 0 or more"),
        ("eps", float("inf"), "a finite number of 0 or more"),
        ("offset", float("nan"), "a finite number"),
        ("scale", "1", "a finite number of 0 or more"),
        ("momentum", 1.5, "a finite number from 0 to 1"),
        ("num_groups", 0, "a whole number of 1 or more"),
        ("num_groups", 1.5, "a whole number of 1 or more"),
        ("log2_scale", 2000, "a whole number from -1074 to 1024"),
        ("seed", 2**64, "a whole number from 0 to 18446744073709551615"),
    ],
)
def test_a_number_outside_its_range(name, value, expected):
    """A replay line, a CaseSpec and --bind share the range and the words."""
    message = f"{name}: expected {expected}, got {value!r}"
    assert serial.out_of_range(name, value) == message
    for attempt in (
        lambda: serial.refuse_nonsense(CaseSpec((2, 4), **{name: value})),
        lambda: serial.read_spec(serial.json.dumps({"kernel": "k", "shape": [2, 4], name: value})),
    ):
        with pytest.raises(UsageError) as caught:
            attempt()
        assert str(caught.value) == message


def test_the_ends_of_a_range_are_allowed_and_a_flag_is_a_number():
    assert serial.out_of_range("eps", 0) is None
    assert serial.out_of_range("momentum", 1) is None
    assert serial.out_of_range("seed", 2**64 - 1) is None
    assert serial.out_of_range("weight_offset", True) is None
    assert serial.out_of_range("num_groups", None) is None
    assert serial.out_of_range("x_layout", "far") is None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_replaced_in_its_mode_and_where_a_link_leads(folder):
    Path("real.json").write_text("{\n}")
    os.chmod("real.json", 0o640)
    Path("link.json").symlink_to("real.json")
    serial.writable("link.json")
    serial.write('{\n"new": 1}', "link.json")
    assert Path("link.json").is_symlink()
    assert Path("real.json").read_text() == '{\n"new": 1}'
    assert os.stat("real.json").st_mode & 0o777 == 0o640
    Path("dangling.json").symlink_to("later.json")
    serial.writable("dangling.json")
    serial.write("[]", "dangling.json")
    assert Path("later.json").read_text() == "[]"
    assert os.stat("later.json").st_mode & 0o777 == 0o666 & ~umask()
    assert sorted(os.listdir()) == ["dangling.json", "later.json", "link.json", "real.json"]


def umask():
    os.umask(mask := os.umask(0))
    return mask


def test_a_pipe_and_a_device_are_written_into(folder):
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    serial.writable("pipe")
    serial.write("report", "pipe")
    reader.join()
    assert read == ["report"]
    serial.writable("/dev/null")
    serial.write("report", "/dev/null")
    assert not os.path.isfile("/dev/null")
    serial.writable("/dev/full")
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left on device"):
        serial.write("report", "/dev/full")
    assert os.path.exists("/dev/full")
    assert not os.path.isfile("/dev/full")


def test_an_open_descriptor_is_written_where_it_stands(folder):
    """As `--json /dev/fd/3` with `3> file`, or /dev/stdout: the file keeps what is in it."""
    with open("out", "w") as out:
        out.write("a table\n")
        out.flush()
        for path in (f"/dev/fd/{out.fileno()}", f"/proc/self/fd/{out.fileno()}"):
            serial.writable(path)
            serial.write("report\n", path)
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
                serial.write("[]", "r.json")
    assert {name: Path(name).read_text() for name in os.listdir()} == {"r.json": "{\n}", "r.json.part": "somebody's"}


@pytest.mark.parametrize("text", ["", "\n", "{\n}", "[\n1]", "[{\n}]", "[]", "\ufeff{\n}"])
def test_a_report_of_ours_may_be_replaced(text, folder):
    Path("r").write_text(text, encoding="utf-8")
    serial.writable("r")


@pytest.mark.parametrize("text", ["import torch\n", '{"kernel": "k"}\n', "[tool.ruff]\n", "\x00", "<!DOCTYPE html>"])
def test_a_file_of_something_else_is_kept(text, folder):
    Path("r").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="cannot write r: it is a file of something else; remove it, or name another"):
        serial.writable("r")
