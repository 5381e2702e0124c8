"""Which runs saw equal cases, and what one checked and the other did not."""

from dataclasses import replace

import pytest
from runs import EARLY, changes, kernel, ran

from verify_norm.auditing.model import Audit
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.tally import CheckResult, Skip
from verify_norm.report.compare.coverage import same_cases, unequal


@pytest.mark.slow
def test_without_random_cases_the_seed_does_not_matter(good):
    assert same_cases(good, ran(EARLY, seed=1))
    other = replace(good, settings=replace(good.settings, seed=9))
    assert unequal(good, other) == ""
    assert "--seed 0 → 9" in unequal(Audit(good), Audit(other)), "typical data follow from the seed"


@pytest.mark.slow
def test_random_cases_follow_the_kernel_s_errors():
    old = ran(kernel(), 0, 20)
    assert unequal(old, old) == ""
    other = replace(old, layouts=old.layouts | {"x contiguous": 1})
    assert not same_cases(old, other)
    assert "make both again with --examples 0" in unequal(old, other)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"examples": 50}, "--examples 0 → 50, --seed 0 → 7; make the new run again with --examples 0 --seed 0"),
        (
            {"dtypes": ("float32",)},
            "--dtype float32,float16,bfloat16 → float32; make the new run again with --dtype float32,",
        ),
        ({"shapes": "models"}, "--shapes fuzz → models"),
        ({"device": "cuda"}, "--device cpu → cuda"),
    ],
)
def test_other_settings_are_other_cases(good, settings, words):
    other = replace(good, settings=replace(good.settings, seed=7, **settings))
    assert words in unequal(good, other)
    assert unequal(other, good)
    assert words.partition(",")[0] in unequal(
        Audit(good), Audit(other)
    )  # the data of surveys and ladders follow from them, too
    assert unequal(Audit(other), Audit(good))


def test_a_list_of_all_checks_is_no_list(good):
    """pytest names every check, the command line none; a list may leave out those that do not apply."""

    def asked(*names, ran):
        results = tuple(CheckResult(name, "", 9, 0) for name in ran)
        return replace(good, settings=replace(good.settings, checks=names), checks=results)

    own = [name for name in CHECK_NAMES if name not in ("gradient", "autograd")]
    every = [asked(*names, ran=own) for names in ((), CHECK_NAMES, own, reversed(own))]
    assert [unequal(one, other) for one in every for other in every] == [""] * 16
    older = asked(ran=own[:-1])
    assert unequal(older, every[0]) == unequal(older, every[1]) == "", "a new version has one more check"
    some = asked(*own[1:], ran=own[1:])
    assert f"--checks '' → {','.join(own[1:])}" in unequal(every[0], some)
    assert f"--checks {','.join(own[1:])} → ''; make the new run again with --checks signature" in unequal(
        some, every[1]
    )


def test_a_run_that_did_not_end_is_not_compared(good):
    late = replace(good, cases=3, skipped=(*good.skipped, Skip("cases", "the time limit of 10 s was reached", 66)))
    assert unequal(good, late) == "the new run ran out of time after 3 cases; run it again with more --seconds"
    older = replace(late, skipped=(Skip("cases", "the 10 s were over", 66),))
    assert unequal(good, older) == unequal(good, late), "as 0.9.0 says it"
    audits = Audit(good), Audit(late)
    assert unequal(*audits) == "", "typical data do not depend on the time"
    assert changes(*audits) == {}
    assert unequal(replace(good, interrupted=True), good).startswith("the old run was interrupted after ")


def test_what_is_no_longer_checked_is_worse(good):
    dropped = replace(good, checks=good.checks[:1])
    assert set(changes(good, dropped)) == {f"check {check.name}" for check in good.checks[1:] if check.cases}
    idle = replace(good, checks=tuple(replace(check, cases=0) for check in good.checks))
    assert {change.new for change in changes(good, idle).values()} == {"nothing to check"}
    rare = [replace(good, checks=(*good.checks, CheckResult("nonfinite", "", cases, 0))) for cases in (3, 0)]
    assert set(changes(*rare)) == {"check nonfinite"}
    assert set(changes(*reversed(rare), "better")) == {"check nonfinite"}
    random = [Audit(replace(one, settings=replace(good.settings, examples=9), cases=i)) for i, one in enumerate(rare)]
    assert "check nonfinite" not in changes(*random), "three random cases may as well be none"
    alone = replace(good, tallies=tuple(tally for tally in good.tallies if tally.output == "y"))
    assert set(changes(good, alone)) == {"output mean", "output rstd"}
    refused = replace(good, skipped=(*good.skipped, Skip("dtype float16", "plain offers float32")))
    assert set(changes(good, refused)) == {"dtype float16"}
    assert set(changes(refused, good, "better")) == set()


def test_far_fewer_cases_are_worse(good):
    for share, worse in ((0.8, False), (0.3, True)):
        fewer = replace(good, cases=int(share * good.cases))
        assert ("cases" in changes(good, fewer)) == worse
