"""Probes of a forward pass, each alone: the property of an emulated kernel, whatever its other properties are."""

import emulations as em
import pytest

from verify_norm.auditing.fingerprint import forward
from verify_norm.auditing.fingerprint.rig import Rig
from verify_norm.auditing.fingerprint.statement import UNDECIDED, HiddenError


def rig(op="layernorm_fwd", **how):
    return Rig(em.kernel(op, getattr(em, op)(**how)), "cpu")


def said(statements):
    return {s.name: s.said for s in statements}


@pytest.mark.parametrize("returns", [1, 3])
@pytest.mark.parametrize(("ddof", "name"), [(0, "N"), (1, "N-1")])
def test_the_divisor_shows_in_rstd_or_in_y(ddof, name, returns):
    assert said(forward.divisor(rig(ddof=ddof, returns=returns))) == {"divisor": name}


@pytest.mark.parametrize(
    ("how", "place", "value"),
    [
        ({}, "inside", "as given"),
        ({"eps_at": "outside"}, "outside", "as given"),
        ({"eps_at": "clamped"}, "clamped", "as given"),
        ({"eps_is": 1e-3}, "inside", "0.001 whatever is given"),
        ({"eps_at": "on_sum"}, "inside", "0.0625 times what is given"),
        ({"ddof": 1}, "inside", "as given"),
    ],
)
def test_the_place_and_the_value_of_eps(how, place, value):
    count = "N-1" if "ddof" in how else "N"
    assert said(forward.eps(rig(**how), count)) == {"eps place": place, "eps value": value}


def test_a_wrong_divisor_leaves_eps_undecided():
    assert said(forward.eps(rig(ddof=1), "N")) == {"eps place": UNDECIDED}


@pytest.mark.parametrize(("kept", "acc"), [("bfloat16", "float64"), (None, "float32"), ("float16", "float32")])
def test_statistics_are_as_narrow_as_what_holds_all_of_them(kept, acc):
    assert said(forward.statistics(rig(kept=kept, acc=acc), "float32")) == {"statistics": kept or "float32"}


@pytest.mark.parametrize(("early", "value"), [(True, "rounded"), (False, "not rounded")])
def test_the_rounding_of_xhat(early, value):
    (statement,) = forward.xhat(rig("rmsnorm_fwd", early=early), "bfloat16")
    assert (statement.said, statement.dtype) == (value, "bfloat16")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("centred", ("centred", "separate")),
        ("fused", ("centred", "fused")),
        ("expanded", ("expanded", "separate")),
        ("expanded fused", ("expanded", "fused")),
    ],
)
def test_the_formula_of_y(form, expected):
    found = said(forward.formula(rig(form=form)))
    assert (found["form"], found["fma"]) == expected


def test_a_kernel_that_is_no_norm_hides_its_divisor():
    nothing = Rig(em.kernel("layernorm_fwd", lambda x: None), "cpu")
    with pytest.raises(HiddenError):
        list(forward.divisor(nothing))
