"""The pytest plugin as a user meets it: outcomes, messages, selection, workers, reports, and what it costs."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import pytest
from small_runs import FEW_CORNERS

import verify_norm
from verify_norm.checks import CHECKS
from verify_norm.checks import check as entering
from verify_norm.core import serial
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.pytest_plugin.marking import parametrize_checks
from verify_norm.report import documents

pytest_plugins = ["pytester"]

HEAVY = ("torch", "triton", "numpy", "hypothesis", "pydantic", "rich", "typer", "scipy")


def rms(x, weight, eps):
    """A kernel in a module of tests."""


FEW = ("--norm-examples", "0", "--norm-dtype", "fp16", "--norm-device", "cpu")
NORMS = """
import multiprocessing
import os
import torch

if multiprocessing.parent_process() is None:  # the process that searches, not the one that runs the kernel
    with open("imported", "a") as file:
        file.write("x")

def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    return (y if weight is None else y * (weight.double() + weight_offset)).to(x.dtype)

def biased(x, weight, eps, weight_offset, normalized_shape):
    y = rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
    return (y * 1.0078125).to(x.dtype)

def ends(x, weight, eps, weight_offset, normalized_shape):
    if x.shape == (5, 65):  # once, in the corner table
        os._exit(3)
    return rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
"""
ENDS = "import ctypes\nctypes.CDLL(None)._exit(7)\n"  # os._exit would raise
TESTS = """
import verify_norm

@verify_norm.parametrize_checks("norms:rmsnorm_fwd", expected_failures={"nonfinite": "it once leaked"})
def test_right(kernel, check):
    assert kernel.target == "norms:rmsnorm_fwd"
    check(kernel)

@verify_norm.parametrize_checks("norms.py:biased", op="rmsnorm_fwd", expected_failures={"accuracy": "a factor"})
def test_known(kernel, check):
    check(kernel)

class TestBad:
    @verify_norm.parametrize_checks("norms:absent", "ender:rmsnorm_fwd", op="rmsnorm_fwd",
                                    expected_failures={"accuracy": "no matter"})
    def test_bad(self, kernel, check):
        check(kernel)
"""


@pytest.fixture
def project(pytester):
    """A user's project: a package of kernels beside its tests."""
    pytester.makepyfile(norms=NORMS, ender=ENDS, test_norms=TESTS, sitecustomize=FEW_CORNERS)
    pytester.makeini("[pytest]\npythonpath = .\nfilterwarnings = error\naddopts = --strict-markers\n")
    return pytester


