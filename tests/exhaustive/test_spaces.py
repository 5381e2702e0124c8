"""Every item of a space occurs once, with its very bits, and the operators that have no such space are refused."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.exhaustive import spaces
from verify_norm.exhaustive.model import Choice
from verify_norm.exhaustive.run import question

PARTS = (0, 1, 7, 250, 256)


def asked(op, space, dtype="bfloat16"):
    return question(Kernel("k", op), Settings(), Choice(space, dtype))


@pytest.mark.parametrize("form", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_a_row_has_the_bits_of_its_number(form):
    """So the map from numbers to rows is a bijection. Parts of any size have the same rows."""
    length = 2 if "8" not in form.removesuffix("16") else 4
    whole = spaces.numbers(form, length, 2**31 - 500, 2**31 + 500, "cpu")
    assert whole.dtype == getattr(torch, form)
    assert whole.shape == (1000, length)
    assert whole.view(torch.int32).ravel().tolist() == [*range(2**31 - 500, 2**31), *range(-(2**31), -(2**31) + 500)]
    parts = [spaces.numbers(form, length, 2**31 - 500 + a, 2**31 - 500 + b, "cpu") for a, b in ((0, 3), (3, 1000))]
    assert torch.equal(torch.cat(parts).view(torch.int32), whole.view(torch.int32))
    last = spaces.numbers(form, length, 2**32 - 1, 2**32, "cpu")
    assert last.view(torch.int32).item() == -1


@pytest.mark.parametrize("op", ["layernorm_fwd", "groupnorm_fwd", "batchnorm_fwd"])
def test_each_eps_meets_variances_on_both_sides_of_it(op):
    """From far below the smallest of them to far above."""
    kernel = Kernel("k", op)
    (_, case), *_ = spaces.cases(kernel, asked(op, "eps"), 0, 1, "cpu")
    x = case.exact["x"]
    rows = x.T if op == "batchnorm_fwd" else x.reshape(x.shape[0] * (1 if op == "layernorm_fwd" else 2), -1)
    variances = rows.var(1)
    assert variances.max() > 2.0**30 * variances.min() > 0


def test_every_x_and_every_eps_occurs_once():
    x = spaces.numbers("float16", 1, 0, 2**16, "cpu").view(torch.int16).ravel().tolist()
    assert len(set(x)) == len(x) == 2**16
    found = spaces.every_eps()
    for form in spaces.EPS_TYPES:  # each finite positive number is there, and is of one of the types
        values = spaces.numbers(form, 1, 0, 2**16, "cpu").double().ravel().numpy()
        assert np.isin(values[np.isfinite(values) & (values > 0)], found).all()
    rounded = [torch.from_numpy(found).to(getattr(torch, form)).double().numpy() == found for form in spaces.EPS_TYPES]
    assert (rounded[0] | rounded[1]).all()
    assert len(found) == len(set(found.tolist())) == spaces.count(spaces.SPACES["eps"], "float32") == 60031


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.view != "channels"])
@pytest.mark.parametrize("space", ["rows2", "rows4"])
def test_the_kernel_gets_the_rows_and_what_is_fixed(op, space):
    what = asked(op, space)
    cases = [spaces.cases(Kernel("k", op), what, 2**30 + a, 2**30 + b, "cpu") for a, b in pairwise(PARTS)]
    name, length, seen, fixed = spaces.varied(OPS[op]), spaces.SPACES[space].length, [], Counter()
    for (start, case), *none in cases:
        assert not none
        x = case.arguments[name]
        form = spaces.SPACES[space].form or "bfloat16"
        rows = spaces.numbers(form, length, start, start + len(x), "cpu").to(torch.bfloat16)
        assert torch.equal(x.reshape(-1, length).contiguous().view(torch.int16), rows.view(torch.int16))
        seen += range(start, start + len(x))
        others = {k: v for k, v in case.arguments.items() if torch.is_tensor(v) and k not in (name, "mean", "rstd")}
        fixed.update((k, tuple(v.reshape(-1, v.shape[-1])[-1].tolist())) for k, v in others.items())
    assert seen == list(range(2**30, 2**30 + 256))
    assert {key for key, _ in fixed} == {t.name for t in OPS[op].inputs} - {name, "mean", "rstd"}
    assert set(fixed.values()) <= {len(cases)}  # one value of each in all parts
    assert all(any(row) != (key in ("bias", "residual")) for key, row in fixed)


def test_the_payload_of_a_nan_reaches_the_kernel():
    ((_, case),) = spaces.cases(Kernel("k", "rmsnorm_fwd"), asked("rmsnorm_fwd", "rows2"), 0x7F81, 0x7F90, "cpu")
    assert case.arguments["x"].view(torch.int16)[:, 0].tolist() == list(range(0x7F81, 0x7F90))
    assert spaces.given(asked("rmsnorm_fwd", "rows2"), 0x00017F81) == "bfloat16 (nan, 9.18354962e-41), bits 7f81 0001"
    assert spaces.given(asked("rmsnorm_fwd", "rows4"), 0xFF38).endswith("(1, nan, 0, 0), bits 38 ff 00 00")
    assert spaces.given(asked("rmsnorm_fwd", "eps"), 0) == f"eps {2.0**-133!r}"


REFUSED = [
    ("batchnorm_fwd", "rows2", "bfloat16", "needs rows or groups, and batchnorm_fwd has channels: take --space x"),
    ("batchnorm_bwd", "rows4", "bfloat16", "take --space eps"),
    ("batchnorm_bwd", "x", "bfloat16", "needs a y that depends on one x alone"),
    ("layernorm_fwd", "x", "bfloat16", "as batchnorm_fwd's in evaluation, not layernorm_fwd"),
    ("layernorm_fwd", "rows2", "float32", r"--space rows2 has 2\*\*64 rows of float32: take --dtype bf16 or fp16"),
    ("layernorm_fwd", "rows3", "bfloat16", "unknown space 'rows3'"),
    ("layernorm_fwd", "rows2", "fp8", "unknown dtype 'fp8'"),
]


@pytest.mark.parametrize(("op", "space", "dtype", "said"), REFUSED)
def test_a_space_that_an_operator_does_not_have_is_refused(op, space, dtype, said):
    with pytest.raises(UsageError, match=said):
        asked(op, space, dtype)
