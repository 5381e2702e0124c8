"""What one case shows is in the report: every field of it, added up over two cases."""

from collections import Counter
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from verify_norm.checks import CHECKS
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip, Tally
from verify_norm.core.work import Compiled, Work
from verify_norm.running.isolate import InProcess
from verify_norm.running.untrusted.runner import UNSEEN
from verify_norm.search import collector, reporting
from verify_norm.search.collector import Collector
from verify_norm.search.examined import NO_ROOM, Examined
from verify_norm.search.limits import Raised, wording

SPECS = CaseSpec((3, 5), x_layout="far"), CaseSpec((2, 7), x_layout="far", seed=1)
WRONG = Finding("k", "accuracy", "y", "fail", "y is wrong", SPECS[0])
REASON = "ValueError: k takes rows of 8 only"
IN_PLACE = "new values in place"


def tally(**values):
    return Tally("y", "float32", **{"cases": 1, "elements": 15, "unjudged": 2, "ratio": 0.5} | values)


def reported(cases, **settings):
    """The state of a run with these cases, and its report."""
    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x: x)
    state = Collector(kernel, Settings(isolate=False, **settings), InProcess(kernel, "cpu"))
    for case in cases:
        state.enter(case)
    state.settle()
    return state, reporting.report(state, state.findings.values(), 1.0, Work())


def skips(report):
    return {(skip.what, skip.reason): skip.cases for skip in report.skipped}


def checks(report, field, name="accuracy"):
    return next(getattr(check, field) for check in report.checks if check.name == name)


FIELDS = {  # of a case: its value, how to read it in the report, what is there for one case and for two
    "spec": (None, lambda state, r: (r.cases, r.seen.length), (1, 5), (2, 7)),
    "unsupported": (
        "16 bits only",
        lambda state, r: (skips(r).get(("cases", "16 bits only")), r.coverage.refused),
        (1, 1),
        (2, 2),
    ),
    "problem": (REASON, lambda state, r: [one.problem for one in state.raised], [REASON], [REASON] * 2),
    "limits": (
        ("size",),
        lambda state, r: ([one.kinds for one in state.raised], r.coverage.refused),
        ([("size",)], 1),
        ([("size",)] * 2, 2),
    ),
    "left_out": (("sums",), lambda state, r: skips(r).get(("check sums", NO_ROOM)), 1, 2),
    "slow": (("memory",), lambda state, r: [n for (what, _), n in skips(r).items() if "large case" in what], [1], [2]),
    "tallies": (
        (tally(),),
        lambda state, r: [(t.cases, t.elements, t.unjudged, t.ratio) for t in r.tallies],
        [(1, 15, 2, 0.5)],
        [(2, 30, 4, 0.5)],
    ),
    "findings": (
        (WRONG,),
        lambda state, r: (checks(r, "failed"), [state.counted(f).cases for f in r.findings]),
        (1, [1]),
        (2, [2]),
    ),
    "looked": (("accuracy",), lambda state, r: checks(r, "cases"), 1, 2),
    "detectable": (
        (("accuracy", SmallestError("y", 1, 0.1)), ("accuracy", SmallestError("y", -1, 0.2))),
        lambda state, r: [(d.cases, d.everything) for d in r.detectable],
        [(1, 0.2)],
        [(2, 0.2)],
    ),
    "observed": (
        (("batch_invariance", True),),
        lambda state, r: [checks(r, f, "batch_invariance") for f in ("held", "observed")],
        [1, 1],
        [2, 2],
    ),
    "ways": ((("calls", IN_PLACE),), lambda state, r: r.seen.ways, {"calls": {IN_PLACE: 1}}, {"calls": {IN_PLACE: 2}}),
    "operators": (
        ("aten::rms_norm",),
        lambda state, r: (r.seen.operators, [f.cases for f in r.findings]),
        ({"aten::rms_norm": 1}, [1]),
        ({"aten::rms_norm": 2}, [2]),
    ),
    "notes": (("faster",), lambda state, r: r.seen.notes, {"faster": 1}, {"faster": 2}),
    "layouts": (
        ("x offset",),
        lambda state, r: (r.layouts, r.seen.layouts),
        ({"x offset": 1}, {"offset": 1}),
        ({"x offset": 2}, {"offset": 2}),
    ),
    "missing": (("rstd",), lambda state, r: skips(r).get(("output rstd", "k does not return it")), 1, 2),
    "near": (("x",), lambda state, r: skips(r).get(("x beyond 2³¹ elements", "there is not enough memory")), 1, 2),
    "seconds": (0.5, lambda state, r: r.seconds_in_kernel, 0.5, 1.0),
    "compiled": (
        Compiled(1, 2, 3, 4.0),
        lambda state, r: state.compiled,
        Compiled(1, 2, 3, 4.0),
        Compiled(2, 4, 6, 8.0),
    ),
    "hung": (True, lambda state, r: state.hangs, 1, 2),
}
OF_THE_PROCESS = {"dead"}  # `examine_in` replaces the process: test_examine


