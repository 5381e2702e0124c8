"""Certify passes the references, and detects each wrong one: which quantity, and by which method."""

import doctest
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from verify_norm.cases import device_functions
from verify_norm.core.errors import UsageError
from verify_norm.core.known import NAMES
from verify_norm.core.ops import OPS
from verify_norm.reference import double_backward, jvp, layernorm, rmsnorm
from verify_norm.reference.view import rows
from verify_norm.report import certificate as table
from verify_norm.report.certificate import show_certificate
from verify_norm.validation.certify import Certificate, Result, certify, exact, problems, shipped, sizes

ALL = {"complex step", "scipy", "central difference", "50 digits"}
OFFSETS = {"offset 100", "offset 10000", "offset 1e+06"}


def once(view, x, eps):
    """Statistics with a mean that is rounded once: at an offset, all of xc is off by that."""
    x = x.reshape(view.shape)
    mean = x.mean(view.axes, keepdims=True)
    xc = x - mean
    rstd = 1.0 / np.sqrt((xc * xc).mean(view.axes, keepdims=True) + eps)
    return layernorm.Statistics(mean, xc, rstd, rstd, xc * rstd)


def corrected(view, x, eps):
    """Statistics whose xc is corrected by its own mean."""
    x = x.reshape(view.shape)
    mean = x.mean(view.axes, keepdims=True)
    xc = x - mean
    rest = xc.mean(view.axes, keepdims=True)
    mean, xc = mean + rest, xc - rest
    rstd = 1.0 / np.sqrt((xc * xc).mean(view.axes, keepdims=True) + eps)
    return layernorm.Statistics(mean, xc, rstd, rstd, xc * rstd)


@pytest.fixture
def exact_mean(monkeypatch):
    monkeypatch.setattr(layernorm, "statistics", corrected)


def restrict(monkeypatch, wanted):
    """Certify on the problems alone that `wanted` accepts."""
    points = problems.every
    monkeypatch.setattr(problems, "every", lambda op, seed: filter(wanted, points(op, seed)))


@pytest.fixture
def few(monkeypatch, exact_mean):
    """Certify on a few of the points, which detect as much as all of them."""
    families = {"offset 0", "x alone", "normalized_shape of 2"}
    restrict(monkeypatch, lambda p: p.family in families and p.options["eps"] != 1e-12)


def failed(certificate):
    """Return by quantity the methods that detect an error."""
    found = {}
    for result in certificate.failures:
        found.setdefault(result.quantity, set()).add(result.method)
    return found


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm", "groupnorm"])
def test_the_references_are_certified(op, exact_mean):
    certificate = certify([op])
    assert not certificate.failures
    assert certificate.ok
    methods = {(r.quantity, r.method) for r in certificate.results if r.allowed is not None}
    derivatives = {q for q, _ in methods} - {"y", "mean", "rstd"}
    assert derivatives >= {"dx", "dweight", "jvp y", "jvp rstd"} | {
        f"double backward {n}" for n in ("dy", "x", "weight")
    }
    assert {(q, m) for q in derivatives for m in ALL} <= methods
    assert {r.family for r in certificate.results} >= OFFSETS | {"no weight", "no bias", "x alone"}
    # the error in float64 is some roundings, and of the differences what their derivation expects
    steps = [r.error for r in certificate.results if r.method == "complex step"]
    assert max(steps) < 1e-13


@pytest.mark.slow
def test_a_mean_that_is_rounded_once_is_detected_at_offsets(monkeypatch):
    monkeypatch.setattr(layernorm, "statistics", once)
    restrict(monkeypatch, lambda p: p.family.startswith("offset") and p.options["eps"] == 1e-5)
    certificate = certify(["layernorm"])
    assert not certificate.ok
    assert {r.method for r in certificate.failures} == {"50 digits"}  # both sides of a difference have the same mean
    assert {r.family for r in certificate.failures} == OFFSETS
    assert {"y", "dx", "dweight", "jvp y", "double backward x"} <= {r.quantity for r in certificate.failures}
    assert max(r.error for r in certificate.failures) > 1e5


