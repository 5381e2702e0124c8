"""Truth and bound on a device are those of NumPy, and a device that computes otherwise is refused."""

import math
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch

from verify_norm.cases import agreement, corners, device_array, device_functions, make
from verify_norm.checks import CHECKS
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.work import NOTHING
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.reference.stages.block_scale import E8M0
from verify_norm.search.examine import examine

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CONTRACTS = (
    Contract(),
    Contract(variance="shifted", expanded=True, products="tf32"),
    Contract(summation="sequential", z="x"),
)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", OPS)
def test_every_reference(op, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    assert max(agreement.disagreement(op, device, contract) for contract in CONTRACTS) < agreement.ALLOWED


@pytest.mark.parametrize("how", E8M0)
def test_scales_of_few_bits(how):
    names = [f"rmsnorm | quantize({form})_fwd" for form in ("e4m3fn, mx", "e2m1, mx", "e2m1, nvfp4")]
    assert max(agreement.disagreement(name, "cpu", Contract(e8m0=how)) for name in names) < agreement.ALLOWED


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("divide", lambda a, b: a * (1 / b).to(torch.float32)),
        ("sqrt", lambda a: a.to(torch.float32).sqrt().to(torch.float64)),
        ("multiply", lambda a, b: (a * b).nan_to_num(nan=0.0) if a.dtype == b.dtype else a * b * (1 + 1e-9)),
    ],
)
def test_arithmetic_of_another_precision_is_refused(monkeypatch, name, wrong):
    right = device_functions.UFUNCS[name]
    monkeypatch.setitem(device_functions.UFUNCS, name, lambda *given: wrong(*given) * (1 + 1e-8))
    with pytest.raises(UsageError, match="cpu: expected float64 as in NumPy, but layernorm_bwd's truth is"):
        agreement.require.__wrapped__("layernorm_bwd", "cpu")
    monkeypatch.setitem(device_functions.UFUNCS, name, right)
    agreement.require.__wrapped__("layernorm_bwd", "cpu")


@pytest.mark.parametrize(
    ("values", "deltas", "apart"),
    [
        ((1.0, 1.0), (0.5, 0.5), 0.0),
        ((1.0, 1.25), (0.5, 0.5), 0.5),
        ((1.0, 1.0), (0.5, 0.75), 0.5),
        ((1.0, 1.0), (0.5, np.inf), np.inf),
        ((np.inf, 1.0), (0.5, 0.5), np.inf),
        ((np.inf, -np.inf), (0.5, 0.5), 0.0),  # not judged
        ((np.inf, np.inf), (0.5, 0.5), 0.0),
    ],
)
def test_truth_and_bound_must_agree(values, deltas, apart):
    one, other = (Expected(np.array([v]), np.array([d]), "float32") for v, d in zip(values, deltas, strict=True))
    with np.errstate(all="raise"):
        assert agreement._distance(one, other) == pytest.approx(apart, rel=1e-6)
    assert agreement._distance(one, None) == np.inf


@pytest.mark.parametrize(
    ("apart", "refused"), [(0.0, False), (agreement.ALLOWED, False), (1.1e-3, True), (np.inf, True), (np.nan, True)]
)
def test_a_device_is_refused_beyond_what_is_allowed(monkeypatch, apart, refused):
    there = {("layernorm_bwd", "cuda:1"): apart}  # no other device is asked
    monkeypatch.setattr(agreement, "disagreement", lambda *asked: there[asked])
    if refused:
        with pytest.raises(UsageError, match="cuda:1: expected float64 as in NumPy"):
            agreement.require.__wrapped__("layernorm_bwd", "cuda:1")
    else:
        agreement.require.__wrapped__("layernorm_bwd", "cuda:1")


@pytest.mark.parametrize("op", ["groupnorm_bwd", "batchnorm_bwd", "add_rmsnorm_bwd"])
def test_a_device_is_asked_in_a_wide_and_a_narrow_type_off_zero(monkeypatch, op):
    specs, devices, exact_inputs = [], set(), make.exact_inputs

    def drawn(spec, op):
        specs.append(spec)
        return exact_inputs(spec, op)

    def moved(values, device):
        devices.add(device)
        return device_array.on_device(values, "cpu")

    monkeypatch.setattr(make, "exact_inputs", drawn)
    monkeypatch.setattr(agreement, "on_device", moved)
    assert agreement.disagreement(op, "cuda:1") < agreement.ALLOWED
    assert devices == {"cuda:1"}
    assert [spec.dtype for spec in specs] == ["float32", "bfloat16"]
    assert {spec.offset for spec in specs} == {3.0}, "sums that cancel show most"
    assert {spec.num_groups for spec in specs} == {3 if op == "groupnorm_bwd" else None}


def verdict(examined):
    """What a case's examination says, numbers apart."""
    findings = [(one.check, one.output, one.index, one.status) for one in examined.findings]
    return replace(examined, findings=(), tallies=(), detectable=(), seconds=0.0, compiled=NOTHING), findings


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["layernorm_bwd_torch", "groupnorm_fwd_torch", "B38_persistent", "B46_eps_in_type_of_x", "batchnorm_bwd_torch"],
)
def test_every_check_says_the_same(name, monkeypatch):
    """All checks on device arrays (in this machine's memory) and on NumPy's, in cases of the corner table."""
    kernel, seen = registry.ready(ZOO[name].kernel) if name in ZOO else registry.load(name), 0
    table = [spec for spec in corners.corners(OPS[kernel.op], kernel.dtypes)[::17] if prod(spec.shape) < 2**15]
    checks = tuple(name for name, check in CHECKS.items() if check.applies(OPS[kernel.op]))
    monkeypatch.setattr(make, "LARGE", 1)
    for spec in table:
        monkeypatch.setattr(make, "JUDGES", frozenset())
        usual = examine(kernel, spec, checks, "cpu")
        monkeypatch.setattr(make, "JUDGES", frozenset({"cpu"}))
        moved = examine(kernel, spec, checks, "cpu")
        assert verdict(moved) == verdict(usual), spec
        for one, other in zip(usual.tallies, moved.tallies, strict=True):
            assert math.isclose(one.ratio, other.ratio, rel_tol=1e-3), (spec, one.output)
            assert (one.elements, one.unjudged, one.ulp.count) == (other.elements, other.unjudged, other.ulp.count)
            assert math.isclose(one.ulp.maximum, other.ulp.maximum, rel_tol=1e-3, abs_tol=1e-6)
        pairs = zip(usual.detectable, moved.detectable, strict=True)
        for (check, a), (_, b) in pairs:
            assert np.isclose(a.everything, b.everything, rtol=1e-3), (spec, check, a, b)
        seen += len(usual.tallies)
    assert seen > 10