def test_no_field_is_left_out():
    assert {field.name for field in fields(Examined)} == FIELDS.keys() | OF_THE_PROCESS


@pytest.mark.parametrize("field", FIELDS)
def test_what_a_case_shows_is_counted(field):
    value, read, one, two = FIELDS[field]
    base = [Examined(spec, tallies=(tally(),)) for spec in SPECS]
    if field == "limits":
        base = [replace(case, problem=REASON) for case in base]
    cases = base if field == "spec" else [replace(case, **{field: value}) for case in base]
    assert read(*reported(cases[:1], require_own=True)) == one
    assert read(*reported(cases, require_own=True)) == two
    if field not in ("spec", "tallies"):
        assert read(*reported(base, require_own=True)) not in (one, two)


def test_what_raises_in_words_is_a_case_where_they_state_no_limit():
    """One of the same size ran."""
    refused = Examined(SPECS[0], problem=REASON, limits=("size",), findings=(WRONG,))
    state, report = reported([refused, Examined(replace(SPECS[0], seed=9), tallies=(tally(),))])
    assert (report.cases, report.coverage.refused, [f.output for f in report.findings]) == (2, 0, ["y"])
    assert state.counted(WRONG).after == 1
    assert state.waiting == []


def test_outputs_that_are_compared_count():
    _, report = reported([Examined(SPECS[0]), Examined(SPECS[1], tallies=(tally(), tally(ratio=0.9)))])
    assert (report.cases, report.coverage.compared, report.coverage.outputs) == (2, 1, {"y": 2})
    assert report.seen.types == Counter(float32=1)
    assert reported([Examined(spec, tallies=(tally(),)) for spec in SPECS])[1].coverage.compared == 2


def test_the_finding_of_the_case_itself_is_kept():
    """In place of one of a further run, whichever comes first; and among equals the first one."""
    far, near = replace(WRONG, during="memory", message="far"), replace(WRONG, message="near", spec=SPECS[1])
    for found, after in (((far, near), 2), ((near, far), 1), ((near, replace(near, message="later")), 1)):
        state, _ = reported([Examined(spec, findings=(one,)) for spec, one in zip(SPECS, found, strict=True)])
        (kept,) = map(state.counted, state.findings.values())
        assert (kept.message, kept.during, kept.after, kept.cases) == ("near", None, after, 2)


def test_what_is_left_out_is_not_planned():
    state, _ = reported([])
    state.planned, state.corners = 9, 5
    state.leave_out("slow", SPECS[0])
    state.leave_out("slow", SPECS[1], corners=1)
    assert state.too_slow == {"slow": [*SPECS]}
    assert (state.planned, state.corners, state.skipped["cases", "slow"]) == (7, 4, 2)


def test_a_limit_that_no_words_state_is_proposed_beside_the_failure():
    error = replace(WRONG, check="signature", status="error", message=REASON, output=None)
    found = error, replace(error, status="fail", output="y"), replace(error, check="memory")
    state, _ = reported([Examined(SPECS[0], findings=found)])
    state.suggested = {wording(REASON): "--only N%8=0"}
    hinted = [state.counted(one).message == f"{REASON}; --only N%8=0" for one in found]
    assert hinted == [True, False, False]
    assert [state.counted(one).message for one in found[1:]] == [REASON] * 2


