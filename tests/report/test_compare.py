"""Comparing runs: what is worse is said to be, what another seed or another order of a sum does is not."""

import json
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from verify_norm.auditing.model import Audit, Ladder, Rung
from verify_norm.auditing.ulps import summary, survey, typical
from verify_norm.cli import app
from verify_norm.dtypes import FORMATS
from verify_norm.fingerprint.statement import Fingerprint, Statement, undecided
from verify_norm.ops import OPS
from verify_norm.report import json as json_form
from verify_norm.report.compare import compare, same_cases, shared
from verify_norm.report.comparison import Limits
from verify_norm.report.model import CheckResult, Settings, Skip, Tally
from verify_norm.report.noise import of_survey, of_tally
from verify_norm.search import search
from verify_norm.spec import CaseSpec, Contract, Finding, Kernel
from verify_norm.ulp import UlpStats

STORED = sorted((Path(__file__).parents[2] / "benchmarks" / "results" / "h200").glob("*.json"))


def norm(x, weight, bias, eps, normalized_shape, *, early=False, one_pass=False, reverse=False, ddof=0):
    n = int(np.prod(normalized_shape))
    r = x.float().reshape(-1, n) if x.numel() else x.float().reshape(0, n)
    r = r.flip(-1) if reverse else r
    mean = r.mean(-1, keepdim=True)
    var = (
        r.square().mean(-1, keepdim=True) - mean.square()
        if one_pass
        else (r - mean).square().sum(-1, True) / (n - ddof)
    )
    rstd = torch.rsqrt(var + eps)
    xhat = ((r - mean) * rstd).flip(-1) if reverse else (r - mean) * rstd
    y = xhat.to(x.dtype).float() if early else xhat
    y = y if weight is None else y * weight.float().reshape(1, n)
    y = y if bias is None else y + bias.float().reshape(1, n)
    return y.to(x.dtype).reshape(x.shape), mean.reshape(-1), rstd.reshape(-1)


def kernel(contract=None, **how):
    run = lambda x, weight, bias, eps, normalized_shape: norm(x, weight, bias, eps, normalized_shape, **how)  # noqa: E731
    return Kernel("plain", "layernorm_fwd", run=run, contract=contract or Contract())


EARLY = kernel(Contract(xhat="x"), early=True)  # it is declared, so that no check finds anything


def ran(what, seed=0, examples=0, **settings):
    options = {"checks": ("accuracy", "statistics", "distribution"), "seconds": 60.0, "isolate": False}
    return search(what, Settings(examples=examples, seed=seed, **(options | settings)))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small, and the tests' workers many
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def good():
    return ran(kernel())


def changes(old, new, *way, limits=None):
    (pair,) = compare([old], [new], limits).pairs
    return {change.what: change for change in pair.changes if change.way in (way or ("worse",))}


# Errors


def test_a_loss_that_no_check_finds_shows_in_the_same_cases(good):
    lossy = ran(EARLY, seed=1)  # the corner table is the same with any seed
    assert lossy.ok
    assert same_cases(good, lossy)
    found = changes(good, lossy)
    assert {"y float16 rounded right", "y bfloat16 rounded right", "y float16 mean error", "y float16 p99"} <= set(
        found
    )
    assert not any(what.startswith(("mean", "rstd", "y float32")) for what in found)
    assert changes(lossy, good) == {}
    assert set(changes(lossy, good, "better")) == set(found)
    assert any("xhat=None → x" in note for note in compare([good], [lossy]).pairs[0].notes)


def test_a_sum_in_another_order_is_no_loss(good):
    other = ran(kernel(reverse=True))
    assert other.tallies != good.tallies, "it does compute otherwise"
    assert same_cases(good, other)
    assert changes(good, other) == changes(other, good) == {}


def test_another_seed_is_no_loss():
    runs = [ran(kernel(), seed, 20) for seed in range(3)]
    assert len({tuple(tally.elements for tally in run.tallies) for run in runs}) == 3
    for old, new in permutations(runs, 2):
        assert not same_cases(old, new)
        assert changes(old, new) == {}


