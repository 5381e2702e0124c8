"""Ladders reproduce what is known: where one pass loses the variance, what narrow partial sums cost, and who is who."""

import doctest
from math import inf, isfinite

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from verify_norm import cases, registry
from verify_norm.auditing import textbook
from verify_norm.auditing.ladders import ladders
from verify_norm.auditing.model import Ladder
from verify_norm.auditing.textbook import Algorithm, compute
from verify_norm.kernels.zoo import ZOO
from verify_norm.ops import OPS
from verify_norm.spec import CaseSpec, Contract, Kernel


def climbed(name, *ladder, **options):
    kernel = registry.ready(ZOO[name].kernel) if name in ZOO else registry.load(name)
    return {(one.name, one.output): one for one in ladders(kernel, names=ladder, **options)}


def at(ladder, value):
    return next(rung for rung in ladder.rungs if rung.value == pytest.approx(value, rel=0.2))


@pytest.fixture(scope="module")
def forward():
    return {
        name: climbed(name, "offset") for name in ("layernorm_fwd", "S004_k4_onepass", "A19_onepass_variance_clipped")
    }


def test_two_passes_hold_where_one_pass_fails(forward):
    two, one = forward["layernorm_fwd"]["offset", "rstd"], forward["S004_k4_onepass"]["offset", "rstd"]
    assert two.first_over is None
    assert one.first_over is not None
    assert one.first_over <= 100
    assert at(two, 1e3).error_ulp < 100 < 1e4 < at(one, 1e3).error_ulp
    assert at(one, 100).error_ulp > 1e3
    assert any(rung.error_ulp == inf for rung in one.rungs if rung.value > 2e3)  # NaN: a variance below 0
    assert all(isfinite(rung.error_ulp) for rung in one.rungs if rung.value < 2e3)


def test_the_textbook_says_the_same_of_the_same_data(forward):
    rungs = forward["layernorm_fwd"]["offset", "y"].rungs
    for rung in rungs:
        assert set(rung.textbook) == {"two_pass", "welford", "one_pass", "shifted_one_pass"}
        if rung.value >= 100:
            hold = max(rung.textbook[name] for name in ("two_pass", "welford", "shifted_one_pass"))
            assert rung.textbook["one_pass"] > 10 * hold
    assert rungs[-1].textbook["one_pass"] > 1e6


def test_a_kernel_is_likened_to_what_it_does(forward):
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


@pytest.mark.parametrize(("narrow", "sequential", "like"), [
    (torch.bfloat16, False, "partials in bfloat16"), (torch.float16, False, "partials in float16"),
    (None, True, "sequential sums"), (None, False, "compensated sums"),
])  # fmt: skip
def test_partial_sums_are_told_by_how_they_grow_with_rows(narrow, sequential, like):
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
        small, large = (at(found["dbias"], m).error_ulp for m in (4, 256))
        assert large > 4 * small


def test_length_is_what_sequential_sums_lose_by():
    def sequential(x, weight, eps):
        r = x.numpy()
        square = np.add.accumulate(r * r, axis=1, dtype=np.float32)[:, -1:] / np.float32(r.shape[1])
        return torch.from_numpy(r * (1 / np.sqrt(square + np.float32(eps))) * weight.numpy())

    (ladder,) = ladders(Kernel("k", "rmsnorm_fwd", run=sequential), names=("length",))
    assert ladder.resembles == "sequential sums"
    assert ladder.rungs[-1].value == 4**9
    assert ladder.first_over is None or ladder.first_over > 1e4
    right = climbed("rmsnorm_fwd", "length")["length", "y"]
    assert "sequential sums" not in right.like
    assert right.first_over is None


