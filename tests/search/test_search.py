"""What a run covers, and when it ends."""

import importlib
import signal
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from norms import layernorm, layernorm_bwd, rmsnorm, rmsnorm_bwd
from small_runs import rmsnorm_fwd, run

from verify_norm.cases import corner_rows, models
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import LAYOUTS, CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.core.ways import AUTOCAST
from verify_norm.core.work import Compiled
from verify_norm.loading.registry import load
from verify_norm.running.isolate import InProcess, Isolated
from verify_norm.search import PRELOAD, sweep
from verify_norm.search import search as searching
from verify_norm.search.collector import Collector
from verify_norm.search.crew import Crew
from verify_norm.search.examined import Examined
from verify_norm.search.search import replay, search

DTYPES = ("float32", "float16", "bfloat16")
WITHOUT_FURTHER_RUNS = ("signature", "accuracy", "memory", "nonfinite", "gradient")


@pytest.fixture
def drawn_alone(monkeypatch, few_corners):
    """All cases of a search are drawn: the corner table and the covering array, which takes a second, are empty."""
    few_corners(slice(0))
    monkeypatch.setattr(sweep, "covering_cases", lambda *_: ())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_covers_every_dtype_and_layout():
    backward = Kernel("k", "layernorm_bwd", run=layernorm_bwd(), forward_run=layernorm())
    report = search(backward, Settings(examples=120, seconds=600, checks=WITHOUT_FURTHER_RUNS))
    assert report.ok
    assert report.cases >= 170
    assert {t.dtype for t in report.tallies if t.output == "dx"} == set(DTYPES)
    for layout in LAYOUTS:
        assert report.layouts[f"dy {layout}"]
        assert layout == "scalar" or report.layouts[f"x {layout}"]
    gradient = next(check for check in report.checks if check.name == "gradient")
    assert gradient.cases > 10
    assert {d.output: d.everything < 0.1 for d in report.detectable if d.check == "gradient"}["dx"]


@pytest.mark.slow
def test_what_is_imported_does_not_change_what_is_drawn(tmp_path, monkeypatch, drawn_alone):
    cases = []

    def recorded(x, weight, eps, weight_offset, normalized_shape):
        cases.append((tuple(x.shape), eps, x.dtype, repr(x.double().sum().item())))  # of its seed too
        return rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)

    def drawn():
        cases.clear()
        run(recorded, examples=250, checks=("signature",))
        return tuple(cases)

    before = drawn()
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(1, 601))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(providers, "is_local_module_file", lambda path: "full_of_numbers" in path)
    monkeypatch.setitem(sys.modules, "full_of_numbers", importlib.import_module("full_of_numbers"))
    assert 600 in providers._get_local_constants().set_for_type("integer")
    assert drawn() == before


@pytest.mark.slow
def test_models_at_full_row_length_pass():
    """All in the checks that make no further runs, those of one type in all checks."""
    for dtypes, checks in ((DTYPES, WITHOUT_FURTHER_RUNS), (("float32",), ())):
        settings = Settings(dtypes, checks, examples=0, seconds=600, shapes="models", isolate=False)
        report = search(load("layernorm_bwd"), settings)
        assert report.ok
        assert report.cases == len(models.model_cases(OPS["layernorm_bwd"], full=False, dtypes=dtypes)[0])


@pytest.mark.slow
def test_models_too_large_for_a_cpu_are_said_to_be_left_out():
    def nothing(x):
        raise RuntimeError

    report = search(Kernel("k", "groupnorm_fwd", run=nothing), Settings(examples=0, seconds=9, shapes="models"))
    assert "model X = 2240" in {skip.what for skip in report.skipped}


@pytest.mark.slow
def test_a_kernel_that_supports_nothing_passes_nothing():
    report = run(examples=5, unsupported=lambda spec: "nothing")
    assert not report.ok
    assert report.cases == 0


