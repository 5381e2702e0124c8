"""The environment of a run: its versions, and in words whether Triton's interpreter is on."""

import importlib
import importlib.metadata
import json
import platform
from datetime import datetime, timezone
from types import SimpleNamespace

import torch

import verify_norm
from verify_norm.core import packages
from verify_norm.running.environment import environment
from verify_norm.running.interpreter import patch


def test_versions_are_those_of_the_installed_packages():
    facts = environment("cpu")
    assert {type(said) for said in facts.values()} == {str}, "what reads a report need not import torch"
    for name in ("numpy", "torch", "triton", "hypothesis"):
        assert facts[name].partition("+")[0] == importlib.metadata.version(name).partition("+")[0]
    assert facts["device"] == f"CPU ({platform.machine()})"
    assert facts["python"] == platform.python_version()
    assert facts["verify-norm"] == verify_norm.__version__
    assert "interpreter" in facts
    assert json.loads(json.dumps(facts)) == facts


def test_an_interpreter_that_cannot_be_turned_on_is_told(monkeypatch):
    def refused():
        raise RuntimeError("Triton is imported already")

    monkeypatch.setattr(patch, "enable", refused)
    assert environment("cpu")["interpreter"] == "off here: Triton is imported already"


def test_a_gpu_is_named_and_nothing_is_interpreted_on_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the GPU of {device}")
    facts = environment("cuda:1")
    assert facts["device"] == "the GPU of cuda:1"
    assert "interpreter" not in facts


def test_the_date_is_that_of_utc(monkeypatch):
    """Not of the place: reports of several machines are compared."""
    module = importlib.import_module("verify_norm.running.environment")
    monkeypatch.setattr(module, "datetime", SimpleNamespace(now={timezone.utc: datetime(2026, 1, 2)}.__getitem__))
    assert environment("cpu")["date"] == "2026-01-02"


def test_without_triton_its_version_is_none(monkeypatch):
    monkeypatch.setattr(packages, "present", lambda name: name != "triton")
    assert environment("cpu")["triton"] == "none"
