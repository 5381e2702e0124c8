"""`verify-norm same` as a command."""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

import verify_norm
from verify_norm.cli.app import app
from verify_norm.core.errors import UsageError
from verify_norm.equality import compare, onset
from verify_norm.report import schema
from verify_norm.search import planning

FILE = Path(__file__).parent.parent / "support" / "pairs.py"
OP = ("--op", "rmsnorm_fwd", "--examples", 0, "--device", "cpu")


def run(*arguments):
    result = CliRunner().invoke(app, ["same", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result, " ".join(result.output.split())


@pytest.fixture
def few(monkeypatch):
    table = planning.table_of
    monkeypatch.setattr(planning, "table_of", lambda *args, **given: (table(*args, **given)[0][:9], [], ()))
    monkeypatch.setattr(onset, "LONGEST", 18)


@pytest.mark.slow
def test_a_difference_is_shown_and_its_replay_line_reproduces_it(few, tmp_path):
    path = tmp_path / "same.json"
    result, text = run(f"{FILE}:plain", f"{FILE}:rounded", *OP, "--in-process", "--json", path)
    assert result.exit_code == 1, text
    for said in (
        "float32: identical in",
        "DIFFER y[",
        "contract xhat: xhat for bfloat16 is not rounded in A, rounded in B",
    ):
        assert said in text
    document = json.loads(path.read_text())
    assert document["identical"] is False
    assert not list(jsonschema.Draft202012Validator(schema.schema("same")).iter_errors(document))
    line = next(line for line in result.output.splitlines() if line.lstrip().startswith("replay"))
    assert line.split()[1:3] == ["verify-norm", "same"]
    replayed, said = run(*shlex.split(line)[3:], "--in-process")
    assert replayed.exit_code == 1, said
    assert re.search(r"DIFFER y\[.*\] is", said)
    assert f"{FILE}:rounded: 1 case in" in said
    found = verify_norm.same(f"{FILE}:plain", f"{FILE}:rounded", replay=shlex.split(line)[-1], isolate=False)
    assert (found.ok, found.cases) == (False, 1)


def test_the_same_bits_exit_with_0(few):
    result, text = run(f"{FILE}:plain", f"{FILE}:rewritten", *OP, "--in-process")
    assert result.exit_code == 0, text
    assert "SAME" in text
    assert "NaN equals NaN of any sign and payload; 0 and −0 differ" in text


@pytest.mark.nightly
@pytest.mark.slow
def test_a_kernel_that_ends_its_process_is_survived(few):
    result, text = run(f"{FILE}:plain", f"{FILE}:exits", *OP, "--dtype", "fp32")
    assert result.exit_code == 1, text
    assert "B fails where A returns: it ended its process with exit status 3" in text


def test_what_was_interrupted_is_run_again_with_the_same_time(few, monkeypatch):
    def interrupted(walk):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "onsets", interrupted)
    result, text = run(f"{FILE}:plain", f"{FILE}:rewritten", *OP, "--in-process", "--dtype", "fp32")
    assert result.exit_code == 3, text
    assert "the run was interrupted; run it again, or accept it with --allow-incomplete" in text


def test_the_operator_of_one_is_that_of_the_other(few):
    for kernels in ((f"{FILE}:fast", f"{FILE}:plain"), (f"{FILE}:plain", f"{FILE}:fast")):
        result, text = run(
            *kernels,
            "--dtype",
            "fp32",
            "--in-process",
            "--device",
            "cpu",
            "--replay",
            '{"kernel": "k", "shape": [2, 4]}',
        )
        assert result.exit_code == 0, text
        assert "1 case in" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rmsnorm_fwd", "rmsnrm_fwd"), "unknown kernel 'rmsnrm_fwd' (did you mean rmsnorm_fwd"),
        (("rmsnorm_fwd", "layernorm_fwd"), "expected two kernels of one operator, got rmsnorm_fwd for rmsnorm_fwd and"),
        (("rmsnorm_fwd", "layernorm_fwd", "--op", "rmsnorm_fwd"), "is a kernel for layernorm_fwd, not for rmsnorm_fwd"),
        ((f"{FILE}:fast", f"{FILE}:fast"), "cannot infer the op from the name 'fast'"),
        (("rmsnorm_fwd", "rmsnorm_fwd", "--dtype", "int8"), "unknown dtype 'int8'"),
        (("rmsnorm_fwd", "rmsnorm_fwd", "--replay", "{"), "cannot parse the spec as JSON"),
        (
            ("rmsnorm_fwd", "rmsnorm_fwd", "--replay", '{"kernel": "k", "shape": [2], "normalized_ndim": 2}'),
            "normalized_ndim",
        ),
        (("rmsnorm_fwd", "rmsnorm_fwd", "--json", "/no/folder/x.json"), "cannot write"),
        (("rmsnorm_fwd",), "Missing argument 'B'"),
    ],
)
def test_a_mistake_is_one_line(arguments, said):
    result, text = run(*arguments, "--device", "cpu")
    assert result.exit_code == 2
    assert said in text


def test_python_compares_one_operator():
    with pytest.raises(UsageError, match="expected two kernels of one operator"):
        verify_norm.same("rmsnorm_fwd", "layernorm_fwd", device="cpu")