def wrong(op, **changed):
    return {op: replace(shipped(op), **changed)}


def backward(dx=None, dweight=None):
    """layernorm.backward with one line changed."""

    def run(dy, x, weight, bias, *, eps, weight_offset=0.0, normalized_shape=None):
        s = layernorm.norm(rows(x, normalized_shape), x, weight, bias, eps, weight_offset)
        changed, p = layernorm.Backward(*s.gradients(dy)), s.gradient(dy.reshape(s.view.shape))
        if dx:
            changed = changed._replace(dx=dx(s, p).reshape(x.shape))
        if dweight and weight is not None:
            changed = changed._replace(dweight=dweight(s, p).sum(0).reshape(weight.shape))
        return changed

    return run


def n_minus_1(s, p):
    c1 = p.c1 * s.xhat.shape[1] / (s.xhat.shape[1] - 1)
    return s.rstd * (p.g - p.c2 - s.xhat * c1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "quantity"),
    [
        (backward(dx=lambda s, p: s.rstd * (p.g - s.xhat * p.c1)), "dx"),  # c2 missing
        (backward(dx=lambda s, p: s.rstd * (p.g - p.c2 + s.xhat * p.c1)), "dx"),  # c1's sign
        (backward(dx=n_minus_1), "dx"),
        (backward(dweight=lambda s, p: p.g), "dweight"),  # Σ dx̂, as in a draft of seed 002
        (backward(dweight=lambda s, p: p.g * s.xhat), "dweight"),  # the weight twice
    ],
    ids=["no c2", "sign of c1", "N-1", "sum of dx̂", "weight twice"],
)
def test_a_wrong_gradient_is_found_by_every_method(few, change, quantity):
    found = failed(certify(["layernorm"], references=wrong("layernorm", backward=change)))
    assert found.pop(quantity) == ALL
    assert all(name.startswith("double backward") for name in found)  # which is that of the wrong gradient
    assert not {"y", "jvp y", "dbias"} & set(found)


def test_an_operator_with_n_minus_1_throughout_is_consistent_and_wrong(few, monkeypatch):
    """Derivatives of the wrong function that are right for it: only the fifty digits are those of the right one."""

    def unbiased(view, x, eps):
        x = x.reshape(view.shape)
        square = (x * x).sum(view.axes, keepdims=True) / (view.count - 1)
        rstd = 1.0 / np.sqrt(square + eps)
        return rmsnorm.Statistics(square, rstd, x * rstd)

    monkeypatch.setattr(rmsnorm, "statistics", unbiased)
    found = failed(certify(["rmsnorm"]))
    assert found["y"] == found["rstd"] == {"50 digits"}
    assert found["dx"] == ALL  # c1 has a mean of its own


def test_a_wrong_second_derivative_is_found(few, monkeypatch):
    def dropped(n, u, v, s, dy):
        by_dy, by_x, by_weight = right(n, u, v, s, dy)
        return by_dy, by_x + n.rstd * n.rstd * n.average(u * n.xhat) * n.project(n.weighted(dy)), by_weight

    right = double_backward.cotangents
    monkeypatch.setattr(double_backward, "cotangents", dropped)  # without its term k1·P(g)
    assert failed(certify(["groupnorm"])) == {"double backward x": ALL}


@pytest.mark.slow
def test_a_wrong_directional_derivative_is_found(few, monkeypatch):
    right = jvp.layernorm_jvp

    def sign(*args, **options):
        return right(*args, **options)._replace(rstd=-right(*args, **options).rstd)

    monkeypatch.setitem(jvp.JVP, "layernorm", sign)
    assert failed(certify(["layernorm"])) == {"jvp rstd": ALL}


