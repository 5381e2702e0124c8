"""What a case turns on: drawn, named in the spec, and read from there alone, never from the seed."""

from collections import Counter
from dataclasses import replace
from math import sqrt
from zlib import crc32

import hypothesis
import pytest
from hypothesis import strategies as st

from verify_norm.cases import further_runs, make, strategies
from verify_norm.cases.corners import corners
from verify_norm.checks import CHECKS, power
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.serial import read_spec, spec_text
from verify_norm.core.spec import FURTHER, LAWS, CaseSpec
from verify_norm.running.execute import execute

DTYPES = ("float32", "float16", "bfloat16")
EACH = [op if op == "layernorm_bwd" else pytest.param(op, marks=pytest.mark.slow) for op in OPS]


def laws(op):
    return set(LAWS if op.forward else ("scale", "shift", "permutation"))


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("dtypes", [DTYPES, DTYPES[1:], DTYPES[:1]])
def test_the_corner_table_meets_every_further_run_in_every_type(name, dtypes):
    op = OPS[name]
    table = corners(op, dtypes, frozen=True)
    met = {(further, spec.dtype) for spec in table for further in spec.further}
    assert met == {(further, dtype) for further in (*further_runs.SHARES, *laws(op)) for dtype in dtypes}
    assert {(spec.poison, spec.dtype) for spec in table} == {(p, dtype) for p in make.POISONS for dtype in dtypes}


@pytest.mark.parametrize("name", ["layernorm_bwd", "groupnorm_fwd"])
def test_drawn_cases_meet_it_in_the_shares_of_the_table(name):
    op, plain = OPS[name], CaseSpec((2, 3))
    specs = [further_runs.drawn(plain, crc32(str(number).encode()), op) for number in range(2000)]
    for further, (share, _) in further_runs.SHARES.items():
        assert sum(further in spec.further for spec in specs) == pytest.approx(2000 / share, rel=0.15)
    for law in laws(op):
        assert sum(law in spec.further for spec in specs) == pytest.approx(1000 / len(laws(op)), rel=0.3)
    assert all(len(further_runs.laws(spec)) <= 1 for spec in specs)
    assert {spec.variant for spec in specs} == set(range(further_runs.VARIANTS))
    assert sum(spec.poison == "finite" for spec in specs) == pytest.approx(1000, rel=0.1)
    assert {spec.poison for spec in specs if "memory" in spec.further} == {"nan", "finite"}


@pytest.mark.parametrize("number", range(further_runs.ROUND))
def test_a_batch_is_always_compared_and_once(number):
    with_batch, without = (further_runs.drawn(CaseSpec((2, 3), batch=n), number, OPS["layernorm_bwd"]) for n in (9, 0))
    assert with_batch.further.count("batch_invariance") == 1
    assert set(with_batch.further) - set(without.further) <= {"batch_invariance"}


def test_neighbours_in_a_table_differ_and_what_one_type_turns_on_the_next_did_before():
    of = [
        [further_runs.of_type(CaseSpec((2, 3)), number, dtype, OPS["layernorm_bwd"]) for number in range(4)]
        for dtype in (0, 1)
    ]
    assert of[1][:-1] == of[0][1:]
    assert len(set(of[0])) == 4


def test_of_an_operator_of_ones_own_no_law_of_a_norm_is_tried():
    own = further_runs.checks(replace(OPS["layernorm_bwd"], user_defined=True))
    assert set(further_runs.checks(OPS["layernorm_bwd"])) - set(own) == {"distribution", "gradient", *LAWS}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("autograd", [False, True])
def test_the_corner_table_meets_every_way_of_a_further_run_in_every_type(name, autograd):
    op = OPS[name]
    for dtypes, gpu in ((DTYPES, False), (DTYPES[1:], True), (DTYPES[:1], False)):
        offered = ways.offered(op, autograd=autograd, gpu=gpu)
        table = corners(op, dtypes, frozen=autograd, gpu=gpu)
        met = {
            (field, way, spec.dtype)
            for spec in table
            for field, names in offered.items()
            if ways.CHECKS[field] in spec.further
            for way in ways.taken(spec, field, names)
        }
        wanted = {(field, way, dtype) for field, names in offered.items() for way in names for dtype in dtypes}
        assert not {(field, way, dtype) for field, way, dtype in wanted - met if ways.fits(way, CaseSpec((2,), dtype))}


