"""The hunt finds what random cases do not, replays it, and keeps it."""

import json
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter

from verify_norm import cases
from verify_norm.auditing import corpus
from verify_norm.auditing.hunt import hunt, measure
from verify_norm.auditing.model import Hunt
from verify_norm.bind import UsageError
from verify_norm.ops import OPS
from verify_norm.spec import CaseSpec, Contract, Kernel


def layernorm_fwd(one_pass=False):
    def run(x, weight, bias, eps, normalized_shape):
        n = torch.Size(normalized_shape).numel()
        r = x.float().reshape(-1, n)
        mean = r.mean(1, keepdim=True)
        var = (r * r).mean(1, keepdim=True) - mean * mean if one_pass else (r - mean).square().mean(1, keepdim=True)
        rstd = (var + eps).rsqrt()
        y = (r - mean) * rstd
        y = y if weight is None else y * weight.float().reshape(-1)
        y = y if bias is None else y + bias.float().reshape(-1)
        return y.reshape(x.shape).to(x.dtype), mean[:, 0], rstd[:, 0]

    return run


RIGHT = Kernel("right", "layernorm_fwd", run=layernorm_fwd(), contract=Contract(variance="two_pass"))
WRONG = Kernel("wrong", "layernorm_fwd", run=layernorm_fwd(one_pass=True))


@pytest.fixture(scope="module")
def found():
    return hunt(RIGHT, 6.0, "y", seed=1)


def test_what_it_finds_replays(found):
    assert 6 <= found.seconds < 20
    assert found.drawn > 10
    assert found.evolved > 20
    assert found.moved > 10
    assert {(w.output, w.measure) for w in found.worst} == {("y", "ratio"), ("y", "ulp")}
    for w in found.worst:
        again = measure(RIGHT, cases.make(w.spec, OPS["layernorm_fwd"], RIGHT.contract), ("y",))
        assert again["y"][w.measure == "ulp"] == w.value
        assert w.beyond >= w.value
        assert w.found in ("drawn", "evolved")


def test_a_right_kernel_is_within_its_bound_however_long_it_is_hunted(found):
    assert 0.3 < found.ratio() <= 1
    assert all(w.beyond <= 1 for w in found.worst if w.measure == "ratio")


def test_it_finds_more_than_as_many_random_cases_do(found):
    """Half of what it may: the whole comparison, with 10,000 cases, is benchmarks/hunt.py."""
    largest = 0.0
    for seed in range(found.cases // 2):
        spec = CaseSpec((1 + seed % 7, 1 + seed % 130), offset=float(seed % 5), log2_scale=seed % 9 - 4, seed=seed)
        largest = max(largest, measure(RIGHT, cases.make(spec, OPS["layernorm_fwd"], RIGHT.contract), ("y",))["y"][0])
    assert found.ratio("y") > largest


def test_a_wrong_kernel_is_far_beyond_its_bound_and_goes_into_the_corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    first = hunt(WRONG, 2.0)
    assert first.ratio() > 10
    worst = [w.spec for w in first.worst if w.measure == "ratio"]
    assert corpus.load(path, WRONG) == ()
    assert corpus.save(path, WRONG, worst) == len(set(worst))
    later = hunt(WRONG, 0.0, corpus=corpus.load(path, WRONG))
    assert later.ratio() == first.ratio()
    assert later.cases == len(set(worst))
    assert {w.found for w in later.worst} == {"corpus"}


def test_the_corpus_keeps_other_kernels_and_the_newest_first(tmp_path):
    path = tmp_path / "corpus.jsonl"
    specs = [CaseSpec((2, n), seed=n) for n in range(1, 60)]
    corpus.save(path, RIGHT, specs[:2])
    corpus.save(path, WRONG, specs)
    assert corpus.load(path, RIGHT) == tuple(specs[:2])
    assert corpus.load(path, WRONG) == tuple(specs[: corpus.MOST])
    corpus.save(path, WRONG, specs[-1:])
    assert corpus.load(path, WRONG) == (specs[-1], *specs[: corpus.MOST - 1])
    assert all(json.loads(line)["op"] == "layernorm_fwd" for line in path.read_text().splitlines())
    gradient = replace(WRONG, op="layernorm_bwd")
    assert corpus.load(path, gradient) == ()


@pytest.mark.parametrize("text", ["{", '{"kernel": "k"}', '{"kernel": "k", "shape": [2], "colour": 1}'])
def test_a_corpus_that_is_none_is_said_in_words_and_left_alone(tmp_path, text):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"kernel": "k", "op": "layernorm_fwd", "shape": [2, 3]}\n' + text + "\n")
    for act in (lambda: corpus.load(path, RIGHT), lambda: corpus.save(path, RIGHT, [CaseSpec((2, 3))])):
        with pytest.raises(UsageError, match="line 2 of the corpus"):
            act()
    assert text in path.read_text()
    with pytest.raises(UsageError, match="cannot"):
        corpus.save(tmp_path / "no" / "where", RIGHT, [CaseSpec((2, 3))])
    with pytest.raises(UsageError, match="cannot read"):
        corpus.load(tmp_path, RIGHT)


def test_an_output_that_is_none_and_a_kernel_that_always_fails():
    with pytest.raises(ValueError, match="no output 'dx'; it has y, mean, rstd"):
        hunt(RIGHT, 1.0, "dx")

    def broken(x):
        raise RuntimeError

    nothing = hunt(replace(RIGHT, run=broken), 0.5)
    assert nothing.worst == ()
    assert nothing.ratio() == 0


def test_a_hunt_is_json(found):
    kind = TypeAdapter(Hunt)
    assert kind.validate_json(kind.dump_json(found)) == found
