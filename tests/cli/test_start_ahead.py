"""The server of processes is started before torch is imported, where a command line will need it."""

import os

import pytest

from verify_norm import cli
from verify_norm.running import fork_server
from verify_norm.search import PRELOAD

INTERPRETED, COMPILED = {"TRITON_INTERPRET": "1"}, {"TRITON_INTERPRET": None}


@pytest.fixture
def started(monkeypatch):
    """Return the variables of each server that is started, on a machine with an NVIDIA GPU."""
    found = []
    monkeypatch.setattr(fork_server, "start_ahead", lambda preload, **given: found.append((preload, given)))
    monkeypatch.setattr(cli.packages, "without_triton", lambda: "")
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return found


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("--kernel k.py:f", COMPILED),
        ("--kernel=k.py:f --device cuda:1", COMPILED),
        ("--op rmsnorm --kernel k.py:f --device cpu", INTERPRETED),
        ("replay {} --device=cpu", INTERPRETED),
        ("replay {}", COMPILED),
    ],
)
def test_a_run_starts_it(started, line, variables):
    cli.start_ahead(line.split())
    assert started == [(PRELOAD, variables)]


@pytest.mark.parametrize(
    "line",
    [
        *("", "--help", "show cases", "zoo --kernel k", "certify", "--version"),
        *(f"--kernel k.py:f {option}" for option in ("--in-process", "--untrusted", "--sanitize=memcheck", "-h")),
    ],
)
def test_what_needs_no_such_process_does_not(started, line):
    cli.start_ahead(line.split())
    assert not started


@pytest.mark.parametrize("lacking", ["device files", "visible devices"])
def test_without_a_gpu_triton_interprets(started, monkeypatch, lacking):
    if lacking == "device files":
        monkeypatch.setattr(os.path, "exists", lambda path: False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cli.start_ahead(["--kernel", "k.py:f"])
    monkeypatch.setattr(cli.packages, "without_triton", lambda: "Triton is not installed")
    cli.start_ahead(["--kernel", "k.py:f"])
    assert started == [(PRELOAD, INTERPRETED), (PRELOAD, COMPILED)]


def test_with_a_gpu_triton_may_interpret_because_the_user_says_so(started, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    cli.start_ahead(["--kernel", "k.py:f"])
    assert started == [(PRELOAD, INTERPRETED)]