def test_only_what_raises_in_words_of_a_limit_is_excused():
    state, _ = reported([])
    state.limits = {wording(REASON): "rows of 8"}
    case = Examined(SPECS[0], problem=REASON, limits=("size",))
    assert state.excuse(case) == "rows of 8"
    for other in ({"limits": ()}, {"problem": None}, {"problem": "ValueError: no"}):
        assert state.excuse(replace(case, **other)) is None


def test_what_a_run_is_has_its_place():
    state, _ = reported([])
    state.interrupted, state.ended, state.planned, state.corners, state.corners_done = True, "over", 7, 5, 3
    report = reporting.report(state, (), 2.0, Work(3), outside="N <= 8")
    assert (report.interrupted, report.seconds, report.work, report.outside) == (True, 2.0, Work(3), "N <= 8")
    coverage = report.coverage
    assert (coverage.ended, coverage.planned, coverage.corners, coverage.corners_done) == ("over", 7, 5, 3)
    assert (coverage.pairs, coverage.possible) == (0, 0)
    entered = []
    state.pairs, state.possible = SimpleNamespace(met=6, enter=entered.append), 11
    state.enter(SEEN)
    report = reporting.report(state, (), 2.0, Work(), ("a diagnosis",))
    assert entered == [SEEN.spec]
    assert (report.coverage.pairs, report.coverage.possible) == (6, 11)
    assert (report.diagnoses, report.outside) == (("a diagnosis",), "")
    assert reporting.report(state, (), 2.0, Work()).diagnoses == ()


def test_an_untrusted_run_names_its_seed_and_what_its_checks_do_not_see():
    (trusted, plain), (_, secret) = reported([]), reported([], untrusted=True, seed=41)
    assert trusted.skipped == {}
    assert "seed" not in plain.environment
    assert secret.environment["seed"] == "41"
    assert "isolation" in plain.environment.keys() & secret.environment.keys()
    unseen = {f"check {check.name}": reason for check in trusted.checks if (reason := UNSEEN.get(check.name))}
    assert {what: reason for what, reason in skips(secret) if what.startswith("check ")} == unseen
    assert {*skips(secret).values()} == {1}
    assert len(unseen) > 1


@pytest.mark.parametrize(
    ("fields", "raised", "ran"),
    [
        ({"problem": REASON}, 1, 0),
        ({"findings": (replace(WRONG, check="crash"),)}, 0, 0),
        ({"findings": (WRONG,)}, 0, 1),
        ({}, 0, 1),
    ],
)
def test_a_case_raises_or_runs_or_ends_the_process(fields, raised, ran):
    """It is the one that ran, with less than 2³¹ elements between its rows."""
    state, _ = reported([Examined(SPECS[0], near=("x",), **fields)])
    near = replace(SPECS[0], x_layout="contiguous")
    assert [one.spec for one in state.raised] == [near] * raised
    assert state.ran == [near] * ran


@pytest.mark.parametrize("alone", [True, False])
def test_limits_and_hints_are_those_of_the_kernel_and_all_its_cases(alone, monkeypatch):
    asked = []
    state, _ = reported([Examined(SPECS[0], problem=REASON), SEEN, Examined(SPECS[1], findings=(WRONG,))])
    for name in ("stated", "hints", "separating"):
        monkeypatch.setattr(collector, name, lambda *args, **more: asked.append((args, more)) or {"of": len(asked)})
    state.settle(alone=alone)
    assert (state.limits, state.suggested, state.outside()) == ({"of": 1}, {"of": 2}, {"of": 3})
    own = state.kernel, state.raised, state.ran
    assert asked == [(own, {"alone": alone}), (own, {}), ((state.kernel, [WRONG.spec], state.ran, [REASON]), {})]


