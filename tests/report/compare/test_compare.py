"""Comparing two runs: kernels are matched, equal cases are required, findings are new, gone, or persist."""

from dataclasses import replace

import pytest
from runs import changes, finding, kernel, ran

from verify_norm.auditing.model import Audit
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.report.compare.compare import compare


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"one_pass": True}, {"ddof": 1}, {"early": True}])
def test_a_wrong_kernel_is_worse(wrong, few_corners):
    few_corners(slice(30))
    good, new = ran(kernel()), ran(kernel(**wrong))
    assert good.ok
    assert not new.ok
    found = changes(good, new)
    assert "accuracy y" in found
    assert found["accuracy y"].replay
    assert "accuracy y" in changes(new, good, "better")


def test_findings_are_new_gone_or_persist(good):
    one = replace(good, findings=(finding(),))
    other = replace(good, findings=(finding(output="rstd", check="statistics"),))
    assert set(changes(good, one)) == {"accuracy y"}
    assert set(changes(one, other)) == {"statistics rstd"}
    assert set(changes(one, other, "better")) == {"accuracy y"}
    assert changes(one, one, "worse", "better", "changed") == {}
    persists = changes(one, replace(good, findings=(finding(dtype="bfloat16"),)), "same")
    assert set(persists) == {"accuracy y"}, "the smallest case may be of another type"


def test_a_finding_that_the_old_run_could_not_have_is_a_change(good):
    unlooked = replace(good, checks=tuple(check for check in good.checks if check.name != "accuracy"))
    new = replace(good, findings=(finding(),))
    assert changes(unlooked, new) == {}
    assert "nothing to check" in changes(unlooked, new, "changed")["accuracy y"].why


def test_kernels_are_matched_by_name_and_operator(good):
    other = replace(good, kernel="other")
    both = compare([good, other], [other, good])
    assert [(pair.kernel, pair.old_kernel) for pair in both.pairs] == [("other", "other"), ("plain", "plain")]
    replaced = compare([good], [other])
    assert [(pair.old_kernel, pair.kernel) for pair in replaced.pairs] == [("plain", "other")]
    several = compare([good, other], [replace(good, kernel="third"), good])
    assert [pair.kernel for pair in several.pairs] == ["plain"]
    assert (several.old_alone, several.new_alone) == (("other (layernorm_fwd)",), ("third (layernorm_fwd)",))
    backward = replace(good, op="layernorm_bwd")
    assert compare([good], [backward]).pairs == ()
    assert len(compare([good, good], [good, good]).pairs) == 2


def test_unequal_cases_are_refused_with_the_kernel_s_name(good):
    other = replace(good, settings=replace(good.settings, examples=50))
    with pytest.raises(
        UsageError, match=r"^cannot compare plain \(layernorm_fwd\): the runs differ in --examples"
    ) as caught:
        compare([good], [other])
    assert "\n" not in str(caught.value)
    compare([good], [replace(other, op="rmsnorm_fwd")])  # never compared


def test_an_output_that_misses_cases_is_not_compared(good):
    fewer = tuple(replace(one, cases=one.cases - 1) if one.output == "y" else one for one in good.tallies)
    pair = compare([good], [replace(good, tallies=fewer)]).pairs[0]
    assert {row.new.output for row in pair.rows} == {"mean", "rstd"}
    assert any(note.startswith("y float16: compared in ") for note in pair.notes)


def test_audits_whose_random_cases_differ_are_compared_by_their_typical_data(good):
    random = replace(good, settings=replace(good.settings, examples=50))
    other = replace(random, cases=good.cases + 1)
    pair = compare([Audit(random)], [Audit(other)]).pairs[0]
    assert not pair.same_cases
    assert pair.rows == ()
    assert any("only typical data is compared" in note for note in pair.notes)
    with pytest.raises(UsageError, match="make both again with --examples 0"):
        compare([random], [other])


def test_other_differences_are_noted(good):
    new = replace(
        good,
        environment=good.environment | {"device": "NVIDIA H200", "torch": "9.9", "date": "tomorrow"},
        contract=Contract(xhat="x"),
        settings=replace(good.settings, seconds=1.0),
    )
    notes = "\n".join(compare([good], [new]).pairs[0].notes)
    for part in ("→ NVIDIA H200", "→ 9.9", "xhat=None → x; error/bound is not compared"):
        assert part in notes
    assert "seconds" not in notes
    assert "tomorrow" not in notes
    mixed = compare([Audit(good)], [good]).pairs[0]
    assert any("only the old file has an audit" in note for note in mixed.notes)
    assert not mixed.of("worse")
