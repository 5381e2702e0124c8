"""The Python interface: audit, replay, the decorator, and what they say."""

import importlib.util
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from documents import PLAIN

import verify_norm
from verify_norm import CaseSpec, Contract, Finding, FindingsError, UsageError, audit, replay
from verify_norm.core.serial import spec_text
from verify_norm.loading.targets import target_of
from verify_norm.report import documents

FAST = {"dtypes": ["fp32"], "checks": ["signature", "accuracy"], "examples": 0, "device": "cpu"}


@pytest.fixture(autouse=True)
def few(few_corners):
    """A fourth of the corner table: it detects what is wrong here, and shows that strided rows are."""
    few_corners(slice(0, None, 4))


def rms(X, W, eps=1e-6):
    wide = X.double()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (y if W is None else y * W.double()).to(X.dtype)


@verify_norm.kernel(op="rmsnorm_fwd", contract=Contract(xhat="x"))
def declared(X, W, eps):
    xhat = rms(X, None, eps)
    return xhat if W is None else (xhat.double() * W.double()).to(X.dtype)


def of_dense_rows(X, W, eps):
    return rms(X, W, eps) if X.is_contiguous() else rms(X, W, eps) * 1.01


class Callable:
    def __call__(self, X, W, eps):
        return rms(X, W, eps)


an_instance = Callable()


def forgets_eps(X, W, eps):
    return rms(X, W, 0.0)


@pytest.mark.slow
def test_a_function_of_a_module_runs_in_a_process_of_its_own():
    report = audit(rms, "rmsnorm_fwd", **FAST)
    assert report.ok
    assert report.kernel == report.target == f"{__file__}:rms"
    assert report.environment["isolation"] == "a process of its own"
    report.raise_for_findings()


def test_what_cannot_be_found_again_runs_here():
    report = audit(lambda x, weight, eps: rms(x, weight, eps), "rmsnorm_fwd", **FAST)
    assert report.ok
    assert report.target == ""
    assert report.environment["isolation"].startswith("none: the kernel is not an attribute")
    assert report.kernel == "<lambda>"


@pytest.mark.slow
def test_both_directions_are_two_reports_that_are_asked_as_one():
    reports = audit(rms, "rmsnorm", **FAST)
    assert reports.ok
    assert [report.op for report in reports] == ["rmsnorm_fwd", "rmsnorm_bwd"]
    reports.raise_for_findings()
    wrong = audit(forgets_eps, "rmsnorm", **FAST)
    assert not wrong.ok
    assert {f.output for f in wrong.findings} == {"y", "dx", "dweight"}
    with pytest.raises(
        FindingsError, match=r"(?s)forgets_eps \(rmsnorm_fwd\): 1 finding .*\(rmsnorm_bwd\): 2 findings"
    ):
        wrong.raise_for_findings()


@pytest.mark.slow
def test_findings_read_as_an_assertion_and_their_line_replays():
    target = target_of(forgets_eps)  # by its file, or by its module where a test before has made that importable
    report = audit(forgets_eps, "rmsnorm_fwd", **FAST)
    assert not report.ok
    with pytest.raises(AssertionError) as caught:
        report.raise_for_findings()
    title, finding, *rows = str(caught.value).splitlines()
    count = len(report.findings)
    assert title == f"{target} (rmsnorm_fwd): {count} finding{'s' * (count > 1)} in {report.cases} cases"
    assert finding.startswith("accuracy: y[0] is ")
    assert "ULP (float32) from float64; allowed" in finding
    assert [row.split()[0] for row in rows[:5]] == ["case", "data", "element", "got", "expected"]
    spec = spec_text(report.kernel, report.findings[0].spec, "rmsnorm_fwd")
    assert f"  replay    verify-norm replay '{spec}'" in rows
    again = replay(forgets_eps, spec, device="cpu", checks=["accuracy"])
    assert [f.message for f in again.findings] == [f.message for f in report.findings]
    assert replay(rms, report.findings[0].spec, "rmsnorm_fwd", device="cpu").ok


@pytest.mark.slow
def test_a_bound_kernel_replays_as_it_was_bound():
    report = audit(f"{__file__}:forgets_eps", "rmsnorm_fwd", bind="eps=0.5", **FAST)
    assert report.bind == "eps=0.5"
    with pytest.raises(FindingsError, match=r"\"eps\": 0\.5.*' --bind eps=0\.5"):
        report.raise_for_findings()