def test_drawn_cases_name_each_way_and_dear_ones_in_their_shares():
    op = OPS["layernorm_fwd"]
    offered = ways.offered(op, gpu=True)
    specs = [further_runs.named(CaseSpec((2, 300)), offered, number) for number in range(8000)]
    for field, names in offered.items():
        named = Counter(getattr(spec, field) for spec in specs)
        assert set(named) == set(names or [""])
        usual = [named[way] for way in names if way not in ways.EXPENSIVE]
        mean = sum(usual) / max(len(usual), 1)
        assert all(abs(number - mean) < 4.5 * sqrt(mean) for number in usual)  # as counts of random draws are
    small = [further_runs.named(CaseSpec((2, 3)), offered, number) for number in range(8000)]
    assert {spec.mode for spec in small} == {ways.QUICK, *ways.EXPENSIVE} & {ways.QUICK, *offered["mode"]}
    for drawn in (specs, small):
        count = Counter(way for spec in drawn for way in (spec.mode, spec.effect))
        for way, share in ways.EXPENSIVE_IN_RANDOM.items():
            assert count[way] == pytest.approx(8000 / share, rel=0.25)
    assert further_runs.named(CaseSpec((2, 3), further=("memory",)), offered, 7) == CaseSpec(
        (2, 3), further=("memory",)
    )


@pytest.mark.parametrize("name", ["layernorm_bwd", "batchnorm_fwd"])
def test_editing_the_seed_changes_the_data_and_nothing_else(name):
    op, kernel = OPS[name], Kernel("k", name, run=lambda **arguments: None, forward_run=lambda **arguments: None)

    @hypothesis.seed(0)
    @hypothesis.settings(max_examples=60, database=None, deadline=None, phases=(hypothesis.Phase.generate,),
                         suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    @hypothesis.given(strategies.specs(op, DTYPES, 200), st.integers(0, 2**32))
    def one(spec, seed):
        runs = [
            replace(execute(kernel, make.case(s, op, Contract())), problem=None)
            for s in (spec, replace(spec, seed=seed))
        ]
        looking = [{c.name for c in CHECKS.values() if c.applies(op) and c.looks(run)} for run in runs]
        assert looking[0] == looking[1]
        assert power.looks(runs[0]) == power.looks(runs[1])
        assert runs[0].case.poison == pytest.approx(runs[1].case.poison, nan_ok=True)

    one()


def test_a_spec_that_names_nothing_makes_every_further_run():
    spec = read_spec('{"kernel": "layernorm_bwd", "shape": [2, 3], "seed": 7}')[2]
    assert spec.further == FURTHER
    assert further_runs.laws(spec) == LAWS
    assert spec == replace(spec, **further_runs.EVERYTHING)
    assert spec_text("k", spec) == '{"kernel": "k", "shape": [2, 3], "seed": 7}'


def test_a_spec_names_what_it_makes():
    spec = CaseSpec((2, 3), poison="finite", further=("memory", "shift", "modes"), mode=ways.COMPILED, variant=3)
    text = spec_text("k", spec)
    named = '"poison": "finite", "further": ["memory", "shift", "modes"], "mode": "under torch.compile", "variant": 3'
    assert text == f'{{"kernel": "k", "shape": [2, 3], {named}}}'
    assert read_spec(text)[2] == spec


def test_a_line_of_an_older_version_takes_all_ways():
    old = read_spec('{"kernel": "k", "shape": [2, 3], "further": ["calls", "modes"], "variant": 37}')[2]
    assert {getattr(old, field) for field in ways.WAYS} == {""}
    for field, names in ways.offered(OPS["layernorm_fwd"]).items():
        assert ways.taken(old, field, names) == names


@pytest.mark.parametrize("field", ways.WAYS)
def test_a_way_that_there_is_not_is_refused(field):
    for way in (*ways.WAYS[field], ""):
        assert getattr(read_spec(spec_text("k", replace(CaseSpec((2, 3)), **{field: way})))[2], field) == way
    with pytest.raises(UsageError, match=f"^unknown {field} 'two thread'"):
        read_spec(f'{{"kernel": "k", "shape": [2, 3], "{field}": "two thread"}}')


def test_variants_take_turns():
    spec = CaseSpec((2, 3), variant=4)
    assert further_runs.variant(spec, ("a", "b", "c")) == "b"
    assert further_runs.from_variant(spec, ("a", "b", "c")) == ("b", "c", "a")


@pytest.mark.parametrize("name", further_runs.SHARES)
def test_each_check_meets_both_poisons(name):
    share, first = further_runs.SHARES[name]
    specs = [further_runs.drawn(CaseSpec((2, 3)), first + share * turn, OPS["layernorm_bwd"]) for turn in range(4000)]
    assert all(name in spec.further for spec in specs)
    poisons = Counter(spec.poison for spec in specs)
    assert min(poisons["nan"], poisons["finite"]) > 1000