def test_the_smallest_case_has_a_type_that_was_asked_for(unexplained, few_corners):
    """Of the types float32 is the simplest."""
    few_corners(slice(30))

    def doubled(*given, **options):
        return 2 * rmsnorm_fwd(*given, **options)

    (finding,) = run(doubled, dtypes=("bfloat16",), checks=("accuracy",), examples=0).findings
    assert (finding.spec.dtype, len(finding.spec.shape)) == ("bfloat16", 1)


@pytest.mark.slow
def test_findings_count_and_shrink(unexplained):
    def wrong_in_long_rows(x, weight, eps, weight_offset, normalized_shape):
        y = rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
        return y * 2 if x.shape[-1] > 100 else y

    report = run(wrong_in_long_rows, examples=0, checks=("signature", "accuracy", "distribution", "statistics"))
    (finding,) = [found for found in report.findings if found.check == "accuracy"]
    assert {found.output for found in report.findings} == {"y"}
    assert finding.spec == CaseSpec(shape=(101,))
    failed = next(check.failed for check in report.checks if check.name == "accuracy")
    assert failed == finding.cases > 5


@pytest.mark.slow
def test_examples_are_drawn_from_the_seed(drawn_alone):

    @settings(max_examples=1)
    @given(st.none())
    def unrelated(_):
        pass

    def tallies(seed):
        return run(seed=seed, examples=20, checks=("accuracy",)).tallies

    one = tallies(1)
    unrelated()
    assert one == tallies(1)
    assert one != tallies(2)


def test_the_search_ends_at_the_finding_that_it_is_for():
    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps, weight_offset, normalized_shape: x * 2)
    sought = search(kernel, Settings(examples=50), until=lambda finding: finding.check == "accuracy")
    assert [finding.check for finding in sought.findings] == ["accuracy"]
    assert ("cases", "the search was for this finding") in {(skip.what, skip.reason) for skip in sought.skipped}


def test_the_time_is_kept():
    report = run(examples=10**6, checks=("signature",), seconds=0.2)
    assert ("cases", "the time limit of 0.2 s was reached") in {(skip.what, skip.reason) for skip in report.skipped}


def test_a_case_of_another_operator_is_refused():
    kernel = Kernel("k", "groupnorm_fwd", run=lambda x: x)
    with pytest.raises(UsageError, match=r"the spec does not fit groupnorm_fwd: .*cannot be divided"):
        replay(kernel, CaseSpec((2, 3), num_groups=2), Settings())
    with pytest.raises(UsageError, match="the spec does not fit rmsnorm_fwd, which has no num_groups"):
        replay(Kernel("k", "rmsnorm_fwd", run=lambda x: x), CaseSpec((2, 3), num_groups=3), Settings())


@pytest.mark.nightly
@pytest.mark.slow
def test_many_rows_are_summed_where_that_takes_little_time(pause):
    """A backward that adds the first 1024 rows alone is detected; one that is slow for each row passes without them."""

    def backward(kept, of_a_row):
        def run(dy, x, weight, rstd, eps, weight_offset, normalized_shape):
            pause(of_a_row * len(rstd))
            tensors = [t.reshape(-1, *normalized_shape) for t in (dy, x)]
            dx, _ = rmsnorm_bwd()(dy, x, weight, rstd, eps, normalized_shape, weight_offset)
            first = (t[:kept] for t in tensors)
            return dx, rmsnorm_bwd()(*first, weight, rstd[:kept], eps, normalized_shape, weight_offset)[1]

        return Kernel("k", "rmsnorm_bwd", run=run)

    options = Settings(examples=0, seconds=60.0, isolate=False, checks=("accuracy",))
    assert {f.output for f in search(backward(1024, 0.0), options).findings} == {"dweight"}
    slow = search(backward(None, 0.002), options)
    assert slow.ok
    assert [skip.cases for skip in slow.skipped if "rows are slow" in skip.reason] == [len(corner_rows.MANY_ROWS)]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_batch_is_as_large_as_the_kernels_time_allows(pause):
    """What begins at 4096 rows is detected; a kernel that is slow for each row is not run with so many."""

    def forward(of_a_row):
        def run(x, weight, eps, weight_offset, normalized_shape):
            pause(of_a_row * len(x))
            y, rstd = rmsnorm()(x, weight, eps, normalized_shape, weight_offset)
            return (y, torch.nextafter(rstd, 2 * rstd)) if len(rstd) >= 4096 else (y, rstd)

        return Kernel("k", "rmsnorm_fwd", run=run, contract=Contract(batch_invariant=True))

    options = Settings(dtypes=("float32",), examples=0, seconds=60.0, isolate=False, checks=("batch_invariance",))
    (finding,) = search(forward(0.0), options, until=lambda finding: True).findings
    assert (finding.output, finding.spec.batch) == ("rstd", 4096)
    slow = search(forward(0.001), options)
    assert slow.ok
    assert next(skip.cases for skip in slow.skipped if "rows are slow" in skip.reason) >= 2


