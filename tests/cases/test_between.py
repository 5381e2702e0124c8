"""The tables have what shows a mistake between the usual numbers."""

from dataclasses import replace

import between
import pytest

from verify_norm.cases import corners
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.search.examine import examine

MISTAKES = {  # the operator, the check, and whether a wide case shows it
    "narrow_offset": ("rmsnorm_fwd", "accuracy", False),
    "padding": ("rmsnorm_fwd", "accuracy", False),
    "half_by_half": ("partial_rmsnorm_fwd", "statistics", False),
    "two_digits": ("dropout_add_rmsnorm_fwd", "accuracy", False),
    "by_reciprocal": ("qk_norm_rope_fwd", "accuracy", False),
    "padded_tables": ("qk_norm_rope_fwd", "accuracy", False),
    "positions_in_half": ("qk_norm_rope_fwd", "accuracy", True),
    "odd_heads": ("l2norm_fwd", "accuracy", True),
    "keras": ("batchnorm_fwd", "accuracy", False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_between_the_usual_numbers_shows(name):
    op, check, wide = MISTAKES[name]
    kernel = Kernel(name, op, run=getattr(between, name), contract=Contract())
    table = (corners.wide if wide else corners.corners)(OPS[op], KERNEL_DTYPES)
    found = (examine(kernel, spec, (check,), "cpu").findings for spec in table)
    assert next((one for one in found if one), ()) != ()
    if wide:
        usual = corners.corners(OPS[op], KERNEL_DTYPES)
        assert not any(examine(kernel, spec, (check,), "cpu").findings for spec in usual)


def test_two_eps_of_one_digit_meet_in_one_shape():
    kernel = Kernel("k", "rmsnorm_fwd", run=between.named_by_a_digit, contract=Contract())
    spec = CaseSpec((4, 40), eps=0.1, call=ways.BETWEEN, called=ways.AS_USUAL)
    for variant, seen in ((0, set()), (1, {"calls"})):
        between.KEPT.clear()
        found = examine(kernel, replace(spec, variant=variant), ("accuracy", "calls"), "cpu").findings
        assert {finding.check for finding in found} == seen
