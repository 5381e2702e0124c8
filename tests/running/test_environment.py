"""The environment of a run: its versions, and in words whether Triton's interpreter is on."""

import importlib.metadata
import json

from verify_norm.running.environment import environment
from verify_norm.running.interpreter import patch


def test_versions_are_those_of_the_installed_packages():
    facts = environment("cpu")
    assert {type(said) for said in facts.values()} == {str}, "what reads a report need not import torch"
    for name in ("numpy", "torch", "triton", "hypothesis"):
        assert facts[name].partition("+")[0] == importlib.metadata.version(name).partition("+")[0]
    assert facts["device"].startswith("CPU (")
    assert json.loads(json.dumps(facts)) == facts


def test_an_interpreter_that_cannot_be_turned_on_is_told(monkeypatch):
    def refused():
        raise RuntimeError("Triton is imported already")

    monkeypatch.setattr(patch, "enable", refused)
    assert environment("cpu")["interpreter"] == "off here: Triton is imported already"
