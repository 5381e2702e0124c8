"""The directional derivatives against the complex step."""

import numpy as np
import pytest
from references import EPS, SECOND_ORDER, draw, parts_add_up

from verify_norm.reference import groupnorm, layernorm, rmsnorm
from verify_norm.reference.jvp import JVP, groupnorm_jvp, layernorm_jvp

MODULES = {"layernorm": layernorm, "rmsnorm": rmsnorm, "groupnorm": groupnorm}
EVERY = pytest.mark.parametrize(("op", "shape", "affine", "options"), SECOND_ORDER)


@EVERY
def test_agrees_with_the_complex_step(op, shape, affine, options):
    _, args, changes = draw(op, shape, affine)
    h = 1e-200
    probe = [a + 1j * h * t for a, t in zip(args, changes, strict=True)]
    want = MODULES[op].forward(*probe, eps=EPS, **options)
    got = JVP[op](*args, *changes, eps=EPS, **options)
    for name, a, b in zip(got._fields, got, want, strict=True):
        np.testing.assert_allclose(a, b.imag / h, rtol=1e-12, atol=1e-13, err_msg=name)


@EVERY
def test_every_change_may_be_none(op, shape, affine, options):
    _, args, changes = draw(op, shape, affine)
    parts_add_up(lambda parts: JVP[op](*args, *parts, eps=EPS, **options), changes)


def test_wrong_arguments_raise():
    x = np.ones((2, 4))
    with pytest.raises(ValueError, match=r"^tweight: expected None because the argument that it changes is None"):
        layernorm_jvp(x, None, None, x, np.ones(4), None, eps=EPS)
    with pytest.raises(ValueError, match="4 channels cannot be divided into 3 groups"):
        groupnorm_jvp(x, None, None, x, None, None, num_groups=3, eps=EPS)


CHANGES = {
    "layernorm": ("tx", "tweight", "tbias"),
    "rmsnorm": ("tx", "tweight"),
    "groupnorm": ("tx", "tweight", "tbias"),
}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in CHANGES.items() for name in names])
def test_a_change_of_a_wrong_shape_is_named(op, name):
    options = {"eps": EPS} | ({"num_groups": 2} if op == "groupnorm" else {})
    given = [np.ones((3, 4)), *(np.ones(4) for _ in CHANGES[op][1:])]
    changes = [np.ones(5) if one == name else None for one in CHANGES[op]]
    with pytest.raises(ValueError, match=rf"^{name}: expected the shape \(.*4,?\), got \(5,\)$"):
        JVP[op](*given, *changes, **options)