# A search with scripted results: `Scripted` says what each case shows.

SPECS = [CaseSpec((2, n)) for n in range(2, 8)]
WRONG = Finding("k", "accuracy", "y", "fail", "y is wrong", SPECS[0])


class Scripted:
    """What cases show, by a function of them; and what was asked of them."""

    def __init__(self, monkeypatch):
        self.asked, self.now, self.table, self.shows = [], 100.0, SPECS, lambda spec, checks: {}
        for module in (sweep, searching):
            monkeypatch.setattr(module, "examine_for", self.examine)
            monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(sweep, "corner_table", lambda *_: (list(self.table), []))
        self.patch = monkeypatch.setattr

    def examine(self, state, runner, spec, checks, **options):
        self.asked.append((spec, checks, options))
        return Examined(spec, **{"compiled": Compiled(1)} | self.shows(spec, checks))

    def fails(self, *specs, **fields):
        """Let the finding show in these cases, by its own check."""
        self.shows = lambda spec, checks: (
            {"findings": (replace(WRONG, spec=spec, **fields),)} if spec in specs and WRONG.check in checks else {}
        )

    def state(self, runner=None, **options):
        """The state of a search after a case with the finding."""
        kernel = Kernel("k", "rmsnorm_fwd", run=print)
        state = Collector(kernel, Settings(isolate=False, **options), runner or InProcess(kernel, "cpu"))
        state.enter(Examined(SPECS[0], findings=(WRONG,)))
        return state


@pytest.fixture
def scripted(monkeypatch):
    return Scripted(monkeypatch)


def sought(state, until=None, deadline=110.0, reduced=()):
    swept = sweep.Sweep(state, Crew(state.runner), lambda *_: None, until, deadline, 0.4)
    return searching._Search(state, swept, list(reduced))


def test_failures_are_made_small_before_the_time_to_explain_them(scripted):
    """Those that are wanted, where there are such; the small cases of others are tried first."""
    asked = []
    scripted.patch(searching, "_reduced", lambda *given: asked.append(given) or replace(given[1], spec=SPECS[-1]))
    state = scripted.state(seconds=10.0)
    other = replace(WRONG, check="sums", spec=SPECS[1])
    state.enter(Examined(SPECS[1], findings=(other,)))
    first, second = state.findings.values()
    search = sought(state)
    search.reduce_all()
    assert asked == [(state, first, 108.0, []), (state, second, 108.0, [SPECS[-1]])]
    assert [finding.spec for finding in search.reduced] == [SPECS[-1]] * 2
    for name, wanted in (("sums", [second]), ("memory", [first, second])):
        asked.clear()
        sought(state, lambda finding, name=name: finding.check == name).reduce_all()
        assert [given[1] for given in asked] == wanted


