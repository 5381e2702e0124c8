"""The audit as a whole: its parts, kernels that crash or hang in one, and what it prints."""

import io

import pytest
from pydantic import TypeAdapter
from rich.console import Console

from verify_norm.auditing.audit import audit, hunted
from verify_norm.auditing.hunt import HuntOptions
from verify_norm.auditing.model import Audit
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.report import audit as form
from verify_norm.report import documents
from verify_norm.running import patience
from verify_norm.search.search import search

pytestmark = pytest.mark.slow
VALUES = ("signature", "accuracy", "distribution")  # the parts of an audit come after the checks, whichever these are


def printed(document: Audit) -> str:
    out = io.StringIO()
    form.show_audit(document, Console(file=out, width=160))
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
    settings = Settings(("float32",), VALUES, examples=0, seconds=15.0, isolate=False)
    kernel = Kernel("one_pass", "layernorm_fwd", run=one_pass, contract=Contract(), dtypes=("float32",))
    return audit(kernel, search(kernel, settings), settings)


def test_an_audit_shows_where_accuracy_is_lost_and_why(wrong):
    assert not wrong.ok
    (offset,) = [one for one in wrong.ladders if (one.name, one.output) == ("offset", "y")]
    assert offset.first_over is not None
    assert offset.first_over <= 1e4
    assert offset.resembles == "one_pass"
    assert wrong.fingerprint is not None
    assert wrong.fingerprint.value("variance") == "one_pass"
    assert any("variance=centered" in line for line in wrong.disagreements)
    text = printed(wrong)
    assert "FAIL one_pass" in text
    assert f"from {offset.first_over:.3g}" in text
    assert "disagreement" in text


def test_an_audit_goes_to_json_and_back(wrong):
    (loaded,) = documents.load_all(documents.dump(wrong))
    assert repr(loaded) == repr(wrong)  # a value that a finding got may be NaN, which equals nothing
    assert repr(TypeAdapter(Audit).validate_json(documents.dump(wrong))) == repr(wrong)


def test_a_right_kernel_passes_its_audit():
    kernel = registry.load("rmsnorm_fwd_torch")
    settings = Settings(("float32", "bfloat16"), VALUES, examples=0, seconds=15.0, isolate=False)
    found = audit(kernel, search(kernel, settings), settings)
    assert found.ok, printed(found)
    assert {one.dtype for one in found.ulps} == {"float32", "bfloat16"}
    half = next(one for one in found.ulps if (one.output, one.dtype) == ("y", "bfloat16"))
    assert half.mean == pytest.approx(0.25, abs=0.01)
    assert half.correct > 0.99
    assert "PASS rmsnorm_fwd_torch: every check passes" in printed(found)


@pytest.mark.nightly
def test_a_part_in_which_the_kernel_is_lost_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr("verify_norm.auditing.audit.CASES", 2)
    kernel = registry.load("tests/support/hostile.py:exits", "rmsnorm_fwd")
    settings = Settings(("float32",), checks=("signature",), examples=0, seconds=1.0)
    found = audit(kernel, search(kernel, settings), settings)
    lost = {skip.what: skip.reason for skip in found.skipped}
    assert "exit status 3" in lost["ladders"]  # the kernel exits at long rows
    assert "not done: ladders: the kernel was lost" in printed(found)


def test_a_kernel_that_hangs_in_a_hunt_is_a_usage_error(monkeypatch):
    monkeypatch.setattr("verify_norm.auditing.audit.PATIENCE", 2.0)
    monkeypatch.setitem(patience.BUILD, "cpu", 1.0)
    kernel = registry.load("tests/support/hostile.py:spins", "rmsnorm_fwd")
    with pytest.raises(UsageError, match="was lost during the hunt: it did not return after 4 s"):
        hunted(kernel, HuntOptions(1.0, corpus=(CaseSpec((2, 4096)),)), isolate=True)