def outcomes(path):
    """Outcome, message and properties of each test in a JUnit file, by its name, as "right rmsnorm_fwd-accuracy"."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        result = next((child for child in case if child.tag != "properties"), None)
        properties = [(p.get("name"), p.get("value")) for p in case.iter("property")]
        name = case.get("name").partition("@")[0].removeprefix("test_").replace("[", " ").rstrip("]")
        kind, text = ("passed", "") if result is None else (result.tag, f"{result.get('message')}\n{result.text}")
        found[name] = (kind if result is None or not result.get("type") else result.get("type"), text, properties)
    return found


@pytest.mark.nightly
@pytest.mark.slow
def test_a_whole_run_and_then_the_failed_ones_alone(project):
    run = project.runpytest_subprocess(*FEW, "--junitxml=j.xml", "--norm-report=r.json", "-rA")
    said = outcomes(project.path / "j.xml")
    kernels = ("right rmsnorm_fwd", "known biased", "bad absent", "bad rmsnorm_fwd")
    assert set(said) == {f"{kernel}-{check}" for kernel in kernels for check in CHECKS}

    # what is right passes, what does not apply or never looked skips, an expected failure that passes is told
    right = {check: said[f"right rmsnorm_fwd-{check}"] for check in CHECKS}
    assert right["accuracy"][0] == right["crash"][0] == right["signature"][0] == "passed"
    assert ("max_ulp.y.float16", "0.5") in [(n, f"{float(v):.1g}") for n, v in right["accuracy"][2]]
    assert right["gradient"][0] == "pytest.skip"
    assert "gradient does not apply to rmsnorm_fwd" in right["gradient"][1]
    assert right["statistics"][0] == "pytest.skip"
    assert "statistics: no data: the kernel does not return rstd" in right["statistics"][1]
    assert right["nonfinite"][0] == "failure"
    assert "expected to fail (it once leaked) but passes: nothing found in" in right["nonfinite"][1]

    # what is wrong fails as it was said to, with what replays it
    kind, text, properties = said["known biased-accuracy"]
    assert kind == "pytest.xfail"
    assert "a factor" in text
    (replay,) = [value for name, value in properties if name == "replay"]
    assert replay.startswith("""verify-norm replay '{"kernel": "norms.py:biased", "op": "rmsnorm_fwd",""")
    replayed = serial.read_spec(shlex.split(replay)[2])
    assert replayed[:2] == ("norms.py:biased", "rmsnorm_fwd")

    # what cannot be had is an error of each of its tests, in a line, whatever is expected
    for check in CHECKS:
        assert said[f"bad absent-{check}"][0] == said[f"bad rmsnorm_fwd-{check}"][0] == "error"
        assert "norms has no 'absent'; its callables are: rmsnorm_fwd, biased, ends" in said[f"bad absent-{check}"][1]
        assert "ended the process that searched it, with exit status 7" in said[f"bad rmsnorm_fwd-{check}"][1]
    text = run.stdout.str()
    assert "Traceback" not in text
    assert "pytest_plugin.py" not in text

    # a line a kernel, with what was not checked
    run.stdout.fnmatch_lines(
        [
            "*= verify-norm =*",
            "FAIL norms:rmsnorm_fwd: nonfinite was expected to fail and passes; * checks; * cases *, error/bound y 1",
            "  not checked: output rstd (* cases): norms:rmsnorm_fwd does not return it",
            "* norms.py:biased: *accuracy failed as expected (a factor); *",
            "ERROR norms:absent: norms has no 'absent'*",
            "ERROR ender:rmsnorm_fwd: *exit status 7",
        ]
    )
    reports = json.loads((project.path / "r.json").read_text())
    assert [r["kernel"] for r in reports] == ["norms:rmsnorm_fwd", "norms.py:biased"]
    assert {check["name"] for check in reports[0]["checks"]} == set(CHECKS) - {"gradient", "autograd"}
    finding, *_ = documents.load(json.dumps(reports[1])).findings
    assert (finding.check, finding.spec) == ("accuracy", replayed[2])

    # --lf has the same ids, and the search looks for nothing else
    project.path.joinpath("imported").unlink()
    again = project.runpytest_subprocess(*FEW, "--lf", "-v", "--norm-report=r.json", "-k", "right")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["test_norms.py::test_right[[]rmsnorm_fwd-nonfinite[]] FAILED*"])
    assert [c["name"] for c in json.loads((project.path / "r.json").read_text())[0]["checks"]] == ["nonfinite"]