def test_what_explains_failures_is_tried_on_the_worst_cases_until_the_time_is_over(scripted):
    trials = []

    class Tried:
        def __init__(self, *given):
            trials.append(given)

        def diagnoses(self, findings):
            return ("diagnoses", *findings)

    scripted.patch(searching, "Trial", Tried)
    state = scripted.state(checks=("accuracy", "memory"), seed=7)
    ratios = {("y", "float32"): (1.5, SPECS[1]), ("y", "float16"): (2.5, SPECS[2]), ("y", "bfloat16"): (1.0, SPECS[3])}
    ratios |= {("rstd", "float32"): (3.0, None)}
    state.tallies = {key: Tally(*key, cases=1, ratio=ratio, worst=worst) for key, (ratio, worst) in ratios.items()}
    search = sought(state, reduced=[WRONG])
    assert search.explain() == ("diagnoses", WRONG)
    ((kernel, checks, failing, worst, judge, seed, deadline),) = trials
    assert (kernel, checks, failing) == (state.kernel, ("accuracy", "memory"), state.failing)
    assert (seed, deadline) == (7, 110.0)
    assert (worst["y"], worst["rstd"], worst["else"]) == ([SPECS[1], SPECS[2]], [], [])
    contract = Contract(lanes=4)
    for scripted.now, left in ((104.0, 6.0), (109.5, 1.0), (200.0, 1.0)):
        assert judge(SPECS[4], ("memory",), contract) == Examined(SPECS[4], compiled=Compiled(1))
        assert scripted.asked[-1] == (SPECS[4], ("memory",), {"left": left, "contract": contract})
    assert state.compiled == Compiled(3)


def test_nothing_is_explained_to_a_search_for_certain_findings_or_of_a_kernel_that_hangs(scripted):
    scripted.patch(searching, "Trial", lambda *_: pytest.fail("it is tried"))
    hanging = scripted.state()
    hanging.hangs = 1
    assert sought(hanging).explain() == ()
    assert sought(scripted.state(), until=lambda finding: False).explain() == ()


def test_after_ctrl_c_what_was_found_is_kept(scripted):
    state = scripted.state()
    state.enter(Examined(SPECS[1], findings=(replace(WRONG, output="rstd", spec=SPECS[1]),)))
    state.planned = 5
    small = replace(WRONG, spec=SPECS[3])
    search = sought(state, reduced=[small])
    search.interrupt()
    assert state.interrupted is True
    assert "interrupted" in state.ended
    assert [(finding.output, finding.spec) for finding in search.reduced] == [("y", SPECS[3]), ("rstd", SPECS[1])]
    assert search.reduced[1].after == 2


def test_after_ctrl_c_a_search_for_certain_findings_keeps_these_alone(scripted):
    state = scripted.state()
    for output in ("dx", "rstd", "dweight"):
        state.enter(Examined(SPECS[1], findings=(replace(WRONG, output=output, spec=SPECS[1]),)))
    small = replace(WRONG, output="rstd", spec=SPECS[3])
    search = sought(state, reduced=[small], until=lambda finding: finding.output in ("rstd", "dweight"))
    search.interrupt()
    assert [(finding.output, finding.spec) for finding in search.reduced] == [("rstd", SPECS[3]), ("dweight", SPECS[1])]


class Kept:
    """A journal that remembers."""

    def __init__(self):
        self.done, self.entered, self.complete = {}, [], None

    def enter(self, examined):
        self.entered.append(examined)

    def close(self, *, complete):
        self.complete = complete


KERNEL = Kernel("k", "rmsnorm_fwd", run=print)
ALONE = {"isolate": False, "examples": 0}