@pytest.mark.parametrize(
    "name", ["rmsnorm_fwd", "groupnorm_fwd", "add_rmsnorm_bwd", "batchnorm_fwd", "batchnorm_bwd", "instancenorm_fwd"]
)
def test_every_operator_has_ladders(name):
    found = climbed(name, "scale", "eps", "channel")
    assert {one for one, _ in found} == {"scale", "eps", "channel"}
    outputs = {tensor.name for tensor in OPS[registry.load(name).op].outputs}
    for ladder in found.values():
        assert ladder.output in outputs
        assert ladder.first_over is None
        assert len(ladder.rungs) >= 7
        assert all(len(rung.textbook) >= 4 for rung in ladder.rungs)
        assert [rung.value for rung in ladder.rungs] == sorted(rung.value for rung in ladder.rungs)
        typical = [rung for rung in ladder.rungs if 1e-6 < rung.value < 1e6]
        best = [min(rung.textbook.values()) for rung in typical]
        assert max(best) < 50  # one of them is right, so the textbook has the operator


def test_a_rung_replays(device):
    ladder = climbed("layernorm_fwd", "offset")["offset", "y"]
    spec = at(ladder, 1e3).spec
    assert spec is not None
    assert spec.offset == 1e3
    (largest,) = {rung.spec for rung in climbed("layernorm_fwd", "channel")["channel", "y"].rungs}
    assert largest is None  # no spec says it


def test_what_fails_or_is_slow_or_is_not_taken_is_told():
    def broken(x):
        raise ValueError("no")

    failed = ladders(Kernel("k", "rmsnorm_fwd", run=broken), names=("offset",))
    assert {rung.error_ulp for one in failed for rung in one.rungs} == {inf}
    assert {one.first_over for one in failed} == {1.0}
    picky = registry.load("rmsnorm_fwd_torch")
    few = Kernel("k", "rmsnorm_fwd", run=picky.run, unsupported=lambda s: "too long" if s.shape[-1] > 100 else None)
    shortened = ladders(few, names=("length",), seconds=600.0)  # no rung too slow on a loaded machine
    assert [one.stopped for one in shortened] == ["too long"] * len(shortened)
    assert shortened
    slow = ladders(picky, names=("length",), seconds=0.0)
    assert all("would take" in one.stopped or "took" in one.stopped for one in slow)
    with pytest.raises(ValueError, match="no ladder 'height' for rmsnorm_fwd; there are: offset"):
        ladders(picky, names=("height",))


def test_ladders_are_json():
    found = tuple(climbed("rmsnorm_fwd_torch", "offset").values())
    kind = TypeAdapter(tuple[Ladder, ...])
    assert kind.validate_json(kind.dump_json(found)) == found


@pytest.mark.parametrize("how", ["sequential", "pairwise", "blocked", "compensated"])
def test_textbook_sums(how):
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 127, 128, 129, 5000):
        t = rng.standard_normal((3, n)).astype(np.float32) + np.float32(10)
        off = np.abs(textbook.total(t, how)[:, 0] - t.astype(np.float64).sum(1))
        assert (off <= {"sequential": n, "compensated": 1}.get(how, 60) * 2.0**-24 * np.abs(t).sum(1)).all()
    if n:
        errors = {
            h: np.abs(textbook.total(t, h)[:, 0] - t.astype(np.float64).sum(1)).max() for h in ("sequential", how)
        }
        assert errors[how] <= errors["sequential"]


@pytest.mark.parametrize("op", ["layernorm_fwd", "rmsnorm_bwd", "groupnorm_bwd", "batchnorm_bwd", "add_layernorm_bwd",
                                "add_rmsnorm_fwd", "instancenorm_fwd"])  # fmt: skip
def test_two_passes_in_blocks_are_within_every_bound(op):
    groups = 2 if op.startswith("group") else None
    shape = (3, 4, 5) if OPS[op].view != "rows" else (5, 40)
    for seed in range(4):
        spec = CaseSpec(shape, num_groups=groups, seed=seed, offset=3.0, bias=seed != 1, weight=seed != 2)
        case = cases.make(spec, OPS[op], Contract())
        found = compute(case, Algorithm("two_pass"))
        assert found is not None
        for name, got in found.items():
            expected = case.expected[name]
            assert expected is not None
            assert (np.abs(got - expected.value) <= expected.delta + 1e-7 * np.abs(expected.value)).all(), name


def test_doctests():
    assert doctest.testmod(textbook).failed == 0