@pytest.mark.parametrize("wrong", [{"one_pass": True}, {"ddof": 1}, {"early": True}])
def test_a_kernel_that_is_wrong_under_another_seed_is_worse(good, wrong):
    old, new = good, ran(kernel(**wrong), 1, 10)
    assert old.ok
    assert not new.ok
    assert not same_cases(old, new)
    found = changes(old, new)
    assert "accuracy y" in found
    assert found["accuracy y"].replay
    assert "accuracy y" in changes(new, old, "better")


def surveyed(report, what, seed, count=60):
    settings = replace(report.settings, seed=seed)
    found = survey(what, typical(OPS["layernorm_fwd"], ("float16",), "cpu", seed, count))
    return Audit(replace(report, settings=settings, tallies=(), contract=what.contract), found)


def test_typical_data_tell_seeds_from_losses(good):
    audits = [surveyed(good, kernel(), seed) for seed in range(2)]
    lossy = [surveyed(good, EARLY, seed) for seed in range(2)]
    for old, new in permutations(audits, 2):
        assert changes(old, new) == {}
    for old in audits:
        for new in lossy:
            found = changes(old, new)
            assert "y float16 rounded right" in found
            footing = "the same cases" if old.report.settings.seed == new.report.settings.seed else "typical data"
            assert footing in found["y float16 rounded right"].why


def tally(ulps, dtype="float16", ratio=0.9, cases=1):
    """A tally of these signed errors of numbers near 1.25."""
    form, steps = FORMATS[dtype], np.rint(ulps)
    unit = form.ulp(np.array(1.25))
    stats = UlpStats.of(1.25 + steps * unit, 1.25 + (steps - np.asarray(ulps)) * unit, form)
    return Tally("y", dtype, cases, len(steps), ulp=stats, ratio=ratio)


def with_tallies(report, *tallies, **other):
    return replace(report, tallies=tallies, findings=(), **other)


def test_each_number_is_judged_alone(good):
    normal = np.random.default_rng(0).uniform(-0.5, 0.5, 5000)
    old = with_tallies(good, tally(normal))
    shifted = with_tallies(good, tally(np.abs(normal)))  # the same sizes, all of one sign
    assert set(changes(old, shifted)) == {"y float16 bias"}
    assert set(changes(old, with_tallies(good, tally(normal, ratio=1.4)))) == {"y float16 error/bound"}
    tail = np.where(np.arange(5000) < 100, 3.0 * np.sign(normal), normal)  # 2 % of all
    assert set(changes(old, with_tallies(good, tally(tail)))) == {"y float16 rounded right", "y float16 p99"}
    few = np.where(np.arange(5000) < 25, 3.0 * np.sign(normal), normal)
    assert changes(old, with_tallies(good, tally(few))) == {}
    wide = with_tallies(good, tally(normal, "float32")), with_tallies(good, tally(3 * normal, "float32"))
    assert set(changes(*wide)) == {"y float32 mean error", "y float32 p99"}, "nothing rounds float32 right but chance"


def test_one_enormous_error_is_no_mean(good):
    normal = np.random.default_rng(0).uniform(-0.5, 0.5, 5000)
    outlier = np.concatenate([normal[1:], [1e9]])
    old, new = (with_tallies(good, tally(ulps, "float32")) for ulps in (normal, outlier))
    assert new.tallies[0].ulp.mean > 1e5
    assert changes(old, new) == {}


def test_limits_are_the_user_s(good):
    old, new = (with_tallies(good, tally(np.zeros(100), ratio=ratio)) for ratio in (0.3, 0.5))
    assert set(changes(old, new)) == {"y float16 error/bound"}
    assert changes(old, new, limits=Limits(ratio=2.0)) == {}
    assert set(changes(old, new, limits=Limits(ratio=1.6))) == {"y float16 error/bound"}