def test_a_search_without_findings_keeps_no_journal_and_says_what_it_spent(scripted):
    def shows(spec, checks):
        scripted.now += 0.5
        return {"seconds": 0.25}

    scripted.shows, journal = shows, Kept()
    report = search(KERNEL, Settings(**ALONE), journal=journal)
    assert (report.cases, report.seconds, report.seconds_in_kernel) == (6, 3.0, 1.5)
    assert (report.work.workers, report.work.compiled) == (1, Compiled(6))
    assert [examined.spec for examined in journal.entered] == SPECS
    assert journal.complete is True
    assert (report.interrupted, report.diagnoses, report.outside) == (False, (), "")


def test_a_search_that_does_not_reach_the_end_of_the_table_keeps_its_journal(scripted):
    scripted.shows, journal = lambda spec, checks: {"hung": True}, Kept()
    search(KERNEL, Settings(**ALONE), journal=journal)
    assert journal.complete is False


@pytest.mark.parametrize("last", [2, 5])
def test_a_search_that_is_interrupted_keeps_its_journal_and_reports(last, scripted):
    """Even while code runs that swallows every exception; in the last case, it makes nothing small any more."""

    def shows(spec, checks):
        if spec == SPECS[last]:
            with suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
        return {"findings": (WRONG,)} if spec == SPECS[0] else {}

    scripted.shows, journal = shows, Kept()
    before = signal.getsignal(signal.SIGINT)
    report = search(KERNEL, Settings(**ALONE), journal=journal)
    assert signal.getsignal(signal.SIGINT) is before
    assert (report.interrupted, journal.complete) == (True, False)
    assert [spec for spec, *_ in scripted.asked] == SPECS[: last + 1]
    assert [finding.cases for finding in report.findings] == [1]
    assert report.diagnoses == ()


def test_ctrl_c_ends_a_search_whose_table_is_done(scripted):
    """In the reduction of a finding."""
    scripted.fails(*SPECS)
    scripted.patch(searching, "reduce", lambda *_: signal.raise_signal(signal.SIGINT))
    journal = Kept()
    report = search(KERNEL, Settings(**ALONE), journal=journal)
    assert (report.interrupted, journal.complete) == (True, False)
    assert report.coverage.corners_done == report.coverage.corners
    assert [finding.cases for finding in report.findings] == [6]
    assert report.diagnoses == ()


@pytest.mark.parametrize(("contract", "outside"), [("xhat=x", ""), ("", "N<9")])
def test_a_class_of_failing_cases_is_told_where_no_contract_explains_them(scripted, contract, outside):
    told = (Diagnosis("y"), Diagnosis("y", contract))
    scripted.patch(searching.Trial, "diagnoses", lambda *_: told)
    scripted.patch(Collector, "outside", lambda self: "N<9")
    report = search(KERNEL, Settings(**ALONE))
    assert (report.diagnoses, report.outside) == (told, outside)


@pytest.mark.parametrize(("workers", "number"), [(3, 3), (None, 8)])
def test_a_search_has_the_workers_and_the_time_that_its_settings_say(scripted, workers, number):
    made, swept = [], []

    def sweeping(*given):
        swept.append(given)
        return sweep.Sweep(*given)

    scripted.patch(searching, "Crew", lambda *given: made.append(given) or Crew(*given))
    scripted.patch(searching, "Sweep", sweeping)
    scripted.patch(searching, "usual", {"cpu": 8}.__getitem__)
    until = lambda finding: False  # noqa: E731
    search(KERNEL, Settings(**ALONE, workers=workers, seconds=50.0), print, until=until)
    ((runner, count),) = made
    ((state, crew, progress, sought_for, deadline, kept),) = swept
    assert (runner, count) == (state.runner, number)
    assert isinstance(crew, Crew)
    assert (progress, sought_for, deadline, kept) == (print, until, 150.0, 0.4)


def test_the_kernel_runs_where_the_settings_say(scripted):
    asked = []
    scripted.patch(searching, "runner", lambda *given, **named: asked.append((given, named)) or InProcess(*given))
    for chosen in (Settings(untrusted=True), Settings(isolate=False, device="cuda:1")):
        searching._collector(KERNEL, chosen)
        options = {"isolate": chosen.isolate, "untrusted": chosen.untrusted, "preload": PRELOAD}
        assert asked.pop() == ((KERNEL, chosen.device), options)


