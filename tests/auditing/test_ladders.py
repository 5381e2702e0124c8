"""Ladders show where one pass loses the variance, what narrow partial sums cost, and which sums a kernel has."""

from math import inf, isfinite

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from verify_norm.auditing.ladders import ladders
from verify_norm.auditing.model import Ladder
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry


def by_output(name, *ladder):
    """The ladders of a kernel by name and output; no step is too slow on a loaded machine."""
    kernel = registry.ready(ZOO[name].kernel) if name in ZOO else registry.load(name)
    return {(one.name, one.output): one for one in ladders(kernel, names=ladder, seconds=600.0)}


def step_at(ladder, value):
    return next(step for step in ladder.rungs if step.value == pytest.approx(value, rel=0.2))


@pytest.fixture(scope="module")
def forward():
    return {
        name: by_output(name, "offset") for name in ("layernorm_fwd", "S004_k4_onepass", "A19_onepass_variance_clipped")
    }


@pytest.mark.slow
def test_two_passes_hold_where_one_pass_fails(forward):
    two, one = forward["layernorm_fwd"]["offset", "rstd"], forward["S004_k4_onepass"]["offset", "rstd"]
    assert two.first_over is None
    assert one.first_over is not None
    assert one.first_over <= 100
    assert step_at(two, 1e3).error_ulp < 100 < 1e4 < step_at(one, 1e3).error_ulp
    assert step_at(one, 100).error_ulp > 1e3
    assert any(step.error_ulp == inf for step in one.rungs if step.value > 2e3)  # NaN: a variance below 0
    assert all(isfinite(step.error_ulp) for step in one.rungs if step.value < 2e3)


@pytest.mark.slow
def test_textbook_algorithms_lose_as_much_on_the_same_data(forward):
    rungs = forward["layernorm_fwd"]["offset", "y"].rungs
    for step in rungs:
        assert set(step.textbook) == {"two_pass", "welford", "one_pass", "shifted_one_pass"}
        if step.value >= 100:
            hold = max(step.textbook[name] for name in ("two_pass", "welford", "shifted_one_pass"))
            assert step.textbook["one_pass"] > 10 * hold
    assert rungs[-1].textbook["one_pass"] > 1e6


@pytest.mark.slow
def test_a_kernel_resembles_its_own_algorithm(forward):
    assert forward["S004_k4_onepass"]["offset", "y"].resembles == "one_pass"
    assert forward["S004_k4_onepass"]["offset", "rstd"].resembles == "one_pass"
    assert forward["A19_onepass_variance_clipped"]["offset", "rstd"].resembles == "one_pass"
    like = forward["layernorm_fwd"]["offset", "y"].like
    assert "two_pass" in like
    assert "one_pass" not in like


def gradients(narrow=None, *, sequential=False):
    """Partial sums in a narrow type, or all in float32: in a tree, or one after another."""

    def run(dy, x, weight, mean, rstd):
        d, xhat = dy.float(), (x.float() - mean[:, None]) * rstd[:, None]
        sums = []
        for t in (d * xhat, d):
            total = torch.zeros(t.shape[1])
            for row in t if narrow or sequential else ():
                total = total + row
                total = total if narrow is None else total.to(narrow).float()
            sums.append(total if narrow or sequential else t.double().sum(0).float())
        return None, *sums

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("narrow", "sequential", "like"),
    [
        (torch.bfloat16, False, "partials in bfloat16"),
        (torch.float16, False, "partials in float16"),
        (None, True, "sequential sums"),
        (None, False, "compensated sums"),
    ],
)
def test_the_growth_with_rows_shows_the_partial_sums(narrow, sequential, like):
    kernel = Kernel("k", "layernorm_bwd", run=gradients(narrow, sequential=sequential))
    found = {one.output: one for one in ladders(kernel, names=("rows",), seconds=1.0)}
    assert set(found) == {"dweight", "dbias"}
    for ladder in found.values():
        assert ladder.unit == "M"
        assert ladder.rungs[-1].value >= 256
        assert (ladder.first_over is not None) == (narrow is not None)
        assert ladder.resembles == like if narrow or sequential else like in ladder.like
        assert sequential or "sequential sums" not in ladder.like
    if narrow is not None:
        small, large = (step_at(found["dbias"], m).error_ulp for m in (4, 256))
        assert large > 4 * small


