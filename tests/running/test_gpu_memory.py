"""Turns at a GPU's memory, between threads here, which open the files as processes do."""

import stat
import tempfile
import threading
from types import SimpleNamespace

import pytest

from verify_norm.core.spec import CaseSpec
from verify_norm.running import gpu_memory
from verify_norm.running.gpu_memory import LARGE, PLACES, large, turn

WAIT = 10.0  # seconds, at most


@pytest.fixture(autouse=True)
def _files(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def entered(device, places, inside):
    """Return an event that is set in such a turn, which lasts until `inside` is set, and its thread."""
    begun = threading.Event()

    def take():
        with turn(device, places):
            begun.set()
            inside.wait(WAIT)

    thread = threading.Thread(target=take)
    thread.start()
    return begun, thread


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("cuda:0", PLACES), ("cuda:0", 1), True),
        (("cuda:0", PLACES), ("cuda:0", PLACES), True),
        (("cuda:0", 1), ("cuda:0", PLACES), True),
        (("cuda:0", 1), ("cuda:0", 1), False),
        (("cuda:0", PLACES), ("cuda:1", PLACES), False),
        (("cuda:0", PLACES), ("cuda:0", 0), False),
        (("cpu", PLACES), ("cpu", PLACES), False),
    ],
)
def test_who_waits_for_whom(first, second, waits):
    inside = threading.Event()
    with turn(*first):
        begun, thread = entered(*second, inside)
        assert begun.wait(0.05 if waits else WAIT) != waits
    inside.set()
    thread.join(WAIT)
    assert begun.is_set()


def test_as_many_large_cases_run_at_once_as_there_are_places():
    inside = threading.Event()
    some = [entered("cuda:0", 1, inside) for _ in range(PLACES)]
    assert all(begun.wait(WAIT) for begun, _ in some)
    one_more, thread = entered("cuda:0", 1, inside)
    assert not one_more.wait(0.05)
    inside.set()
    for each in (thread, *(each for _, each in some)):
        each.join(WAIT)
    assert one_more.is_set()


def test_a_gpu_has_the_same_places_under_each_name(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    inside = threading.Event()
    with turn("cuda:1", PLACES):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        begun, thread = entered("cuda:0", 1, inside)
        assert not begun.wait(0.05)
    inside.set()
    thread.join(WAIT)
    assert begun.is_set()


def test_nobody_waits_where_the_files_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with turn("cuda:0", PLACES), turn("cuda:0", PLACES):
        pass


def test_large_cases():
    assert [large(CaseSpec((rows, LARGE // 4))) for rows in (3, 4)] == [False, True]
    assert large(CaseSpec((2, 3), x_layout="far"))
    assert [large(CaseSpec((2, 4096), batch=batch)) for batch in (LARGE // 4096 - 1, LARGE // 4096)] == [False, True]


def test_nobody_waits_for_ever(monkeypatch):
    monkeypatch.setattr(gpu_memory, "PATIENCE", 0.05)
    with turn("cuda:0", PLACES), turn("cuda:0", 1):
        pass


@pytest.mark.parametrize(
    ("visible", "device", "gpu"),
    [
        (None, "cuda", "0"),
        (None, "cuda:1", "1"),
        ("", "cuda:1", "1"),
        ("5,7", "cuda", "5"),
        ("5,7", "cuda:1", "7"),
        ("5,7", "cuda:2", "2"),
        ("GPU-ab,", "cuda:1", "1"),
        ("GPU-ab,", "cuda:0", "GPU-ab"),
    ],
)
def test_places_are_files_of_the_gpu_that_this_user_alone_opens(visible, device, gpu, monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with turn(device, 1):
        files = sorted(tmp_path.iterdir())
    assert len(files) == PLACES
    assert all(f"-gpu{gpu}-{place}." in path.name for place, path in enumerate(files))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    with turn("cuda:0", 1):
        path = min(tmp_path.iterdir())
    path.unlink()
    path.symlink_to(tmp_path / "of another user")
    with turn("cuda:0", 1):
        assert not (tmp_path / "of another user").exists()


def test_the_time_to_wait_is_over_when_it_has_passed(monkeypatch):
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += gpu_memory.PATIENCE / 2

    with turn("cuda:0", PLACES):
        monkeypatch.setattr(gpu_memory, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
        with turn("cuda:0", 1):
            assert slept == [gpu_memory.POLL] * 2
