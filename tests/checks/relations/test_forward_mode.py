"""What a derivative in forward mode may be off by, counted at ±1, and where nothing is compared."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from counted import SPEC, U, X, case_of, one_off

from verify_norm.checks.relations import forward_mode
from verify_norm.core.contract import Contract
from verify_norm.core.finding import NoData
from verify_norm.core.kernel import Kernel
from verify_norm.core.run import Run
from verify_norm.reference.activation import SILU

UNIT = (4 * 8 + 40) * (1 + 1) * U  # of a row of 8, whose x̂ may cancel once
GROUP = replace(SPEC, num_groups=1)
BACKWARD = {"layernorm": SPEC, "rmsnorm": SPEC, "add_layernorm": SPEC, "groupnorm_silu": GROUP}


def run_of(op, spec=SPEC, **contract):
    kernel = Kernel("k", f"{op}_bwd", run=print, forward_run=print, contract=Contract(**contract))
    return Run(kernel, case_of(spec, kernel.op, kernel.contract), {})


def counted(op):
    """The errors allowed where x̂ = x = ±1 and the weight is 1, of each output."""
    tx, tw, tb = (np.abs(forward_mode._direction(*one)) for one in (("x", X.shape), ("weight", (8,)), ("bias", (8,))))
    along, along_x = (v.mean(1, keepdims=True) for v in (tx, tx))
    size = tx + along_x + tw + ((along + tb) if op != "rmsnorm" else 0.0)
    found = {"y": UNIT * size, "rstd": UNIT * along_x.ravel()}
    if op != "rmsnorm":
        found["mean"] = UNIT * along.ravel()
    if op.startswith("add_"):
        found["residual_out"] = U * tx
    return found


def truth(op, spec=SPEC):
    run = run_of(op, spec)
    return forward_mode._truth(run, forward_mode._moved(run.case)[0])


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm", "add_layernorm"])
def test_the_error_allowed_is_what_its_derivation_counts(op):
    found = truth(op)
    assert found.keys() == counted(op).keys()
    for name, allowed in counted(op).items():
        np.testing.assert_allclose(found[name][1], allowed, rtol=1e-2)


def test_an_activation_adds_what_its_slope_is_off_by():
    plain, found = truth("groupnorm", GROUP)["y"], truth("groupnorm_silu", GROUP)["y"]
    off = SILU.slope_error(X, forward_mode.arithmetic_of(run_of("groupnorm", GROUP))) + SILU.bend * 2 * UNIT
    np.testing.assert_allclose(found[0], SILU.slope(X) * plain[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], (SILU.steepest + off) * plain[1] + off * np.abs(plain[0]), rtol=1e-2)


@pytest.mark.parametrize(("op", "spec"), BACKWARD.items())
@pytest.mark.parametrize(("share", "shows"), [(0.9, False), (1.1, True), (-1.1, True), (np.nan, True)])
def test_more_than_that_is_wrong(op, spec, share, shows, monkeypatch):
    run = run_of(op, spec)

    def tangents(run, case, names):
        found = forward_mode._truth(replace(run, case=case), names)
        return {
            name: torch.from_numpy(value + one_off(value.shape, share * allowed.flat[0] if name == wrong else 0.0))
            for name, (value, allowed) in found.items()
        }

    monkeypatch.setattr(forward_mode, "_tangents", tangents)
    for wrong in truth(op, spec):
        said = list(forward_mode.forward_mode(run))
        assert bool(said) == shows, wrong
        assert all(f"derivative of {wrong}[" in one.words and "1 elements are wrong" in one.words for one in said)


@pytest.mark.parametrize(
    ("op", "spec", "contract"),
    [
        ("layernorm", SPEC, {"products": "tf32"}),
        ("layernorm", SPEC, {"accumulate": "float16"}),
        ("layernorm", SPEC, {"inplace": ("dx:dy",)}),
        ("gate_rmsnorm", SPEC, {}),
        ("qk_norm_rope", SPEC, {}),
    ],
)
def test_where_no_bound_is_derived_nothing_is_compared(op, spec, contract, monkeypatch):
    monkeypatch.setattr(forward_mode, "_tangents", lambda *_: pytest.fail("it was compared"))
    assert list(forward_mode.forward_mode(run_of(op, spec, **contract))) == [NoData()]