def test_under_another_seed_only_what_seeds_do_not_do_counts(good):
    normal = np.random.default_rng(0).uniform(-0.5, 0.5, 5000)
    elsewhere = replace(good.settings, seed=9, examples=50)
    old = with_tallies(good, tally(normal, ratio=0.1))
    for share, worse in ((0.4, False), (0.6, True)):
        bad = np.where(np.arange(5000) < share * 5000, 3.0, normal)
        assert bool(changes(old, with_tallies(good, tally(bad, ratio=0.1), settings=elsewhere))) == worse
    for ratio, worse in ((0.5, False), (0.9, True), (1e9, False)):  # beyond 1 it is a finding, which tells of itself
        new = with_tallies(good, tally(normal, ratio=ratio), settings=elsewhere)
        assert bool(changes(old, new)) == worse


def test_numbers_that_are_none_are_no_loss(good):
    infinite = Tally("y", "float32", 1, 2, ulp=UlpStats.of(np.array([np.inf, 1.0]), np.ones(2), FORMATS["float32"]))
    huge = Tally("y", "float32", 1, 2, ulp=UlpStats(2, 0, 0, 1e300, 2e300, 2e300, (0,) * 161 + (2,)), ratio=np.inf)
    empty, foreign = Tally("y", "float32"), Tally("y", "float5", 1, 2, ulp=UlpStats(2, histogram=(1, 1)))
    for one, other in permutations((infinite, huge, empty, foreign), 2):
        for seed in (0, 1):
            settings = replace(good.settings, seed=seed, examples=50)
            compare([with_tallies(good, one)], [with_tallies(good, other, settings=settings)])
    assert np.isnan(of_tally(foreign).capped)


# Findings


def finding(check="accuracy", output="y", after=1, dtype="float16"):
    return Finding(
        "plain", check, output, "fail", f"{output} is off", CaseSpec((2,), dtype=dtype), cases=3, after=after
    )


def test_findings_are_new_gone_or_persist(good):
    one, other = (
        replace(good, findings=(finding(),)),
        replace(good, findings=(finding(output="rstd", check="statistics"),)),
    )
    assert set(changes(good, one)) == {"accuracy y"}
    assert set(changes(one, other)) == {"statistics rstd"}
    assert set(changes(one, other, "better")) == {"accuracy y"}
    assert changes(one, one, "worse", "better", "changed") == {}
    persists = changes(one, replace(good, findings=(finding(dtype="bfloat16"),)), "same")
    assert set(persists) == {"accuracy y"}, "the smallest case may be of another type"


def test_a_rare_finding_beside_others_may_be_the_seed_s(good):
    table = len(good.layouts) and good.cases  # nothing but the corner table was run
    elsewhere = replace(good, cases=table + 300, settings=replace(good.settings, seed=1, examples=300))
    old = replace(elsewhere, findings=(finding("statistics", "rstd"),))
    assert shared(good, old) == table
    seen = {
        after: set(changes(old, replace(old, settings=good.settings, findings=(*old.findings, finding(after=after)))))
        for after in (1, table, table + 2, table + 200)
    }
    assert seen == {1: {"accuracy y"}, table: {"accuracy y"}, table + 2: {"accuracy y"}, table + 200: set()}
    late = replace(old, settings=good.settings, findings=(*old.findings, finding(after=table + 200)))
    assert "may have missed it" in changes(old, late, "changed")["accuracy y"].why
    passed = replace(elsewhere, findings=())
    assert set(changes(passed, late)) == {"accuracy y", "statistics rstd"}, "from pass to FAIL is worse"


def test_what_the_old_run_did_not_look_for_got_no_worse(good):
    unlooked = replace(good, checks=tuple(check for check in good.checks if check.name != "accuracy"))
    new = replace(good, findings=(finding(),))
    assert changes(unlooked, new) == {}
    assert "looked at nothing" in changes(unlooked, new, "changed")["accuracy y"].why
    narrow = replace(good, settings=replace(good.settings, dtypes=("float32",)))
    assert "no float16" in changes(narrow, new, "changed")["accuracy y"].why