@pytest.mark.slow
def test_references_come_from_the_table(few, monkeypatch):
    bad = backward(dx=lambda s, p: s.rstd * (p.g - s.xhat * p.c1))
    monkeypatch.setitem(OPS, "layernorm_bwd", replace(OPS["layernorm_bwd"], reference=bad))
    assert failed(certify(["layernorm_bwd"]))["dx"] == ALL


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_fails(few, value):
    change = backward(dx=lambda s, p: p.g * value)
    certificate = certify(["layernorm"], references=wrong("layernorm", backward=change))
    assert failed(certificate)["dx"] == ALL
    assert json.loads(json.dumps(certificate.jsonable(), allow_nan=False))["ok"] is False


def test_what_is_missing_or_raises_fails(few):
    def missing(**arguments):
        return layernorm.backward(**arguments)._replace(dx=None)

    def raises(**arguments):
        raise ZeroDivisionError("division by zero")

    assert failed(certify(["layernorm"], references=wrong("layernorm", backward=missing)))["every quantity"] == {"call"}
    certificate = certify(["layernorm"], references=wrong("layernorm", forward=raises))
    assert "it raised ZeroDivisionError: division by zero" in text(certificate)


def text(certificate):
    console = Console(width=104, record=True, file=io.StringIO())
    show_certificate(certificate, console)
    return console.export_text()


@pytest.mark.slow
def test_the_table_shows_what_failed(few):
    change = backward(dx=n_minus_1)
    shown = text(certify(["layernorm"], references=wrong("layernorm", backward=change)))
    assert "layernorm dx, by complex step: off by" in shown
    assert "FAIL" in shown
    assert "in offset 0" in shown
    good = text(certify(["rmsnorm"]))
    assert "certified rmsnorm" in good
    assert "✗" not in good
    assert max(map(len, good.splitlines())) <= 104


def test_nothing_certified_is_no_pass():
    assert not Certificate(()).ok
    shown = Result("layernorm", "dx", "f", "as published", 0.1, None, "", "", True)
    assert not Certificate((shown,)).ok
    certificate = certify(["batchnorm"])
    assert not certificate.ok
    assert [name for name, _ in certificate.skipped] == ["batchnorm"]
    assert "not certified: batchnorm" in text(certificate)
    with pytest.raises(UsageError, match=r"^unknown operator 'layer' .*there are: layernorm"):
        certify(["layer"])


def test_the_published_check_detects_nothing(few):
    """float32 and h = 1e-5: errors far above the 1e-4 that it counts as proof; the derived step proves 1e-8."""
    results = certify(["layernorm"]).results
    published = [r for r in results if r.method == "as published"]
    assert {r.quantity for r in published} == {"dx", "dweight", "dbias"}
    assert all(r.error > 1e-4 and r.allowed is None and r.ok for r in published)
    assert max(r.error for r in results if r.method == "central difference" and r.quantity == "dx") < 1e-8


@pytest.mark.parametrize("module", [problems, sizes, exact, table])
def test_the_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.slow
def test_a_device_is_compared_with_numpy(monkeypatch):
    """The processor, by torch, agrees; one whose root is that of float32 does not."""
    monkeypatch.setattr(problems, "every", lambda op, seed: ())
    shown = io.StringIO()
    for off in (False, True):
        if off:
            monkeypatch.setitem(device_functions.UFUNCS, "sqrt", lambda value: value.float().sqrt().double())
        found = certify(["layernorm", "add_rmsnorm"], references={"layernorm": shipped("layernorm")}, device="cpu")
        mine = [result for result in found.results if result.method == "device"]
        assert {(r.op, r.quantity) for r in mine} == {
            (op, f"truth and bound of {op}_{way}") for op in ("layernorm", "add_rmsnorm") for way in ("fwd", "bwd")
        }
        assert len(mine) == 4 * len(NAMES)
        assert all(result.ok is not off for result in mine)
        show_certificate(found, Console(file=shown, width=200))
    assert "device: distance of its truth and bound from NumPy's" in shown.getvalue()
    assert "add_rmsnorm truth and bound of add_rmsnorm_bwd, by device: off by" in shown.getvalue()
    assert not any(result.method == "device" for result in certify(["rmsnorm"]).results)