def test_what_no_command_can_find_is_replayed_by_a_call():
    report = audit(lambda x, weight, eps: forgets_eps(x, weight, eps), "rmsnorm_fwd", **FAST)
    with pytest.raises(FindingsError, match=r"replay    verify_norm\.replay\(<the kernel>, '\{\"kernel\""):
        report.raise_for_findings()


def test_nothing_checked_is_no_pass():
    report = audit(rms, "rmsnorm_fwd", **(FAST | {"checks": ["statistics"]}))
    assert not report.ok
    with pytest.raises(FindingsError, match="nothing was checked"):
        report.raise_for_findings()


@pytest.mark.slow
def test_what_a_kernel_takes_and_what_partial_binds_is_kept_and_told():
    report = verify_norm.verify(
        partial(rms, eps=1e-6), "rmsnorm_fwd", only="ndim=2", **(FAST | {"dtypes": torch.bfloat16})
    )
    assert report.ok
    assert (report.only, report.bind) == ("ndim=2,eps=1e-06", "eps=1e-06")
    assert report.environment["isolation"] == "a process of its own"
    assert report.within == " for 2-D input, eps = 1e-06"
    wrong = verify_norm.verify(partial(forgets_eps, eps=1e-6), "rmsnorm_fwd", **FAST)
    assert not wrong.ok, "the eps that is bound is the one that it has to use"
    assert all(f.spec.eps == 1e-6 for f in wrong.findings)
    assert "--bind eps=1e-06" in str(wrong)


@pytest.mark.nightly
@pytest.mark.slow
def test_limits_are_found_and_declared_and_hide_nothing_else():
    """A kernel that computes something else of strided rows; with what is suggested it passes, a worse one does not."""
    found = verify_norm.verify(of_dense_rows, "rmsnorm_fwd", **FAST)
    assert found.outside == "contiguous=x"
    assert "No case within --only contiguous=x fails, and most others do" in " ".join(str(found).split())
    line = f"verify-norm --kernel {found.kernel} --op rmsnorm_fwd --dtype float32 --checks signature,accuracy --only"
    assert f"  {line} contiguous=x\n" in str(found)
    assert verify_norm.verify(of_dense_rows, "rmsnorm_fwd", only=found.outside, **FAST).ok
    assert not verify_norm.verify(forgets_eps, "rmsnorm_fwd", only=found.outside, **FAST).ok
    assert verify_norm.verify(forgets_eps, "rmsnorm_fwd", **FAST).outside == ""


@pytest.mark.slow
def test_a_report_shows_itself(tmp_path, monkeypatch):
    report = verify_norm.verify(forgets_eps, "rmsnorm_fwd", **FAST)
    assert str(report).splitlines()[0].startswith("output  dtype")
    assert "FAIL" in str(report)
    assert "\x1b" not in str(report)
    assert repr(report) == f"<Report {report.kernel} (rmsnorm_fwd): FINDINGS, {report.cases} cases, 1 findings>"
    assert documents.load(report.to_json(tmp_path / "r.json")).findings == report.findings
    assert documents.read(str(tmp_path / "r.json"))[0].op == "rmsnorm_fwd"
    assert report.to_markdown().startswith("### ❌ FAIL")
    hostile = replace(report, kernel="<b>&amp;")
    assert "<td>&lt;b&gt;&amp;amp;</td>" in hostile._repr_html_()
    assert report._repr_html_().count("<li>") == 1
    both = verify_norm.Reports([report, report])
    assert str(both) == str(report) * 2
    assert both.verdict is report.verdict
    with pytest.raises(UsageError, match=r"cannot write /no/such/r\.json"):
        report.to_json("/no/such/r.json")


@pytest.fixture
def frames(monkeypatch):
    """pandas, or where it is not installed what is used of it."""
    if importlib.util.find_spec("pandas") is not None:
        return

    class DataFrame:
        def __init__(self, rows, columns):
            self.rows, self.columns = [dict(zip(columns, row, strict=True)) for row in rows], columns

        def to_dict(self, orient):
            return {"records": self.rows}[orient]

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))