# Coverage


def test_what_is_looked_at_no_more_is_a_loss(good):
    dropped = replace(good, checks=good.checks[:1])
    assert set(changes(good, dropped)) == {f"check {check.name}" for check in good.checks[1:] if check.cases}
    idle = replace(good, checks=tuple(replace(check, cases=0) for check in good.checks))
    assert {change.new for change in changes(good, idle).values()} == {"nothing to look at"}
    rare = [replace(good, checks=(*good.checks, CheckResult("nonfinite", "", cases, 0))) for cases in (3, 0)]
    assert changes(*rare) == {}, "three cases may as well be none"
    alone = replace(good, tallies=tuple(tally for tally in good.tallies if tally.output == "y"))
    assert set(changes(good, alone)) == {"output mean", "output rstd"}
    refused = replace(good, skipped=(*good.skipped, Skip("dtype float16", "plain offers float32")))
    assert set(changes(good, refused)) == {"dtype float16"}
    assert set(changes(refused, good, "better")) == set()


def test_far_fewer_cases_are_a_loss_where_as_many_were_asked_for(good):
    for cases, worse in ((0.8, False), (0.3, True)):
        fewer = replace(good, cases=int(cases * good.cases))
        assert ("cases" in changes(good, fewer)) == worse
    late = replace(good, cases=3, skipped=(*good.skipped, Skip("cases", "the 10 s were over", 66)))
    assert "cases" not in changes(good, late), "of a slow machine"
    assert any("time was over after 3 cases" in note for note in compare([good], [late]).pairs[0].notes)
    asked = replace(good, settings=replace(good.settings, examples=400), cases=400)
    assert "cases" not in changes(asked, good)


# Which is compared with which


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


def test_what_else_differs_is_said(good):
    new = replace(
        good, environment=good.environment | {"device": "NVIDIA H200", "torch": "9.9"},
        settings=replace(good.settings, dtypes=("float32", "float16")), interrupted=True,
    )  # fmt: skip
    said = "\n".join(compare([good], [new]).pairs[0].notes)
    for part in ("→ NVIDIA H200", "→ 9.9", "dtypes: float32, float16, bfloat16 → float32, float16", "was interrupted"):
        assert part in said
    assert "seconds" not in said
    mixed = compare([Audit(good)], [good]).pairs[0]
    assert any("an audit, the other none" in note for note in mixed.notes)
    assert not mixed.of("worse")


# Audits


def ladder(errors, over=None, like=("two_pass",), output="y"):
    values = [10.0**k for k in range(len(errors))]
    rungs = tuple(Rung(value, error, 0.5, {}) for value, error in zip(values, errors, strict=True))
    return Ladder("offset", "offset/scale", output, "float32", rungs, over, like)


def test_a_ladder_that_leaves_its_bound_earlier_is_worse(good):
    def audit(over, seed=0, errors=(1.0,) * 6, like=("two_pass",), contract=None):
        report = replace(good, settings=replace(good.settings, seed=seed), contract=contract or good.contract)
        return Audit(report, ladders=(ladder(errors, over, like),))

    where = "y over offset/scale"
    assert set(changes(audit(None), audit(1e5))) == {where}
    assert set(changes(audit(1e4), audit(1e3))) == {where}
    assert set(changes(audit(1e3), audit(1e4), "better")) == {where}
    assert changes(audit(1e4), audit(1e3, seed=1)) == {}, "a rung is the seed's"
    assert set(changes(audit(1e4), audit(1e2, seed=1))) == {where}
    assert changes(audit(None), audit(10.0, contract=Contract(variance="shifted"))) == {}, "another bound"
    higher = audit(None, errors=tuple(3.0**k for k in range(6)), like=("one_pass",))
    assert "like one_pass" in changes(audit(None), higher)[where].new
    assert changes(audit(None), replace(higher, report=audit(None, seed=1).report)) == {}
    renamed = audit(None, like=("welford",))
    assert set(changes(audit(None), renamed, "changed")) == {where}
    assert changes(audit(None), audit(None, like=()), "worse", "changed") == {}
    assert changes(audit(None), audit(None, errors=(float("nan"), float("inf"), 0.0, 1.0, 1.0, 1.0))) == {}


