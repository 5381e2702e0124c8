"""Exit statuses and verdicts, the same through every interface: the command line, Python and pytest."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import FEW_CORNERS
from typer.testing import CliRunner

from verify_norm import FindingsError, __version__, audit
from verify_norm.cli.app import app, main
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.errors import Exit
from verify_norm.report import documents
from verify_norm.running.isolate import InProcess
from verify_norm.search import search, sweep

pytest_plugins = ["pytester"]

PARTIAL = Path(__file__).parent / "support" / "partial.py"
FWD, BWD = "rmsnorm_fwd", "rmsnorm_bwd"
CORNERS = 20  # of the corner table: three dimensions, and each row that a kernel of partial.py names, are among them
ALMOST = "almost nothing was checked: outputs were compared in"
VERDICTS = [  # kernel, operator, checks, verdict, what every interface says
    ("returns_nothing", FWD, "", Exit.FINDINGS, "y: expected a tensor, but the kernel returned nothing"),
    ("returns_no_name", FWD, "", Exit.FINDINGS, "y: expected a tensor, but the kernel returned nothing"),
    ("returns_rstd_alone", FWD, "", Exit.FINDINGS, "y: expected a tensor, but the kernel returned rstd alone"),
    ("returns_none", FWD, "", Exit.FINDINGS, "y: expected a float32 tensor, got None"),
    ("raises", FWD, "", Exit.FINDINGS, "ValueError: not today"),
    ("raises_mostly", FWD, "", Exit.FINDINGS, "ValueError: not this shape"),
    ("gradients_of_nothing", BWD, "", Exit.FINDINGS, "dx: expected a tensor, but the kernel returned nothing"),
    ("gradients_of_none", BWD, "", Exit.FINDINGS, "dx: expected a float32 tensor, got None"),
    ("gradient_raises", BWD, "", Exit.FINDINGS, "ValueError: not today"),
    ("returns_nothing", FWD, "accuracy", Exit.NOTHING, "nothing was checked"),
    ("returns_another_shape", FWD, "accuracy,memory", Exit.NOTHING, "nothing was checked"),
    ("raises", FWD, "accuracy,nonfinite", Exit.NOTHING, "nothing was checked"),
    ("raises_mostly", FWD, "accuracy", Exit.NOTHING, f"{ALMOST} 1 of {CORNERS} cases"),
    ("refuses_mostly", FWD, "", Exit.NOTHING, f"{ALMOST} 1 of {CORNERS} cases"),
    ("right", FWD, "statistics", Exit.NOTHING, "the kernel does not return rstd"),
    ("wrong_in_three_dimensions", FWD, "", Exit.FINDINGS, "y["),
    ("interrupted", FWD, "", Exit.INCOMPLETE, f" of {CORNERS} corner cases ran: the run was interrupted"),
    ("right", FWD, "", Exit.PASS, ""),
    ("matrices_alone", FWD, "", Exit.PASS, ""),
    ("contiguous_alone", FWD, "", Exit.PASS, ""),
    ("dweight_alone", BWD, "", Exit.PASS, ""),
]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A folder of its own for the journals of incomplete runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(name, op, *options):
    few = ("--dtype", "fp32", "--examples", 0, "--in-process", "--device", "cpu")
    result = run("--kernel", f"{PARTIAL}:{name}", "--op", op, *few, *options)
    return result, " ".join(result.output.split())


def called(name, op, **options):
    few = {"dtypes": "fp32", "examples": 0, "isolate": False, "device": "cpu"}
    return audit(f"{PARTIAL}:{name}", op, **(few | options))


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "op", "checks", "verdict", "said"), VERDICTS)
def test_the_command_line_and_python_have_one_verdict(
    name, op, checks, verdict, said, tmp_path, few_corners, unexplained
):
    few_corners(slice(CORNERS))
    result, text = command(name, op, "--checks", checks, "--json", tmp_path / "r.json")
    assert result.exit_code == verdict, result.output
    assert said in text
    assert ("PASS" in text) == (verdict is Exit.PASS)
    assert "Traceback" not in text
    report = documents.load((tmp_path / "r.json").read_text())
    assert report.verdict is verdict
    assert all(bool(check.no_data) == (not check.cases) for check in report.checks)

    report = called(name, op, checks=checks)
    assert (report.verdict, report.ok) == (verdict, verdict is Exit.PASS)
    if verdict is Exit.PASS:
        report.raise_for_findings()
    else:
        with pytest.raises(FindingsError) as caught:
            report.raise_for_findings()
        assert said in str(caught.value)


@pytest.fixture
def seconds(monkeypatch):
    """A clock that goes on by a second whenever the search reads it, three times a case."""
    clock = SimpleNamespace(perf_counter=count().__next__)
    for module in (search, sweep):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.slow
def test_a_run_that_runs_out_of_time_is_incomplete(seconds, tmp_path):
    """The first case of three dimensions is the fifth or a later one."""
    options = ("--seconds", 12, "--json", tmp_path / "r.json")
    result, text = command("wrong_in_three_dimensions", FWD, *options)
    assert result.exit_code == Exit.INCOMPLETE, text
    done = documents.load((tmp_path / "r.json").read_text()).coverage
    assert 0 < done.corners_done == done.compared == done.outputs["y"] < 5
    said = f"{done.corners_done} of {done.corners} corner cases ran: the time limit of 12 s was reached"
    assert said in text
    assert "INCOMPLETE" in text
    assert "PASS" not in text
    accepted, text = command("wrong_in_three_dimensions", FWD, *options, "--allow-incomplete")
    assert accepted.exit_code == Exit.PASS
    assert said in text
    assert command("wrong_in_three_dimensions", FWD, "--seconds", 300)[0].exit_code == Exit.FINDINGS


@pytest.mark.slow
def test_an_incomplete_run_can_be_accepted_in_python_too(seconds):
    report = called("right", FWD, seconds=30.0)
    assert report.verdict is Exit.INCOMPLETE
    with pytest.raises(FindingsError, match=r"incomplete: \d+ of \d+ corner cases ran"):
        report.raise_for_findings()
    accepted = called("right", FWD, seconds=30.0, allow_incomplete=True)
    assert accepted.ok
    accepted.raise_for_findings()
    assert called("raises", FWD, seconds=30.0, allow_incomplete=True, checks="accuracy").verdict is Exit.NOTHING


@pytest.mark.slow
def test_a_run_may_be_accepted_in_pyproject_toml(seconds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "pyproject.toml"
    table.write_text("[tool.verify-norm]\nallow_incomplete = true\n")
    assert command("right", FWD, "--seconds", 30)[0].exit_code == Exit.PASS
    assert command("right", FWD, "--seconds", 30, "--no-config")[0].exit_code == Exit.INCOMPLETE
    table.write_text('[tool.verify-norm]\nallow_incomplete = "yes"\n')
    result, text = command("right", FWD)
    assert result.exit_code == Exit.NOTHING
    assert "allow_incomplete: expected true or false, got 'yes'" in text


def test_interruption_before_the_second_direction_leaves_it_unchecked():
    options = ("--dtype", "fp32", "--examples", 0, "--in-process", "--device", "cpu", "--allow-incomplete")
    result = run("--kernel", f"{PARTIAL}:interrupted", "--op", "rmsnorm", *options)
    assert result.exit_code == Exit.INCOMPLETE, result.output
    assert "1 of 2 directions ran" in result.output


@pytest.mark.slow
def test_a_power_that_no_case_shows_is_no_pass(monkeypatch):
    monkeypatch.setattr("verify_norm.search.examine.SmallestError", type("Nothing", (), {}))
    monkeypatch.setattr("verify_norm.search.search.runner", lambda kernel, device, **_: InProcess(kernel, device))
    few = ("--op", FWD, "--examples", 0, "--device", "cpu")
    result = run("power", "--kernel", f"{PARTIAL}:right", *few)
    assert result.exit_code == Exit.NOTHING, result.output
    assert "the power could not be measured" in result.stderr


COMMANDS = [
    (("--kernel", "rmsnorm_fwd_torch"), "verify_norm.search.sweep.examine_for"),
    (("replay", '{"kernel": "rmsnorm_fwd_torch", "shape": [2]}'), "verify_norm.search.search.examine_for"),
    (("power", "--kernel", "rmsnorm_fwd_torch"), "verify_norm.search.sweep.examine_for"),
    (("audit", "--kernel", "rmsnorm_fwd_torch"), "verify_norm.search.sweep.examine_for"),
    (("hunt", "--kernel", "rmsnorm_fwd_torch"), "verify_norm.auditing.audit.hunted"),
    (("exhaust", "--kernel", "rmsnorm_fwd_torch"), "verify_norm.exhaustive.run.question"),
    (("zoo", "U08"), "verify_norm.validation.zoo.detectable"),
    (("certify",), "verify_norm.validation.certify.certify"),
    (("gradcheck", f"{PARTIAL}:right"), "verify_norm.gradcheck.gradcheck.gradcheck"),
    (("schema",), "verify_norm.report.schema.text"),
    (("list",), "verify_norm.loading.entry_points.registered"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "place"), COMMANDS, ids=[arguments[0] for arguments, _ in COMMANDS])
def test_an_error_of_the_tool_is_neither_a_finding_nor_a_pass(arguments, place, monkeypatch):
    def broken(*args, **options):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(place, broken)
    result = run(*arguments)
    assert result.exit_code == Exit.INTERNAL == 70
    assert "internal error: KeyError: 'a mistake of ours'; this is an error of verify-norm" in result.stderr
    assert (
        f"report it with the traceback above, the version {__version__}, and the command: verify-norm" in result.stderr
    )
    assert result.stderr.count("Traceback") == 1
    monkeypatch.setattr(sys, "argv", ["verify-norm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 70


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "place"), COMMANDS, ids=[arguments[0] for arguments, _ in COMMANDS])
def test_control_c_before_a_report_is_incomplete(arguments, place, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    result = run(*arguments)
    assert result.exit_code == Exit.INCOMPLETE
    assert "interrupted" in result.stderr
    assert "Traceback" not in result.output


KERNELS = ("right", "matrices_alone", "raises", "refuses_mostly")
TESTS = f"""
import verify_norm

