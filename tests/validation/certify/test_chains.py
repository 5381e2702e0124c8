"""Certify passes every chain, and detects wrong values and gradients of stages by name."""

import doctest

import numpy as np
import pytest

from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS, base
from verify_norm.reference.chain import Function
from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.modulate import Modulate
from verify_norm.reference.stages.quantize import Quantize
from verify_norm.validation.certify import certify, chains

RELATIVE, STEP = "50 digits, relative", "complex step"
CHAINS = {name: op for name, op in OPS.items() if isinstance(op.reference, Function)}
NAMES = sorted({base(name) for name in CHAINS})
FEW_BITS = [
    f"rmsnorm | quantize({form})" for form in ("e5m2, mx", "e2m1, mx", "e2m1, nvfp4", "int8, group64, scale_ub")
]


def failed(*names):
    found = {}
    for result in certify(names).failures:
        found.setdefault(result.quantity, set()).add(result.method)
    return found


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*NAMES, *FEW_BITS, "add_layernorm", "instancenorm", "add | rmsnorm | modulate | gelu"]
)
def test_every_chain_is_certified(name):
    certificate = certify([name])
    assert certificate.ok, certificate.failures
    judged = {(result.quantity, result.method) for result in certificate.results}
    ways = ("fwd",) if OPS[f"{name}_fwd"].quantizer else ("fwd", "bwd")  # what is quantized has no gradient
    assert {(output.name, RELATIVE) for way in ways for output in OPS[f"{name}_{way}"].outputs} <= judged
    assert max(result.allowed for result in certificate.results) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "part", "change", "wrong"),
    [
        (Gate, "pull", lambda dz, own: (dz, {"gate": own["gate"] * (1 + 1e-9)}), {"dgate": {RELATIVE}}),
        (Modulate, "pull", lambda dz, own: (dz, {**own, "scale": own["shift"]}), {"dscale": {RELATIVE, STEP}}),
        (
            Modulate,
            "pull",
            lambda dz, own: (dz * (1 + 1e-9), own),
            {name: {RELATIVE, STEP} for name in ("dx", "dweight")},
        ),
    ],
    ids=["dgate", "dscale", "dz"],
)
def test_a_wrong_gradient_of_a_stage_is_detected(stage, part, change, wrong, monkeypatch):
    right = getattr(stage, part)
    monkeypatch.setattr(stage, part, lambda *given: change(*right(*given)))
    assert failed("gated_rmsnorm" if stage is Gate else "modulate_rmsnorm") == wrong


def test_a_stage_that_is_consistent_and_wrong_is_detected_by_the_digits_alone(monkeypatch):
    right = Modulate.value
    monkeypatch.setattr(
        Modulate, "value", lambda self, z, given: right(self, z, given) + given["shift"].sum() * 0 + 1e-9
    )
    assert failed("modulate_rmsnorm") == {"y": {RELATIVE}}


@pytest.mark.parametrize("granularity", ["mx", "nvfp4"])
def test_a_wrong_scale_is_detected(granularity, monkeypatch):
    right = Quantize._bounded
    monkeypatch.setattr(Quantize, "_bounded", lambda *given: right(*given) * 2)
    found = failed(f"rmsnorm | quantize(e2m1, {granularity})")
    assert found == {"y": {RELATIVE}, "y_scale": {RELATIVE}}


def test_a_reference_that_raises_or_loses_a_number_fails(monkeypatch):
    monkeypatch.setattr(Gate, "pull", lambda *given: 1 / 0)
    assert failed("gated_rmsnorm") == {"every quantity": {"call"}}
    monkeypatch.undo()
    monkeypatch.setattr(Gate, "value", lambda self, z, given: np.full(z.shape, np.nan))
    assert RELATIVE in failed("gated_rmsnorm")["y"]


def test_what_is_no_operator_is_said():
    with pytest.raises(UsageError, match="unknown stage 'modulat'"):
        certify(["rmsnorm | modulat"])


def test_the_examples():
    assert doctest.testmod(chains).failed == 0