@pytest.mark.slow
def test_collecting_imports_no_kernel_and_nothing_heavy(project):
    project.makeconftest(
        "import sys\n"
        "def pytest_unconfigure():\n"
        f"    print('loaded', [m for m in {(*HEAVY, 'norms')} if m in sys.modules])\n"
    )
    run = project.runpytest_subprocess("--collect-only", "-q", "-p", "no:hypothesispytest", "-p", "no:xdist")
    assert run.ret == 0
    run.stdout.fnmatch_lines(["test_norms.py::test_right[[]rmsnorm_fwd-accuracy[]]", "loaded [[][]]"])
    assert not (project.path / "imported").exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_workers_share_one_search(project):
    selected = "rmsnorm_fwd and (accuracy or signature or memory) and right"
    run = project.runpytest_subprocess(*FEW, "-n", "2", "-k", selected, "--norm-report=r.json")
    run.assert_outcomes(passed=3)
    assert (project.path / "imported").read_text() == "x"
    (report,) = json.loads((project.path / "r.json").read_text())
    assert [check["name"] for check in report["checks"]] == [
        name for name in CHECKS if name in ("memory", "signature", "accuracy")
    ]
    run.stdout.fnmatch_lines(["pass norms:rmsnorm_fwd: 3 checks; *"])
    assert "INTERNALERROR" not in run.stdout.str()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_failure_reads_as_on_the_command_line_and_an_unselected_check_is_not_lost(project):
    project.makepyfile(
        test_norms="import verify_norm\n"
        "@verify_norm.parametrize_checks('norms:biased', 'norms:ends', op='rmsnorm_fwd',\n"
        "                                expected_failures={'accuracy': 'known'})\n"
        "def test_norm(kernel, check):\n"
        "    check(kernel)\n"
    )
    run = project.runpytest_subprocess(
        *FEW, "-k", "accuracy", "--runxfail", "--junitxml=j.xml", "-n", "1", "--dist=loadgroup"
    )
    run.assert_outcomes(failed=2)
    said = outcomes(project.path / "j.xml")
    assert re.search(
        r"\ny\[.*\] is \S+ ULP \((\w+)\) from float64; allowed \S+ \(\d+ terms? summed in float32, then one rounding "
        r"to \1\).*\n  case      .*\n  data .*\n  element   y\[.*\]\n  got       \S+\n  expected  .*\n  seen in   .*\n"
        r"  contract  no contract that verify-norm knows explains it.*\n"
        r"  replay    verify-norm replay '{\"kernel\": \"norms:biased\", \"op\": \"rmsnorm_fwd\", .*}'\n?$",
        said["norm biased-accuracy"][1],
    )
    assert "it ended its process with exit status 3" in said["norm ends-accuracy"][1]  # of the check crash
    run.stdout.fnmatch_lines(["FAIL norms:ends: a check that was not selected found something; *"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--norm-dtype", "fp7"], "ERROR: verify-norm: dtypes: unknown dtype 'fp7'*"),  # tests/test_bad_inputs.py: more
        (["--norm-seconds", "soon"], "*--norm-seconds: invalid float value: 'soon'"),
    ],
)
def test_mistakes_in_the_options_are_told_at_once(project, options, said):
    run = project.runpytest_inprocess(*options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([said])
    assert "Traceback" not in run.stderr.str()


def test_a_report_that_cannot_be_written_after_all_is_told(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    pytester.makeconftest("import os\ndef pytest_collection_finish(): os.mkdir('r.json')")
    run = pytester.runpytest_inprocess("--norm-report=r.json")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stdout.fnmatch_lines(["ERROR: cannot write r.json: *"])


@pytest.mark.nightly
@pytest.mark.slow
def test_ctrl_c_ends_the_search_too(project):
    command = [sys.executable, "-m", "pytest", "-q", "-k", "rmsnorm_fwd-accuracy and right", "--norm-examples=100000"]
    run = subprocess.Popen(
        command,
        cwd=project.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    imported = project.path / "imported"
    deadline = time.monotonic() + 60
    while not imported.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    (searching,) = (int(p) for p in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())
    run.send_signal(signal.SIGINT)  # to it alone, as a CI's runner may do
    said, _ = run.communicate(timeout=30)
    assert "KeyboardInterrupt" in said
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert not Path(f"/proc/{searching}").exists()


def test_the_names_of_the_checks_are_those_there_are():
    assert tuple(CHECKS) == CHECK_NAMES
    assert entering.CHECKS.keys() == set(CHECK_NAMES)


def test_mistakes_in_the_decorator_are_told():
    with pytest.raises(
        ValueError, match=r"unknown check 'determinsm' \(did you mean determinism\?\); verify-norm list shows"
    ):
        parametrize_checks("a:b", expected_failures={"determinsm": "why"})
    with pytest.raises(ValueError, match=r"as @verify_norm.parametrize_checks\('package.module:attr'\)"):
        parametrize_checks(lambda kernel, check: check(kernel))
    with pytest.raises(ValueError, match="expected functions, or names such as"):
        parametrize_checks()
    with pytest.raises(ValueError, match="expected functions, or names such as"):
        parametrize_checks(3)
    with pytest.raises(ValueError, match="parametrize_checks: contract: xhat: expected none, float64, "):
        parametrize_checks("a:b", contract="xhat=y")
    with pytest.raises(ValueError, match="parametrize_checks: only: unknown clause of --only 'K'"):
        parametrize_checks("a:b", only="K%8=0")
    with pytest.raises(ValueError, match="contract has 'a:c', which is none of its kernels"):
        parametrize_checks("a:b", contract={"a:c": "llama"})
    with pytest.raises(ValueError, match="expected_failures has 'a:c', which is none"):
        parametrize_checks("a:b", expected_failures={"a:c": {"accuracy": "no"}})
    with pytest.raises(ValueError, match=r"another process cannot find .*: define it at the top level"):
        parametrize_checks(partial(lambda x: x, eps=[]))
    assert verify_norm.parametrize_checks is parametrize_checks


def test_targets_may_be_callables_and_have_options_of_their_own():
    mark = parametrize_checks(
        "a:b",
        partial(rms, eps=1e-6),
        contract={"a:b": "llama"},
        only="ndim=2",
        expected_failures={"memory": "all", "a:b": {"accuracy": "its own"}},
    )
    kernels, expected = mark.args
    assert [(one.target[-3:], one.bind, one.contract, one.only) for one in kernels] == [
        ("a:b", "", "llama", "ndim=2"),
        ("rms", "eps=1e-06", "", "ndim=2"),
    ]
    assert expected == ({"memory": "all", "accuracy": "its own"}, {"memory": "all"})


def test_loading_the_plugin_loads_nothing_heavy():
    code = f"import pytest, sys; import verify_norm.pytest_plugin; print([m for m in {HEAVY} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