@verify_norm.parametrize_checks(*(f"{PARTIAL}:{{name}}" for name in {KERNELS}), op="rmsnorm_fwd")
def test_norm(kernel, check):
    check(kernel)
"""


def outcomes(path):
    """Return the outcome and the message of each test in a JUnit file, by its name, as "right-accuracy"."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        result = next((child for child in case if child.tag != "properties"), None)
        words = ("passed", "") if result is None else (result.tag, str(result.get("message")))
        found[case.get("name").partition("[")[2].rstrip("]")] = words
    return found


@pytest.fixture
def project(pytester):
    pytester.makepyfile(test_norms=TESTS, sitecustomize=FEW_CORNERS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester


@pytest.mark.nightly
@pytest.mark.slow
def test_in_pytest_no_check_without_data_passes(project):
    few = ("--norm-examples=0", "--norm-dtype=fp32", "--norm-device=cpu", "--junitxml=j.xml", "-k", "not right")
    run = project.runpytest_subprocess(*few)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    said = outcomes(project.path / "j.xml")
    lacks = {"gradient", "autograd", "statistics"}  # two do not apply, the other needs what they do not return
    found = {name: said[f"matrices_alone-{name}"][0] for name in CHECK_NAMES}  # a lambda is found at its target
    assert found == {name: "skipped" if name in lacks else "passed" for name in CHECK_NAMES}
    for kernel, passes in (("raises", {"crash"}), ("refuses_mostly", set())):
        found = {name: said[f"{kernel}-{name}"] for name in CHECK_NAMES if name not in ("gradient", "autograd")}
        assert {name for name, (outcome, _) in found.items() if outcome == "passed"} == passes, kernel
        assert all(outcome == "failure" for name, (outcome, _) in found.items() if name not in passes)
    assert "nonfinite: no data: the kernel returned no output" in said["raises-nonfinite"][1]
    almost = r"accuracy: almost nothing was checked: outputs were compared in 1 of \d\d "
    assert re.search(almost, said["refuses_mostly-accuracy"][1])


@pytest.mark.nightly
@pytest.mark.slow
def test_in_pytest_an_incomplete_run_passes_only_where_it_is_accepted(project):
    """The process of the kernel starts in more than a second: it imports torch."""
    few = ("--norm-seconds=1", "--norm-device=cpu", "--junitxml=j.xml", "-k", "right and (accuracy or nonfinite)")
    run = project.runpytest_subprocess(*few)
    run.assert_outcomes(failed=2)
    said = outcomes(project.path / "j.xml")
    assert re.search(
        r"accuracy: incomplete: 1 of \d+ corner cases ran: the time limit of 1 s was reached", said["right-accuracy"][1]
    )
    run.stdout.fnmatch_lines(["FAIL *partial.py:right: incomplete: 1 of * corner cases ran: *"])
    run = project.runpytest_subprocess(*few, "--norm-allow-incomplete")
    run.assert_outcomes(passed=1, skipped=1)
    assert run.ret == pytest.ExitCode.OK
    said = outcomes(project.path / "j.xml")
    assert "nonfinite: no data: nothing to look at in 1 case" in said["right-nonfinite"][1]
