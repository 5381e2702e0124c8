"""The parts of two audits: ladders, fingerprints, disagreements with the contract."""

from dataclasses import replace

import pytest
from runs import changes, ladder

from verify_norm.auditing.fingerprint.statement import Fingerprint, Statement, undecided
from verify_norm.auditing.model import Audit
from verify_norm.core.contract import Contract
from verify_norm.core.tally import Skip


@pytest.mark.slow
def test_a_ladder_that_leaves_its_bound_earlier_is_worse(good):
    def audit(over, errors=(1.0,) * 6, like=("two_pass",), contract=None):
        return Audit(replace(good, contract=contract or good.contract), ladders=(ladder(errors, over, like),))

    where = "y over offset/scale"
    assert set(changes(audit(None), audit(1e5))) == {where}
    assert set(changes(audit(1e4), audit(1e3))) == {where}
    assert set(changes(audit(1e3), audit(1e4), "better")) == {where}
    assert changes(audit(None), audit(10.0, contract=Contract(variance="shifted"))) == {}, "another bound"
    higher = audit(None, errors=tuple(3.0**k for k in range(6)), like=("one_pass",))
    assert "like one_pass" in changes(audit(None), higher)[where].new
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
)
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