@pytest.mark.parametrize(
    ("name", "old", "new", "way"),
    [
        ("variance", "two_pass", "one_pass", "worse"),
        ("variance", "one_pass", "shifted", "better"),
        ("variance", "two_pass", "welford", "changed"),
        ("dbias partials", "float32", "bfloat16", "worse"),
        ("row accumulator", "float16", "float64", "better"),
        ("used statistics", "float32", "float16", "worse"),
        ("statistics source", "given", "recomputed", "changed"),
        ("divisor", "N", "N-1", "worse"),
        ("eps value", "as given", "1e-05 whatever is given", "worse"),
        ("eps place", "inside", "outside", "worse"),
        ("deterministic", "yes", "no", "worse"),
        ("long dbias sum", "in parts", "sequential", "worse"),
        ("row order", "8 lanes", "16 lanes", "changed"),
        ("fma", "fused", "separate", "changed"),
    ],
)  # fmt: skip
def test_statements_that_say_something_else(good, name, old, new, way):
    def audit(statement):
        return Audit(good, fingerprint=Fingerprint("plain", good.op, "cpu", (statement,)))

    before, after = (audit(Statement(name, said, "seen", 0.9)) for said in (old, new))
    assert set(changes(before, after, way)) == {name}
    assert changes(before, before, "worse", "better", "changed") == {}
    assert changes(before, audit(undecided(name, "too coarse")), "worse", "better", "changed") == {}
    unsure = audit(Statement(name, new, "seen", 0.5))
    assert set(changes(before, unsure, "changed")) == {name}
    assert changes(before, unsure) == {}


def test_a_part_of_an_audit_that_is_missing_is_a_loss(good):
    fingerprint = Fingerprint("plain", good.op, "cpu", ())
    whole = Audit(good, ladders=(ladder((1.0,)),), fingerprint=fingerprint)
    part = Audit(good, fingerprint=fingerprint, skipped=(Skip("ladders", "the kernel was lost"),))
    assert changes(whole, part)["ladders"].why == "the kernel was lost"
    line = "the contract says variance=centered, and the variance is one_pass: off by {} at 2^10 σ"
    broken = [replace(whole, disagreements=(line.format(size),)) for size in (0.1, 0.2)]
    assert set(changes(whole, broken[0])) == {"disagreement"}
    assert set(changes(broken[0], whole, "better")) == {"disagreement"}
    assert changes(*broken, "worse", "better") == {}, "the evidence alone differs"


def test_a_survey_has_the_same_moments_as_a_tally():
    ulps = np.random.default_rng(1).uniform(0, 4, 4000)
    one = tally(ulps)
    fine, coarse = of_tally(one), of_survey(summary(one))
    assert coarse.capped == pytest.approx(fine.capped, rel=0.1)
    assert fine.capped == pytest.approx(ulps.mean(), rel=0.03)
    assert fine.rms == pytest.approx(np.sqrt(np.square(ulps).mean()), rel=0.03)


# Files, and the command line


@pytest.mark.parametrize("path", STORED, ids=[path.stem for path in STORED])
def test_reports_of_earlier_versions_are_read(path):
    (report,) = json_form.read(str(path))
    assert report.ok
    assert report.tallies
    assert compare([report], [report]).pairs[0].same_cases


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(a) for a in arguments], **options)


@pytest.fixture
def files(tmp_path, good):
    def write(**documents):
        for name, text in documents.items():
            (tmp_path / f"{name}.json").write_text(text if isinstance(text, str) else json_form.dump(text))
        return [tmp_path / f"{name}.json" for name in documents]

    return write