@pytest.mark.slow
def test_the_growth_with_length_shows_sequential_sums():
    def sequential(x, weight, eps):
        r = x.numpy()
        square = np.add.accumulate(r * r, axis=1, dtype=np.float32)[:, -1:] / np.float32(r.shape[1])
        return torch.from_numpy(r * (1 / np.sqrt(square + np.float32(eps))) * weight.numpy())

    (ladder,) = ladders(Kernel("k", "rmsnorm_fwd", run=sequential), names=("length",))
    assert ladder.resembles == "sequential sums"
    assert ladder.rungs[-1].value == 4**9
    assert ladder.first_over is None or ladder.first_over > 1e4
    right = by_output("rmsnorm_fwd", "length")["length", "y"]
    assert "sequential sums" not in right.like
    assert right.first_over is None


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["rmsnorm_fwd", "groupnorm_fwd", "add_rmsnorm_bwd", "batchnorm_fwd", "batchnorm_bwd", "instancenorm_fwd"]
)
def test_every_operator_has_ladders(name):
    found = by_output(name, "scale", "eps", "channel")
    assert {one for one, _ in found} == {"scale", "eps", "channel"}
    outputs = {tensor.name for tensor in OPS[registry.load(name).op].outputs}
    for ladder in found.values():
        assert ladder.output in outputs
        assert ladder.first_over is None
        assert len(ladder.rungs) >= 7
        assert all(len(step.textbook) >= 4 for step in ladder.rungs)
        assert [step.value for step in ladder.rungs] == sorted(step.value for step in ladder.rungs)
        typical = [step for step in ladder.rungs if 1e-6 < step.value < 1e6]
        best = [min(step.textbook.values()) for step in typical]
        assert max(best) < 50  # one algorithm is right, so the textbook has the operator


@pytest.mark.slow
def test_a_step_has_a_spec_to_replay():
    ladder = by_output("layernorm_fwd", "offset")["offset", "y"]
    spec = step_at(ladder, 1e3).spec
    assert spec is not None
    assert spec.offset == 1e3
    (largest,) = {step.spec for step in by_output("layernorm_fwd", "channel")["channel", "y"].rungs}
    assert largest is None  # no spec expresses it


def test_a_ladder_says_why_it_ends():
    def broken(x):
        raise ValueError("no")

    failed = ladders(Kernel("k", "rmsnorm_fwd", run=broken), names=("offset",))
    assert {step.error_ulp for one in failed for step in one.rungs} == {inf}
    assert {one.first_over for one in failed} == {1.0}
    picky = registry.load("rmsnorm_fwd_torch")
    few = Kernel("k", "rmsnorm_fwd", run=picky.run, unsupported=lambda s: "too long" if s.shape[-1] > 100 else None)
    shortened = ladders(few, names=("length",), seconds=600.0)
    assert [one.stopped for one in shortened] == ["too long"] * len(shortened)
    assert shortened
    slow = ladders(picky, names=("length",), seconds=0.0)
    assert all("would take" in one.stopped or "took" in one.stopped for one in slow)
    with pytest.raises(ValueError, match="no ladder 'height' for rmsnorm_fwd; there are: offset"):
        ladders(picky, names=("height",))


def test_ladders_go_to_json_and_back():
    found = tuple(by_output("rmsnorm_fwd_torch", "offset").values())
    kind = TypeAdapter(tuple[Ladder, ...])
    assert kind.validate_json(kind.dump_json(found)) == found