def test_a_case_that_is_replayed_is_judged_as_it_is(scripted):
    """All checks on one case of its own type, which is the whole run; what is refused in words is no limit."""
    spec = CaseSpec((2, 3), dtype="bfloat16")

    def shows(spec, checks):
        scripted.now += 2.0
        refusal = replace(WRONG, check="signature", status="error", message="ValueError: only fp8")
        return {"problem": "ValueError: only fp8", "limits": ("dtype",), "findings": (refusal,)}

    place = started(2)
    scripted.shows = shows
    scripted.patch(searching, "runner", lambda *_, **named: place)
    report = replay(KERNEL, spec, Settings(dtypes=("float32",), checks=("accuracy", "signature")))
    assert scripted.asked == [(spec, ("signature", "accuracy"), {})]
    assert report.settings.dtypes == ("bfloat16",)
    coverage = report.coverage
    assert (coverage.planned, coverage.corners, coverage.corners_done, coverage.refused) == (1, 1, 1, 0)
    assert [(finding.check, finding.message) for finding in report.findings] == [("signature", "ValueError: only fp8")]
    assert report.seconds == 2.0
    assert (report.work.started, report.work.starting, report.work.compiled) == (2, 1.5, Compiled(1))
    assert report.verdict is Exit.FINDINGS


def started(count):
    """A process of its own that was started so many times."""

    class Place(Isolated):
        def __init__(self):
            self.device, self.started, self.starting = "cpu", count, 1.5

        def close(self):
            pass

    return Place()


def test_a_case_that_is_too_large_for_the_machine_is_refused(scripted):
    def shows(spec, checks):
        raise MemoryError("Unable to allocate 9 TiB")

    scripted.shows = shows
    with pytest.raises(UsageError, match="Unable to allocate 9 TiB"):
        replay(KERNEL, SPECS[0], Settings(isolate=False))


class Process:
    """The process of a kernel, which may be replaced."""

    device, note, isolated = "cpu", "", True

    def __init__(self, *, fresh):
        self.renewed, self.can = 0, fresh

    def fresh(self):
        self.renewed += 1
        return self.can


LARGE = CaseSpec((4, 6))


def smallest(scripted, fresh=False, finding=WRONG, deadline=110.0, small=(), **options):
    """The finding on its smallest case, and how often a new process was asked for."""
    process = Process(fresh=fresh)
    state = scripted.state(process, **options)
    state.enter(Examined(LARGE, findings=(replace(finding, spec=LARGE),)))
    return searching._reduced(state, replace(finding, spec=LARGE), deadline, list(small)), process.renewed


def columns(scripted, least, **fields):
    """Let the finding show in cases of so many columns."""
    scripted.shows = lambda spec, checks: (
        {"findings": (replace(WRONG, spec=spec, message=f"of {spec.shape}", **fields),)}
        if spec.shape[-1] >= least
        else {}
    )


def test_a_failure_is_reported_as_its_smallest_case_shows_it(scripted):
    columns(scripted, 3)
    found, renewed = smallest(scripted)
    assert (found.spec, found.message, found.cases, found.after) == (CaseSpec((3,)), "of (3,)", 2, 1)
    assert renewed == 1
    assert {checks for _, checks, _ in scripted.asked} == {("accuracy",)}
    assert {options["left"] for _, _, options in scripted.asked} == {10.0}