@pytest.mark.parametrize(
    ("checks", "cases", "said"),
    [
        (("accuracy",), [Examined(SPECS[0]), Examined(SPECS[1], tallies=(tally(),))], 1),
        (("accuracy",), [Examined(SPECS[0])] * 3, 3),
        (("accuracy", "signature"), [Examined(SPECS[0])], None),  # it says so itself
        (("accuracy",), [Examined(SPECS[1], tallies=(tally(),))], None),
        (("accuracy",), [], None),
    ],
)
def test_cases_without_outputs_are_counted_where_no_check_says_so(checks, cases, said):
    _, report = reported(cases, checks=checks)
    reason = "none was returned that can be compared; the check signature says why"
    assert skips(report).get(("outputs", reason)) == said


def test_what_is_found_of_several_outputs_types_and_checks_is_in_their_order():
    rstd = replace(tally(), output="rstd")
    cases = [
        Examined(SPECS[0], tallies=(rstd, tally()), detectable=detected("statistics", "y")),
        Examined(SPECS[0], tallies=(rstd, replace(tally(), dtype="bfloat16")), detectable=detected("accuracy", "rstd")),
    ]
    state, report = reported(cases)
    assert [(t.output, t.dtype) for t in report.tallies] == [("y", "float32"), ("y", "bfloat16"), ("rstd", "float32")]
    assert [(d.check, d.output) for d in report.detectable] == [("accuracy", "rstd"), ("statistics", "y")]
    assert [corner for one in state.detected.values() for *_, corner in one.errors] == [True] * 4
    assert report.kernel == "k"
    state.drawn = True
    state.enter(Examined(SPECS[1], tallies=(tally(),), detectable=detected("accuracy", "y")))
    assert [corner for *_, corner in state.detected["accuracy", "y", "float32"].errors] == [False] * 2


def detected(check, output):
    return tuple((check, SmallestError(output, sign, 0.1)) for sign in (1, -1))


def test_the_limits_that_a_kernel_states_are_skips_with_their_cases():
    state, _ = reported([Examined(SPECS[0], problem=REASON), Examined(SPECS[1], problem=REASON)])
    state.raised.append(Raised(SPECS[0], "ValueError: no", ()))
    state.limits = {wording(REASON): "rows of 8 only"}
    limits = [skip for skip in reporting.report(state, (), 1.0, Work()).skipped if skip.limit]
    assert limits == [Skip("cases", "rows of 8 only", 2, limit=True)]


def test_a_check_that_looked_says_how_often_a_property_held():
    seen = replace(SEEN, looked=("batch_invariance",))
    _, report = reported([replace(seen, observed=(("batch_invariance", held),)) for held in (True, False, False)])
    result = next(check for check in report.checks if check.name == "batch_invariance")
    assert (result.cases, result.held, result.observed) == (3, 1, 3)
    assert (result.no_data, result.offered) == ("", True)
    assert result.summary == CHECKS["batch_invariance"].summary


def test_a_report_says_of_which_kernel_it_is():
    kernel = Kernel("k", "rmsnorm_fwd", "a.py:k", "triton", contract=Contract(stats="bfloat16"), bind="x=a", only="N>8")
    settings = Settings(seed=3)
    state = Collector(kernel, settings, SimpleNamespace(isolated=False, note="none"))
    report = reporting.report(state, (), 1.0, Work())
    for name in ("op", "target", "backend", "contract", "bind", "only"):
        assert getattr(report, name) == getattr(kernel, name)
    assert (report.settings, report.environment["isolation"]) == (settings, "none")


def test_a_finding_about_values_has_its_condition(monkeypatch):
    found = []
    monkeypatch.setattr(reporting.condition, "condition", lambda kernel, *args: found.append((kernel.name, *args)))
    reported([Examined(SPECS[0], findings=(replace(WRONG, index=(0, 1)),))])
    assert found == [("k", SPECS[0], "y", (0, 1))]
    reported([Examined(SPECS[1], tallies=(tally(worst=SPECS[1], index=(1, 2)),))])
    assert found[1:] == [("k", SPECS[1], "y", (1, 2))]