def test_findings_are_a_frame_with_the_same_columns_where_there_are_none(frames):
    finding = Finding("k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)), (1, 2), 1.5, 1.25, 3.0, 0.5)
    other = replace(finding, output=None, check="crash", index=None, got=None, want=None, ulp=None, allowed=None)
    found = verify_norm.Reports([PLAIN, replace(PLAIN, findings=(finding, other))]).findings_frame()
    first, second = found.to_dict("records")
    assert (first["check"], first["output"], first["shape"]) == ("accuracy", "y", (4, 8))
    assert (first["index"], first["got"], first["expected"]) == ((1, 2), 1.5, 1.25)
    assert shlex.split(first["replay"])[:2] == ["verify-norm", "replay"]
    assert (second["kernel"], second["check"]) == ("k", "crash")
    assert list(PLAIN.findings_frame().columns) == list(found.columns) == list(first)
    assert PLAIN.findings_frame().to_dict("records") == []


@pytest.mark.slow
def test_python_obeys_the_table_of_the_project(tmp_path, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").write_text('[tool.verify-norm]\nchecks = ["accuracy"]\nonly = "ndim=2"\n')
    monkeypatch.chdir(tmp_path)
    few = {"dtypes": "fp32", "examples": 0, "device": "cpu"}
    report = verify_norm.verify(rms, "rmsnorm_fwd", **few)
    assert (report.settings.checks, report.only) == (("accuracy",), "ndim=2")
    assert f"checks, only are from {tmp_path / 'pyproject.toml'}" in capsys.readouterr().err
    report = verify_norm.verify(rms, "rmsnorm_fwd", checks="signature", config=False, **few)
    assert (report.settings.checks, report.only) == (("signature",), "")
    (tmp_path / "pyproject.toml").write_text("[tool.verify-norm]\nexampels = 3\n")
    with pytest.raises(UsageError, match="unknown key 'exampels'"):
        verify_norm.verify(rms, "rmsnorm_fwd", **few)


def test_a_class_that_can_be_called_is_named_by_an_instance():
    with pytest.raises(
        UsageError, match=r"is a class, but neither .*; pass an instance, such as norm = Callable\(…\) and "
    ):
        verify_norm.verify(Callable, "rmsnorm_fwd")
    assert verify_norm.verify(an_instance, "rmsnorm_fwd", **FAST).environment["isolation"] == "a process of its own"


@pytest.mark.slow
def test_a_declaration_is_found_and_changes_nothing():
    assert declared(torch.ones(2, 3), None, 0.0).tolist() == [[1.0] * 3] * 2
    report = audit(declared, **(FAST | {"dtypes": ["bf16"]}))
    assert report.op == "rmsnorm_fwd"
    assert report.contract.xhat == "x"
    assert report.ok
    strict = audit(declared, contract=Contract(), **(FAST | {"dtypes": ["bf16"]}))
    assert not strict.ok
    assert (strict.settings.contract, {one.contract for one in strict.diagnoses}) == ("strict", {"xhat=x"})
    with pytest.raises(FindingsError, match="--contract strict,xhat=x declares it"):
        strict.raise_for_findings()
    assert audit(declared, contract="strict,xhat=x", **(FAST | {"dtypes": ["bf16"]})).ok


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((3,), {}, "expected a callable, or its name as 'path/file.py:fn', got 3 of type int"),
        ((lambda x: x,), {}, "cannot infer the op from the name '<lambda>': say it with --op layernorm_fwd, or"),
        (("nothing",), {}, "unknown kernel 'nothing'"),
        ((rms, "rmsnorm"), {"checks": ["acuracy"]}, "unknown check 'acuracy' (did you mean accuracy?)"),
        ((rms, "rmsnorm"), {"dtypes": ["int8"]}, "unknown dtype 'int8'"),
        ((rms, "rmsnorm"), {"dtypes": "zz"}, "unknown dtype 'zz'"),
        ((rms, "rmsnorm"), {"dtypes": []}, "dtypes: expected at least one dtype"),
        ((rms, "rmsnorm"), {"checks": "signature,acuracy"}, "unknown check 'acuracy'"),
        ((rms, "rmsnorm"), {"contract": 3}, 'contract: expected a contract, such as "llama,inplace=y:x", got 3'),
        ((rms, "rmsnorm"), {"contract": "xhat=y"}, "contract: xhat: expected none, float64, float32, "),
        ((rms, "rmsnorm"), {"contract": "llam"}, "contract: unknown contract 'llam' (did you mean llama?)"),
        ((rms, "rmsnorm"), {"examples": -1}, "examples: expected a whole number, 0 or more, got -1"),
        ((rms, "rmsnorm"), {"seconds": -1.0}, "seconds: expected a number, 0.1 or more, got -1.0"),
        ((rms, "rmsnorm"), {"seed": -1}, "seed: expected a whole number, 0 or more, got -1"),
        ((rms, "rmsnorm"), {"timeout": 0}, "timeout: expected a number, 0.1 or more, got 0"),
        ((rms, "rmsnorm"), {"shapes": "large"}, "shapes: expected one of fuzz, models, all, got 'large'"),
        ((rms, "rmsnorm"), {"corpus": "/no/such/c.jsonl"}, "there is no corpus /no/such/c.jsonl"),
        ((rms, "rmsnorm"), {"device": "tpu"}, "unknown device 'tpu'"),
        ((rms, "rmsnorm"), {"bind": "y"}, "cannot parse --bind 'y'"),
    ],
)
def test_mistakes_are_usage_errors(arguments, options, said):
    with pytest.raises(UsageError) as caught:
        audit(*arguments, **options)
    assert said in str(caught.value)