@pytest.mark.parametrize(("now", "left", "shape"), [(104.0, 6.0, (3,)), (109.5, 1.0, (3,)), (110.0, 1.0, (3,))])
def test_it_is_made_small_as_long_as_there_is_time(scripted, now, left, shape):
    columns(scripted, 3)
    scripted.now = now
    assert smallest(scripted)[0].spec.shape == shape
    assert {options["left"] for _, _, options in scripted.asked} == {left}
    scripted.now, scripted.asked = 110.001, []
    assert smallest(scripted)[0].spec == LARGE
    assert scripted.asked == []


def test_it_is_made_small_in_a_type_of_the_run(scripted):
    columns(scripted, 3)
    assert smallest(scripted, dtypes=("float16",))[0].spec == LARGE
    assert scripted.asked == []


def test_only_the_same_finding_counts_and_none_that_a_limit_excuses(scripted):
    for other in ({"output": "rstd"}, {"check": "sums"}):
        columns(scripted, 1, **other)
        assert smallest(scripted)[0].spec == LARGE
    columns(scripted, 1)
    scripted.patch(Collector, "excuse", lambda self, examined: examined.spec.shape[-1] < 4 or None)
    assert smallest(scripted)[0].spec == CaseSpec((4,))


def test_small_cases_of_other_findings_are_tried_first(scripted):
    columns(scripted, 3)
    others = [CaseSpec((2,)), CaseSpec((3, 3)), CaseSpec((5, 5))]
    assert smallest(scripted, small=others)[0].spec == CaseSpec((3,))
    assert [spec for spec, *_ in scripted.asked[:2]] == others[:2]
    assert others[2] not in {spec for spec, *_ in scripted.asked}


@pytest.mark.parametrize(("fields", "check"), [({"check": "modes"}, "modes"), ({"during": "modes"}, "modes")])
def test_the_way_of_a_check_is_named_in_the_smallest_case(scripted, fields, check):
    finding = replace(WRONG, **fields)
    scripted.shows = lambda spec, checks: (
        {"findings": (replace(finding, spec=spec),)}
        if "modes" in spec.further and spec.mode in ("", AUTOCAST) and checks == (check,)
        else {}
    )
    assert smallest(scripted, finding=finding)[0].spec.mode == AUTOCAST


def test_what_a_new_process_does_not_show_is_told_on_the_case_that_showed_it(scripted):
    """In its first case, if that shows it alone; otherwise with words that say so."""
    columns(scripted, 3)
    found, renewed = smallest(scripted, fresh=True)
    assert (found.spec, renewed) == (CaseSpec((3,)), 1)
    shows, seen = scripted.shows, []

    def once(*never):
        """A case shows it once alone, and those that are named never again."""
        seen.clear()

        def shown(spec, checks):
            seen.append(spec)
            return shows(spec, checks) if spec not in never or seen.count(spec) == 1 else {}

        scripted.shows = shown

    once(CaseSpec((3,)))
    found, renewed = smallest(scripted, fresh=True)
    assert (found.spec, found.message, renewed) == (LARGE, "of (4, 6)", 2)
    scripted.shows = lambda spec, checks: shows(spec, checks) if spec not in (LARGE, *seen_twice(seen, spec)) else {}
    seen.clear()
    found, renewed = smallest(scripted, fresh=True)
    assert (found.spec, renewed) == (LARGE, 2)
    assert found.message.startswith(WRONG.message)
    assert searching.ALONE in found.message
    assert (found.cases, found.after) == (2, 1)


def seen_twice(seen, spec):
    """The case, if it was seen before."""
    seen.append(spec)
    return [spec] if seen.count(spec) > 1 else []


def test_no_time_is_left_to_run_the_smallest_case_alone(scripted):
    columns(scripted, 3)
    shows = scripted.shows

    def late(spec, checks):
        if scripted.asked.count((spec, checks, {"left": 10.0})) > 1:
            pytest.fail("it is run again")
        return shows(spec, checks)

    scripted.shows = late
    scripted.patch(Process, "fresh", lambda self: setattr(scripted, "now", 111.0) or True)
    assert smallest(scripted)[0].spec == CaseSpec((3,))