@pytest.mark.parametrize(
    ("fields", "found"), [({}, 1), ({"shape": (0, 8)}, 0), ({"training": False}, 0)], ids=["", "empty", "evaluation"]
)
def test_a_statistic_that_is_missing_once_is_a_finding_where_there_is_one(fields, found):
    """Nothing is saved of an empty x, nor by BatchNorm in evaluation."""
    rstd = Tally("rstd", "float32", cases=1, elements=3)
    cases = [Examined(SPECS[0], tallies=(rstd,)), Examined(replace(SPECS[1], **fields), missing=("rstd",))]
    state, report = reported(cases)
    said = "rstd: expected in all cases or in none, but the kernel returns it in 1 and not in 1, as this one"
    expected = Finding("k", "signature", "rstd", "fail", f"{said}, which alone shows nothing", cases[1].spec, cases=1)
    assert report.findings == (expected,) * found
    assert state.failed["signature"] == found
    twice = reported([*cases, cases[1]])[1].findings
    assert [finding.cases for finding in twice] == [2] * found
    assert ("output rstd" in {skip.what for skip in report.skipped}) == (not found)
    more = Examined(SPECS[0], findings=(replace(WRONG, check="signature"),))
    assert checks(reported([*cases, more])[1], "failed", "signature") == found + 1
    assert reported(cases, checks=("accuracy",))[1].findings == ()


def test_only_operators_that_must_be_the_kernels_own_are_findings():
    case = Examined(SPECS[0], tallies=(tally(),), operators=("aten::rms_norm",))
    own, free = (reported([case], require_own=required)[1] for required in (True, False))
    message = "it falls back to aten::rms_norm in 1 of 1 case; --require-own forbids it"
    assert own.findings == (Finding("k", "honesty", None, "fail", message, SPECS[0], cases=1),)
    assert checks(own, "failed", "honesty") == 1
    dishonest = replace(case, operators=(), findings=(replace(WRONG, check="honesty"),))
    assert checks(reported([case, dishonest], require_own=True)[1], "failed", "honesty") == 2
    assert free.findings == ()


def test_each_check_that_applies_is_reported():
    _, report = reported([])
    assert {check.name for check in report.checks} >= {"accuracy", "statistics", "honesty"}
    assert "gradient" not in {check.name for check in report.checks}  # of a forward
    _, chosen = reported([], checks=("accuracy",))
    assert [check.name for check in chosen.checks] == ["accuracy"]


def test_a_failure_without_a_hint_keeps_its_message_and_where_it_came_first():
    found = replace(WRONG, check="signature", status="error", message=REASON)
    state, _ = reported([Examined(SPECS[1]), Examined(SPECS[0], findings=(found,))])
    counted = state.counted(replace(found, after=None))
    assert (counted.message, counted.after, counted.cases) == (REASON, 2, 1)


SEEN = Examined(SPECS[0], tallies=(tally(),))
RETURNED = Examined(SPECS[0], tallies=(tally(), replace(tally(), output="rstd")))


@pytest.mark.parametrize(
    ("check", "cases", "only", "isolated", "said", "offered"),
    [
        ("accuracy", [], "", True, "no case ran", True),
        ("crash", [], "", False, "no case ran", True),
        ("crash", [SEEN], "", False, "isolation here", False),
        ("crash", [SEEN], "", True, "nothing to look at in 1 case", True),
        ("accuracy", [Examined(SPECS[0])] * 2, "", False, "no output that can be compared in 2 cases", True),
        ("statistics", [SEEN], "", False, "rstd", False),
        ("statistics", [RETURNED], "", False, "nothing to look at in 1 case", True),
        ("statistics", [RETURNED], "N%8=0", False, "nothing to look at in 1 case", False),  # what it takes has none
        ("statistics", [SEEN], "N%8=0", False, "rstd", False),
    ],
)
def test_why_a_check_had_nothing_to_look_at(check, cases, only, isolated, said, offered):
    kernel = Kernel("k", "rmsnorm_fwd", run=print, only=only)
    state = Collector(kernel, Settings(isolate=False), SimpleNamespace(isolated=isolated, note="here"))
    for case in cases:
        state.enter(case)
    result = next(one for one in reporting.report(state, (), 1.0, Work()).checks if one.name == check)
    assert said in result.no_data
    assert result.offered is offered
