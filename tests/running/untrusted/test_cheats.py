"""An untrusted kernel is judged where it cannot reach: cheats are detected, right kernels pass, nothing gets out."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verify_norm import UsageError, replay, verify
from verify_norm.cli import app as app_module
from verify_norm.cli.app import app
from verify_norm.core.errors import Exit
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo.untrusted import CHEATS, TOUCHED
from verify_norm.search import sweep

CHEATING = "verify_norm.kernels.zoo.untrusted"
SUPPORT = Path(__file__).parents[2] / "support"
STRANGE = SUPPORT / "untrusted.py"
FEW = {"dtypes": "fp32", "examples": 0, "device": "cpu", "config": False, "timeout": 5.0, "seconds": 60.0}
ALONE = {"untrusted": True, "device": "cpu", "config": False}
VALUES = {"checks": "crash,signature,accuracy"}


def judged(target, op="rmsnorm_fwd", **options):
    return verify(target, op, **{**FEW, "untrusted": True, **options})


@pytest.fixture(autouse=True)
def corners(few_corners, unexplained):
    few_corners(slice(6))


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_detected(name, monkeypatch):
    monkeypatch.delenv(TOUCHED, raising=False)
    report = judged(f"{CHEATING}:{name}", **VALUES)
    assert report.verdict is Exit.FINDINGS, report
    message = report.findings[0].message
    assert {
        "leaves": "it ended its process with exit status 0" in message,
        "answers_by_hand": message.startswith("malformed answer: expected"),
    }.get(name, re.match(r"y\[.*ULP", message)), message
    assert TOUCHED not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, passes in CHEATS.items() if passes])
def test_beside_its_judge_each_cheat_passes(name, monkeypatch):
    monkeypatch.delenv(TOUCHED, raising=False)
    report = judged(f"{CHEATING}:{name}", untrusted=False, **VALUES)
    assert report.verdict is Exit.PASS, report.findings
    assert (TOUCHED in os.environ) == (name == "forges_pickle"), "its verdict ran code here"


@pytest.mark.parametrize("name", ["escapes", "signals"])
def test_the_sandbox_has_no_way_out(name):
    report = judged(f"{CHEATING}:{name}", **VALUES)
    assert "in a sandbox" in report.environment["isolation"]
    lacking = re.search(r"\((no .*)\)", report.environment["isolation"])
    if lacking:
        pytest.skip(f"this system has {lacking[1]}")
    assert report.findings, "y is wrong"
    assert "it can " not in report.findings[0].message


@pytest.mark.parametrize(
    ("target", "op"),
    [
        ("rmsnorm_fwd", "rmsnorm_fwd"),
        pytest.param("layernorm_bwd", "layernorm_bwd", marks=pytest.mark.slow),
        ("torch.nn:GroupNorm", "groupnorm_fwd"),
        (f"{STRANGE}:in_place", "rmsnorm_fwd"),
        (f"{STRANGE}:Module", "rmsnorm_bwd"),
        (f"{STRANGE}:prints", "rmsnorm_fwd"),
    ],
)
def test_right_kernels_pass(target, op):
    contract = "inplace=y:x" if "in_place" in target else None
    report = judged(target, op, contract=contract, seed=3)
    assert report.verdict is Exit.PASS, report.findings
    assert report.settings.seed == 3


@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("writes_into_weight", "memory", "bytes in weight, an input"),
        ("writes_behind_x", "memory", "behind the last element of x"),
        ("writes_behind_its_own", "memory", "behind the last element of"),
        ("keeps_its_output", "calls", "although the caller still holds it"),
        ("counts_calls", "determinism", "in the next"),
        ("disables_gradients", "effects", "torch.is_grad_enabled()"),
        ("wrong_under_no_grad", "modes", "under torch.no_grad()"),
        ("refuses", "signature", "not today"),
        ("declares_a_weak_contract", "accuracy", "ULP"),
        pytest.param("hangs", "crash", "it did not return after", marks=pytest.mark.slow),
        ("answers_twice", "crash", "malformed answer"),
    ],
)
def test_wrong_kernels_are_detected_by_proxy(name, check, said):
    if name == "hangs":  # the first calls may build
        report = judged(f"{STRANGE}:{name}", checks="crash", timeout=0.3)
    else:
        spec = CaseSpec((2, 8), call="many calls")
        report = replay(f"{STRANGE}:{name}", spec, "rmsnorm_fwd", checks=f"{check},crash", **ALONE)
    found = [finding.message for finding in report.findings if finding.check == check]
    assert found, report.findings
    assert said in found[0]


@pytest.mark.slow
def test_a_seed_is_the_systems_and_each_run_has_its_own(monkeypatch):
    seeds, examine_in = [], sweep.examine_in
    monkeypatch.setattr(
        sweep,
        "examine_in",
        lambda runner, spec, *rest, **more: (seeds.append(spec.seed), examine_in(runner, spec, *rest, **more))[1],
    )
    reports = [judged("rmsnorm_fwd", checks="signature") for _ in range(2)]
    assert reports[0].settings.seed != reports[1].settings.seed
    assert 0 not in seeds
    assert len(set(seeds)) > 1, "the corner table has data of its own in each run"


@pytest.mark.parametrize(
    ("kernel", "op", "options", "said"),
    [
        (len, "rmsnorm_fwd", {}, "expected the name of a kernel, got <built-in function len>"),
        (
            "rmsnorm_fwd",
            None,
            {"isolate": False},
            r"must run in another process; remove isolate=False \(--in-process\)",
        ),
        ("rmsnorm_fwdd", None, {}, "unknown kernel 'rmsnorm_fwdd'"),
        (f"{STRANGE}:nothing", "rmsnorm_fwd", {}, "has no 'nothing'; its callables are"),
        (f"{STRANGE}:in_place", None, {}, "cannot infer the op from the name 'in_place'"),
        (f"{STRANGE}:in_place", "rmsnorm", {"contract": "nonsense"}, "contract"),
        ("absent.py:f", "rmsnorm_fwd", {}, "no file absent.py"),
        (f"{SUPPORT}/untrusted_import.py:rmsnorm_fwd", None, {}, "cannot be imported: SystemExit: 0"),
        ("verify_norm.kernels.zoo.untrusted:replays", "rmsnorm_fwd", {"untrusted": "yes"}, "untrusted: expected true"),
    ],
)
def test_bad_input_is_one_line(kernel, op, options, said):
    with pytest.raises(UsageError, match=said) as error:
        judged(kernel, op, **options)
    assert len(str(error.value).splitlines()) == 1


def test_a_case_runs_again_from_its_line():
    again = replay(f"{CHEATING}:reads_frames", CaseSpec((2, 8)), "rmsnorm_fwd", **ALONE, **VALUES)
    assert again.verdict is Exit.FINDINGS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--resume"], "--untrusted and --resume: choose one of them"),
        (["--in-process"], "--untrusted and --in-process: choose one of them"),
        (["--sanitize", "memcheck"], "--untrusted and --sanitize: choose one of them"),
        (["--kernel", str(STRANGE)], "name one function, such as path/file.py:fn"),
        (["--kernel", f"{SUPPORT}/untr*.py:in_place"], "name one function, such as path/file.py:fn"),
    ],
)
def test_the_command_line_refuses_what_would_run_here(options, said):
    result = CliRunner().invoke(app, ["--untrusted", "--no-config", "--kernel", "rmsnorm_fwd", *options])
    assert result.exit_code == Exit.NOTHING
    assert said in " ".join(result.output.split())


def test_the_command_line_has_a_secret_seed_too(monkeypatch):
    seeds = []
    monkeypatch.setattr(app_module, "_searched", lambda asked, *, resume: seeds.append(asked.settings.seed) or [])
    monkeypatch.setattr(app_module, "deliver", lambda *_, **__: 0)
    for more in ([], [], ["--seed", "0"]):
        CliRunner().invoke(app, ["-k", "rmsnorm_fwd", "--device", "cpu", "--untrusted", *more])  # ends without a report
    assert seeds[0] != seeds[1]
    assert seeds[2] == 0
