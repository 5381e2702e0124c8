"""The audit as a whole: its parts, a kernel that does not survive one, and what is printed of it."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from rich.console import Console

from verify_norm import cases, registry
from verify_norm.auditing.audit import audit, hunted
from verify_norm.auditing.heat import MOST_COLUMNS, MOST_ROWS, heat
from verify_norm.auditing.model import Audit
from verify_norm.auditing.ulps import survey, typical
from verify_norm.bind import UsageError
from verify_norm.data import refusal
from verify_norm.execute import execute
from verify_norm.ops import OPS
from verify_norm.report import audit as form
from verify_norm.report import json as json_form
from verify_norm.report.model import Settings
from verify_norm.search import search
from verify_norm.spec import CaseSpec, Contract, Kernel


def printed(document: Audit) -> str:
    out = io.StringIO()
    form.show(document, Console(file=out, width=160))
    return out.getvalue()


def one_pass(x, weight, bias, eps):
    """In float32: E[x²] − mean², which cancels."""
    r = x.float()
    mean = r.mean(-1, keepdim=True)
    rstd = (r.square().mean(-1, keepdim=True) - mean.square() + eps).rsqrt()
    y = (r - mean) * rstd
    y = y if weight is None else y * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


@pytest.fixture(scope="module")
def wrong():
    settings = Settings(("float32",), examples=10, seconds=15.0, isolate=False)
    kernel = Kernel("one_pass", "layernorm_fwd", run=one_pass, contract=Contract(), dtypes=("float32",))
    return audit(kernel, search(kernel, settings), settings)


def test_an_audit_says_where_accuracy_is_lost_and_why(wrong):
    assert not wrong.ok
    (offset,) = [one for one in wrong.ladders if (one.name, one.output) == ("offset", "y")]
    assert offset.first_over is not None
    assert offset.first_over <= 1e4
    assert offset.resembles == "one_pass"
    assert wrong.fingerprint is not None
    assert wrong.fingerprint.said("variance") == "one_pass"
    assert any("variance=centered" in line for line in wrong.disagreements)
    text = printed(wrong)
    assert "FAIL one_pass" in text
    assert f"from {offset.first_over:.3g}" in text
    assert "disagreement" in text


def test_an_audit_survives_json(wrong):
    assert json_form.load_all(json_form.dump(wrong)) == (wrong,)
    assert TypeAdapter(Audit).validate_json(json_form.dump(wrong)) == wrong


def test_a_right_kernel_passes_its_audit():
    kernel = registry.load("rmsnorm_fwd_torch")
    settings = Settings(("float32", "bfloat16"), examples=5, seconds=15.0, isolate=False)
    found = audit(kernel, search(kernel, settings), settings)
    assert found.ok, printed(found)
    assert {one.dtype for one in found.ulps} == {"float32", "bfloat16"}
    half = next(one for one in found.ulps if (one.output, one.dtype) == ("y", "bfloat16"))
    assert half.mean == pytest.approx(0.25, abs=0.01)
    assert half.correct > 0.99
    assert "pass rmsnorm_fwd_torch: every check" in printed(found)


def test_a_kernel_that_is_lost_in_one_part_is_told(monkeypatch):
    monkeypatch.setattr("verify_norm.auditing.audit.CASES", 2)
    kernel = registry.load("tests/hostile.py:exits", "rmsnorm_fwd")
    settings = Settings(("float32",), checks=("signature",), examples=0, seconds=1.0)
    found = audit(kernel, search(kernel, settings), settings)
    lost = {skip.what: skip.reason for skip in found.skipped}
    assert "exit status 3" in lost["ladders"]  # some of its rows are longer than the kernel survives
    assert "not done: ladders: the kernel was lost" in printed(found)


def test_a_kernel_that_hangs_in_a_hunt_is_told(monkeypatch):
    monkeypatch.setattr("verify_norm.auditing.audit.PATIENCE", 3.0)
    kernel = registry.load("tests/hostile.py:spins", "rmsnorm_fwd")
    with pytest.raises(UsageError, match="was lost in the hunt: it has not come back after 4 s"):
        hunted(kernel, 1.0, None, "cpu", 0, (), (CaseSpec((2, 4096)),), True)


def test_a_map_shows_where_the_error_is():
    def run(x, weight, eps):
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        y[5, 300] += 1.0
        return y

    kernel = Kernel("k", "rmsnorm_fwd", run=run)
    spec = CaseSpec((7, 1000))
    made = heat(execute(kernel, cases.make(spec, OPS[kernel.op], kernel.contract)), "y")
    assert made is not None
    assert (made.rows, made.columns, made.spec) == (7, 1000, spec)
    cells = np.asarray(made.cells)
    assert cells.shape == (7, MOST_COLUMNS)
    assert np.unravel_index(cells.argmax(), cells.shape) == (5, 300 * MOST_COLUMNS // 1000)
    assert np.sort(cells.ravel())[-2] < 1e3 < cells.max()


@pytest.mark.parametrize("op", ["groupnorm_bwd", "batchnorm_bwd", "layernorm_bwd"])
def test_rows_of_a_map_are_what_is_normalized_together(op):
    spec = CaseSpec((3, 6, 40), num_groups=2 if op == "groupnorm_bwd" else None)
    kernel = registry.load(f"{op}_torch" if op != "batchnorm_bwd" else op)
    run = execute(kernel, cases.make(spec, OPS[op], kernel.contract))
    made = {name: heat(run, name) for name in ("dx", "dweight")}
    assert (made["dx"].rows, made["dx"].columns) == {  # type: ignore[union-attr]
        "groupnorm_bwd": (6, 120), "batchnorm_bwd": (6, 120), "layernorm_bwd": (18, 40),
    }[op]  # fmt: skip
    assert made["dweight"].rows == 1  # type: ignore[union-attr]
    assert all(len(one.cells) <= MOST_ROWS for one in made.values() if one is not None)


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_typical_cases_are_cases_of_the_operator(op, device):
    drawn = list(typical(OPS[op], ("float32", "bfloat16"), device, 3, 20))
    assert [refusal(spec, OPS[op]) for spec in drawn] == [None] * 20
    assert drawn == list(typical(OPS[op], ("float32", "bfloat16"), device, 3, 20))
    assert len(set(drawn)) == 20
    assert {spec.dtype for spec in drawn} == {"float32", "bfloat16"}


def test_a_survey_ends_in_time():
    ran = []

    def run(x, weight, eps):
        ran.append(x.shape)
        return torch.zeros_like(x)

    specs = [replace(CaseSpec((2, 8)), seed=seed) for seed in range(50)]
    assert survey(Kernel("k", "rmsnorm_fwd", run=run), specs, seconds=0.0) == ()
    assert not ran
    assert survey(Kernel("k", "rmsnorm_fwd", run=run), specs, seconds=60.0)[0].cases == 50