def test_the_command_exits_with_what_it_says(files, good, tmp_path):
    old, new, page = *files(old=good, new=ran(EARLY)), tmp_path / "page.md"
    result = run("compare", old, new, "--json", tmp_path / "c.json", "--markdown", page)
    assert result.exit_code == 1, result.output
    assert "worse y float16 rounded right" in result.stdout
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["worse"] is True
    assert found["pairs"][0]["same_cases"] is True
    assert page.read_text().startswith("### ❌ worse in ")
    assert run("compare", new, old).exit_code == 0
    assert json.loads(run("compare", old, new, "--json", "-").stdout) == found
    assert run("compare", old, new, "--markdown", "-").stdout == page.read_text()


def test_bad_files_are_one_line_with_their_name(files, good, tmp_path):
    text = json_form.dump(good)
    newer = json.dumps(asdict(good) | {"schema": 2}, default=str)
    nested = '{"schema": 1, "report": {"schema": 9}}'
    bad = {
        "half": text[: len(text) // 2], "empty": "", "foreign": '{"name": "x"}', "list": "[]", "numbers": "[1, 2]",
        "newer": newer, "older": newer.replace('"schema": 2', '"schema": 0'), "nested": nested,
        "word": newer.replace('"schema": 2', '"schema": "1"'), "deep": "[" * 10**5, "digits": "1" * 5000,
        "typed": text.replace('"cases": ', '"cases": "x', 1).replace(',\n"seconds"', '",\n"seconds"', 1),
    }  # fmt: skip
    (fine,) = files(fine=good)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00report")
    paths = [*files(**bad), tmp_path / "binary.json", tmp_path / "none.json", tmp_path]
    for path in paths:
        for arguments in ((path, fine), (fine, path)):
            result = run("compare", *arguments)
            assert result.exit_code == 2, path
            assert result.stdout == ""
            assert len(result.stderr.splitlines()) == 1, result.stderr
            assert str(path) in result.stderr
            assert "Traceback" not in result.stderr
    assert "newer verify-norm wrote it" in run("compare", fine, tmp_path / "newer.json").stderr
    assert "write it anew" in run("compare", tmp_path / "older.json", fine).stderr


def test_nothing_in_common_is_a_mistake(files, good):
    old, new = files(old=good, new=replace(good, op="rmsnorm_fwd", kernel="other"))
    result = run("compare", old, new)
    assert result.exit_code == 2
    assert "nothing to compare: " in result.stderr
    assert "plain (layernorm_fwd)" in result.stderr
    assert run("compare", old, old, "--json", "x", "--markdown", "x").exit_code == 2
    assert run("compare", old, old, "--json", "/no/such/folder/x").exit_code == 2


SOURCE = """
import torch
from verify_norm import Contract, kernel
def rmsnorm_fwd(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
@kernel(op="rmsnorm_fwd", contract=Contract(xhat="x"))
def llama(x, weight, eps):
    y = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else (y.float() * weight.float()).to(x.dtype)
"""
QUICK = ("--dtype", "fp16", "--examples", 0, "--checks", "accuracy", "--in-process", "--device", "cpu")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_run_is_compared_with_its_baseline(source, tmp_path):
    base, page = tmp_path / "base.json", tmp_path / "summary.md"
    run("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--json", base)
    page.write_text("before")
    environment = {"GITHUB_STEP_SUMMARY": str(page)}
    again = ("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", base, "--json", base)
    result = run(*again, env=environment)
    assert result.exit_code == 0, result.output
    assert "nothing got worse; 1 kernel compared" in result.stdout
    assert page.read_text().startswith("before### ✅ pass")
    worse = run("--kernel", f"{source}:llama", *QUICK, "--baseline", base, "--json", "-")
    assert worse.exit_code == 1
    assert json.loads(worse.stdout)["kernel"].endswith(":llama"), "standard output is the JSON's alone"
    assert "worse y float16 rounded right" in worse.stderr
    unwritable = run(*again, env={"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "folder")})
    assert unwritable.exit_code == 0
    assert "cannot write the summary" in unwritable.stderr


def test_a_baseline_is_read_before_the_run(source, tmp_path, files, good):
    half = tmp_path / "half.json"
    half.write_text('{"kernel": ')
    for path, said in ((half, "half.json: not a JSON file"), (tmp_path / "none.json", "there is no baseline")):
        result = run("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", path, "--json", tmp_path / "new.json")
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stdout == ""
        assert not (tmp_path / "new.json").exists()
    (other,) = files(other=good)
    result = run("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--baseline", other)
    assert result.exit_code == 0
    assert "has no " in result.stderr
    assert "to compare with" in result.stderr


def test_a_page_and_a_corpus(source, tmp_path):
    page, corpus, base = tmp_path / "page.html", tmp_path / "corpus.jsonl", tmp_path / "base.json"
    command = ("--kernel", f"{source}:rmsnorm_fwd", *QUICK, "--json", base)
    without = run(*command)
    assert without.exit_code == 0, without.output
    cases = json_form.read(str(base))[0].cases
    line = {"kernel": f"{source}:rmsnorm_fwd", "op": "rmsnorm_fwd", "shape": [3, 19], "dtype": "float16", "seed": 77}
    corpus.write_text(json.dumps(line) + "\n")
    assert run(*command, "--corpus", corpus, "--html", page).exit_code == 0
    assert json_form.read(str(base))[0].cases == cases + 1
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    corpus.write_text("{")
    for options, said in (
        (("--corpus", corpus), "line 1 of the corpus"),
        (("--html", base), "--json and --html are both"),
        (("--html", "/no/such/folder/x.html"), "no writable folder"),
    ):
        result = run(*command, *options)
        assert result.exit_code == 2, options
        assert said in result.stderr


def test_documents_are_what_the_schema_says(good):
    import jsonschema

    from verify_norm.report import schema

    def accepts(kind, text):
        return not list(jsonschema.Draft202012Validator(schema.schema(kind)).iter_errors(json.loads(text)))

    for kind in schema.KINDS:
        described = json.loads(run("schema", kind).stdout)
        jsonschema.Draft202012Validator.check_schema(described)
        assert "$id" not in described
    nan = replace(finding(), got=float("nan"), want=float("-inf"), ulp=float("inf"))
    report = replace(good, findings=(nan,))
    assert '"NaN"' in json_form.dump(report)
    assert accepts("report", json_form.dump(report))
    assert not accepts("audit", json_form.dump(report))
    tree = Statement("row order", "pairwise", "seen", 0.9, tree=((0, 1), (2, (3, 4))))
    statements = Fingerprint("plain", good.op, "cpu", (tree,))
    audit = replace(surveyed(report, kernel(), 0, 6), ladders=(ladder((1.0, float("inf"))),), fingerprint=statements)
    assert accepts("audit", json_form.dump(audit))
    assert accepts("comparison", json_form.dump_comparison(compare([good], [report])))
    line = json_form.spec_text("plain", finding().spec, "layernorm_fwd")
    assert accepts("case", line)
    wrong = ('"many"', "null", '"Inf"')
    for word in wrong:
        assert not accepts("report", json_form.dump(good).replace('"cases": ', f'"cases": {word}, "was": ', 1))
        assert not accepts("report", json_form.dump(good).replace('"seconds": ', f'"seconds": {word}, "was": ', 1))
    assert not accepts("report", json_form.dump(good).replace('"schema": 1', '"schema": 2'))
    for broken in ('"shape": []', '"shape": [2], "dtyp": "x"', '"shape": [2], "dtype": "int8"'):
        assert not accepts("case", f'{{"kernel": "k", {broken}}}')
    assert run("schema", "reprt").exit_code == 2
