"""`verify-norm exhaust` as a command."""

import json
import re
import shlex
from pathlib import Path

import pairs
import pytest
from typer.testing import CliRunner

import verify_norm
from verify_norm.cli.app import app
from verify_norm.core.errors import FindingsError, UsageError
from verify_norm.exhaustive import run as running

FILE = Path(__file__).parent.parent / "support" / "pairs.py"
KERNEL = ("--kernel", f"{FILE}:plain", "--op", "rmsnorm_fwd", "--device", "cpu")


def run(*arguments, kernel=KERNEL):
    result = CliRunner().invoke(app, ["exhaust", *map(str, (*kernel, *arguments))])
    assert "Traceback" not in result.output
    return result, " ".join(result.output.split())


def test_a_right_part_passes_and_is_not_called_all(tmp_path):
    result, text = run("--items", "0x3F803F00:0x3F804000", "--in-process", "--json", tmp_path / "r.json")
    assert result.exit_code == 0, text
    numbers = "256 of 4,294,967,296 rows of 2 bfloat16 values (numbers 1,065,369,344 to 1,065,369,599)"
    assert re.search(rf"PASS .*pairs.py:plain: {re.escape(numbers)}", text)
    assert "all " not in text.partition("PASS")[2]
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["verdict"], document["all"], document["environment"]["device"][:3]) == ("PASS", False, "CPU")
    assert sum(document["tallies"][0]["ulp"]["histogram"]) == 512


def test_a_wrong_item_is_shown_and_its_replay_line_reproduces_it():
    wrong = ("--kernel", f"{FILE}:rounded", *KERNEL[2:])
    result, text = run("--items", "0x3F813F00:0x3F814000", "--eps", "0.5", "--in-process", kernel=wrong)
    assert result.exit_code == 1, text
    assert re.search(r"FAIL accuracy: \d+ elements of y exceed the error bound; the first: y\[[01]\] of item", text)
    line = next(line for line in result.output.splitlines() if line.lstrip().startswith("replay"))
    replayed, said = run(*shlex.split(line)[3:], "--in-process", "--device", "cpu", kernel=())
    assert replayed.exit_code == 1, said
    assert "1 of 4,294,967,296" in said


@pytest.mark.slow
def test_a_crash_is_a_finding_with_its_items_and_the_run_before_it_is_kept(tmp_path):
    wrong = ("--kernel", f"{FILE}:exits", *KERNEL[2:])
    result, text = run("--items", "0:50", "--resume", tmp_path / "r.json", kernel=wrong)
    assert result.exit_code == 1, text
    said = "the kernel was lost in the items 0 to 49: it ended its process with exit status 3"
    assert said in text
    assert json.loads((tmp_path / "r.json").read_text())["problem"] == said


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MOST", {"cpu": 64})
    more = ("--items", "0:100000", "--seconds", 0.1, "--in-process")
    result, text = run(*more)
    assert result.exit_code == 3
    assert "the time limit of 0.1 s was reached; --resume FILE keeps what is done" in text
    path = tmp_path / "r.json"
    done = []
    for _ in range(2):
        result, text = run(*more, "--resume", path)
        assert result.exit_code == 3
        assert f"the same command resumes from {path}" in text
        done.append(json.loads(path.read_text())["done"])
    assert 0 < done[0] < done[1]


BAD = [
    (("--space", "rows3"), "unknown space 'rows3' (did you mean"),
    (("--dtype", "fp8"), "unknown dtype 'fp8'"),
    (("--dtype", "fp32"), "2**64 rows of float32: take --dtype bf16 or fp16"),
    (("--eps", "nan"), "eps: expected a finite number of 0 or more, got nan"),
    (("--items", "3"), "--items: expected FIRST:LAST"),
    (("--seconds", 0), "0.1"),
    (("--resume", "/nowhere/r.json"), "no writable folder /nowhere"),
    (("--resume", FILE), "it is a file of something else"),
    (("--resume", "-"), "--resume: expected a file, got -"),
    (("--json", "r.json", "--resume", "r.json"), "--json and --resume are both r.json"),
    (("--only", "N%8=0"), "does not take rows of 2 bfloat16 values: "),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[" ".join(map(str, options)) for options, _ in BAD])
def test_bad_options_are_one_line(options, said):
    result, text = run(*options, "--in-process")
    assert result.exit_code == 2
    assert said in text
    assert len(result.stderr.strip().splitlines()) == 1 or "Usage" in text


def test_it_is_one_call_in_python():
    found = verify_norm.exhaust(f"{FILE}:plain", "rmsnorm_fwd", items="0:64", isolate=False, device="cpu")
    assert found.ok
    found.raise_for_findings()
    wrong = verify_norm.exhaust(pairs.rmsnorm("half"), "rmsnorm_fwd", items="0:64", isolate=False, device="cpu")
    with pytest.raises(FindingsError, match="rstd: expected float32, got float16"):
        wrong.raise_for_findings()
    with pytest.raises(UsageError, match="two directions"):
        verify_norm.exhaust("torch.nn:RMSNorm", "rmsnorm", isolate=False, device="cpu")