def test_types_and_checks_are_named_as_on_the_command_line():
    report = audit(rms, "rmsnorm_fwd", **(FAST | {"dtypes": "fp32,bf16", "checks": "signature, accuracy"}))
    assert report.ok
    assert {tally.dtype for tally in report.tallies} == {"float32", "bfloat16"}
    assert {check.name for check in report.checks} == {"signature", "accuracy"}


def test_shapes_timeout_and_corpus_are_options_too(tmp_path):
    (tmp_path / "worst.jsonl").write_text(spec_text(f"{__file__}:forgets_eps", CaseSpec((3, 5)), "rmsnorm_fwd") + "\n")
    few = {"op": "rmsnorm_fwd", "checks": "accuracy", "dtypes": "fp32", "device": "cpu", "isolate": False}
    report = audit(forgets_eps, corpus=str(tmp_path / "worst.jsonl"), examples=0, timeout=9, **few)
    assert report.settings.timeout == 9
    assert report.findings[0].after == 1  # the case of the corpus is the first
    models = audit(rms, shapes="models", **few)
    assert (models.settings.shapes, models.settings.examples) == ("models", 0)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_python_door_loads_no_command_line():
    code = (
        "import sys, verify_norm\n"
        "few = dict(checks='signature', dtypes='fp32', examples=0, device='cpu', isolate=False)\n"
        "report = verify_norm.audit('rmsnorm_fwd_torch', **few)\n"
        "print(report.ok, [m for m in ('typer', 'rich', 'click', 'verify_norm.cli') if m in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "True []\n", run.stderr


def test_a_case_that_python_code_makes_is_looked_at_as_a_line_is():
    with pytest.raises(UsageError, match="eps: expected a finite number of 0 or more, got -1"):
        replay(rms, CaseSpec((2, 3), eps=-1), "rmsnorm_fwd", device="cpu")


def test_no_module_has_the_name_of_a_public_function():
    """Importing it would put the module in the function's place."""
    names = [name for name in verify_norm.__all__ if name.isidentifier()]
    assert [name for name in names if importlib.util.find_spec(f"verify_norm.{name}") is not None] == []


TRITON_FIRST = """
import triton
import triton.language as tl
import torch
import verify_norm
@triton.jit
def _copy(X, Y, N: tl.constexpr):
    cols = tl.arange(0, N)
    tl.store(Y + cols, tl.load(X + cols))
def rmsnorm_fwd(x, weight, eps):
    y = torch.empty_like(x)
    _copy[(1,)](x, y, N=1)
    return y
report = verify_norm.audit(rmsnorm_fwd, device="cpu", isolate=False, checks=["signature"], examples=0)
try:
    report.raise_for_findings()
except verify_norm.FindingsError as error:
    print(error)
print(report.checked, len(report.findings))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_triton_kernel_of_a_script_that_has_no_interpreter(tmp_path):
    """The script cannot be imported again, so its kernels run as they were compiled: for a GPU."""
    if torch.cuda.is_available():
        pytest.skip("says so where there is no GPU")
    path = tmp_path / "script.py"
    path.write_text(TRITON_FIRST)
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env={"PATH": "", "HOME": "/tmp"})
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "False 0"
    assert "nothing was checked: x has no element in all cases that ran. " in run.stdout
    assert "it does not take CPU tensors (" in run.stdout
