"""The record of a kernel: which cases it refuses, and which it is fitted."""

from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import CaseSpec


def test_a_kernel_refuses_what_its_record_says_and_nothing_without_one():
    long = Kernel("k", "rmsnorm_fwd", unsupported=lambda spec: "too long" if spec.shape[-1] > 8 else None)
    assert long.refuses(CaseSpec((2, 9))) == "too long"
    assert long.refuses(CaseSpec((2, 8))) is None
    assert Kernel("k", "rmsnorm_fwd").refuses(CaseSpec((2, 9))) is None


def test_a_case_is_fitted_by_what_the_kernel_says():
    wide = Kernel("k", "rmsnorm_fwd", fit=lambda spec: CaseSpec((*spec.shape[:-1], 16)))
    assert wide.fitted(CaseSpec((2, 9))) == CaseSpec((2, 16))
    assert Kernel("k", "rmsnorm_fwd").fitted(CaseSpec((2, 9))) == CaseSpec((2, 9))
