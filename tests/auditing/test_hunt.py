"""The hunt finds more than random cases do, its worst cases replay, and what it tries are cases of the operator."""

import inspect
import signal
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter

from verify_norm.auditing import hunt as hunt_module
from verify_norm.auditing.hunt import HuntOptions, hunt, measure
from verify_norm.auditing.model import Hunt
from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


def layernorm_fwd(one_pass=False):
    def run(x, weight, bias, eps, weight_offset, normalized_shape):
        n = torch.Size(normalized_shape).numel()
        r = x.float().reshape(-1, n)
        mean = r.mean(1, keepdim=True)
        var = (r * r).mean(1, keepdim=True) - mean * mean if one_pass else (r - mean).square().mean(1, keepdim=True)
        rstd = (var + eps).rsqrt()
        y = (r - mean) * rstd
        y = y if weight is None else y * (weight.float().reshape(-1) + weight_offset)
        y = y if bias is None else y + bias.float().reshape(-1)
        return y.reshape(x.shape).to(x.dtype), mean[:, 0], rstd[:, 0]

    return run


RIGHT = Kernel("right", "layernorm_fwd", run=layernorm_fwd(), contract=Contract(variance="two_pass"))
WRONG = Kernel("wrong", "layernorm_fwd", run=layernorm_fwd(one_pass=True))


@pytest.fixture(scope="module")
def found():
    return hunt(RIGHT, HuntOptions(4.0, "y", seed=1))


@pytest.mark.slow
def test_its_worst_cases_can_be_replayed(found):
    assert found.drawn > 10
    assert found.evolved > 20
    assert found.moved > 10
    assert {(w.output, w.measure) for w in found.worst} == {("y", "ratio"), ("y", "ulp")}
    for w in found.worst:
        again = measure(RIGHT, make.case(w.spec, OPS["layernorm_fwd"], RIGHT.contract), ("y",))
        assert again["y", w.measure] == w.value
        assert w.beyond >= w.value
        assert w.found in ("drawn", "evolved")


@pytest.mark.slow
def test_a_right_kernel_stays_within_its_bound(found):
    assert 0.3 < found.ratio() <= 1
    assert all(w.beyond <= 1 for w in found.worst if w.measure == "ratio")


@pytest.mark.slow
def test_it_finds_more_than_as_many_random_cases_do(found):
    """Half as many are enough here: the comparison with 10,000 cases is benchmarks/hunt.py."""
    largest = 0.0
    for seed in range(found.cases // 2):
        spec = CaseSpec((1 + seed % 7, 1 + seed % 130), offset=float(seed % 5), log2_scale=seed % 9 - 4, seed=seed)
        found_here = measure(RIGHT, make.case(spec, OPS["layernorm_fwd"], RIGHT.contract), ("y",))
        largest = max(largest, found_here["y", "ratio"])
    assert found.ratio("y") > largest


@pytest.mark.slow
def test_a_wrong_kernel_exceeds_its_bound_and_the_corpus_replays_it():
    first = hunt(WRONG, HuntOptions(2.0))
    assert first.ratio() > 10
    worst = [w.spec for w in first.worst if w.measure == "ratio"]
    later = hunt(WRONG, HuntOptions(0.0, corpus=tuple(dict.fromkeys(worst))))
    assert later.ratio() == first.ratio()
    assert later.cases == len(set(worst))
    assert {w.found for w in later.worst} == {"corpus"}


@pytest.mark.slow
def test_an_unknown_output_and_a_kernel_that_always_fails():
    with pytest.raises(ValueError, match="no output 'dx'; it has y, mean, rstd"):
        hunt(RIGHT, HuntOptions(1.0, "dx"))

    def broken(x):
        raise RuntimeError

    nothing = hunt(replace(RIGHT, run=broken), HuntOptions(0.5))
    assert nothing.worst == ()
    assert nothing.ratio() == 0


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_hunt_that_is_interrupted_has_what_it_found(monkeypatch, by_itself):
    """Ctrl-C comes to this process; that of a kernel is asked to end."""
    calls = []

    def interrupted(**given):
        calls.append(1)
        if by_itself and len(calls) == 20:
            signal.raise_signal(signal.SIGINT)
        return RIGHT.run(**given)

    monkeypatch.setattr(hunt_module.child, "asked_to_end", lambda: not by_itself and len(calls) >= 20)
    interrupted.__signature__ = inspect.signature(RIGHT.run)
    result = hunt(replace(RIGHT, run=interrupted), HuntOptions(60.0, "y", seed=1))
    assert (result.interrupted, result.verdict) == (True, Exit.INCOMPLETE)
    assert 15 <= result.cases <= 20
    assert result.worst
    assert result.seconds < 50


@pytest.mark.slow
def test_a_hunt_goes_to_json_and_back(found):
    kind = TypeAdapter(Hunt)
    assert kind.validate_json(kind.dump_json(found)) == found
