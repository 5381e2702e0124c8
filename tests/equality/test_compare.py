"""Two kernels compared: the same, or different in one way, which has its size, its type, its output and its case."""

import time
from itertools import count
from types import SimpleNamespace

import pytest
from pairs import rmsnorm, rmsnorm_bwd

from verify_norm.core.contract import Contract
from verify_norm.core.errors import Exit, FindingsError, UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.equality import compare, onset, walk
from verify_norm.equality.model import failures, per_type
from verify_norm.equality.pair import Returned
from verify_norm.search import planning, sweep

FWD, BWD = "rmsnorm_fwd", "rmsnorm_bwd"
FEW = [
    CaseSpec((3, 64), dtype, seed=seed, data=data, weight=weight)
    for seed, (data, weight) in enumerate((("normal", True), ("zero", False), ("heavy", True)))
    for dtype in ("float32", "bfloat16")
]
TALL = [CaseSpec((5, 40)), CaseSpec((40, 5)), CaseSpec((33, 6)), CaseSpec((3, 30), special="nan")]


def settings(**options):
    few = {"dtypes": ("float32", "bfloat16"), "examples": 0, "seconds": 100.0, "isolate": False}
    return Settings(**(few | options))


def kernel(function, op=FWD, **fields):
    return Kernel("k", op, run=function, **fields)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A table of ten cases, and a short scan of sizes."""
    monkeypatch.setattr(onset, "LONGEST", 66)
    monkeypatch.setattr(onset, "MOST", 34)
    monkeypatch.setattr(planning, "table_of", lambda op, settings, dtypes, *, frozen: (cases(dtypes), [], ()))


def cases(dtypes):
    return [spec for spec in (*FEW, *TALL) if spec.dtype in dtypes]


def compared(a, b="", op=FWD, **options):
    make = rmsnorm if op == FWD else rmsnorm_bwd
    return compare.compare(kernel(make(a), op), kernel(make(b), op), settings(**options))


@pytest.mark.parametrize("how", ["", "another payload", "a column"])
def test_the_same_bits_are_a_pass(how):
    found = compared(how, dtypes=("float32",))
    assert found.verdict is Exit.PASS, failures(found)
    assert found.coverage.corners_done == found.coverage.corners == found.coverage.compared > 15
    assert {tally.output for tally in found.tallies} == {"y", "rstd"}
    assert found.arithmetic is None
    assert per_type(found) == [f"float32: identical in {found.cases} cases"]
    found.raise_for_findings()


def test_blocks_of_1024_differ_from_1025_on(monkeypatch):
    monkeypatch.setattr(onset, "LONGEST", 2050)
    found = compared("blocks of 1024", dtypes=("float32",))
    assert found.verdict is Exit.FINDINGS
    since = {(one.output, one.axis): (one.since, one.equal) for one in found.onsets}
    assert since["y", "N"] == since["rstd", "N"] == (1025, 1024)
    assert since["y", "M"][0] == 1
    assert "y differs from N = 1025 on (identical up to 1024)" in per_type(found)[0]
    y = found.differences[0]
    assert (y.output, y.spec.shape, y.gap.element.apart) == ("y", (1025,), 1.0)
    assert max(y.gap.element.a_error, y.gap.element.b_error) > 0.5
    assert not found.arithmetic.contrasts, "its blocks are longer than the fingerprint's rows"
    assert ("divisor", "N") in found.arithmetic.alike
    assert found.arithmetic.exact.differing == (), "exact sums have no order"
    with pytest.raises(FindingsError, match=r"rmsnorm_fwd: y\[\d+\] is .* verify_norm.same\(<A>, <B>, replay="):
        found.raise_for_findings()


def test_a_rounded_xhat_differs_in_one_type_alone():
    found = compared("rounded")
    float32, bfloat16 = per_type(found)
    assert float32.startswith("float32: identical in ")
    assert bfloat16.startswith("bfloat16: y differs ")
    assert "seldom" not in bfloat16
    (y,) = found.differences
    assert (y.output, y.spec.dtype, y.alike) == ("y", "bfloat16", ("rstd",))
    (contrast,) = found.arithmetic.contrasts
    assert (contrast.field, contrast.a, contrast.b, contrast.sure) == ("xhat", "rounded", "not rounded", True)


def test_the_sign_of_zero_differs():
    found = compared("minus zero", dtypes=("float32",))
    (tally,) = (tally for tally in found.tallies if tally.differing)
    assert (tally.output, tally.zeros) == ("y", tally.differing)
    assert "by signs of 0 alone" in per_type(found)[0]
    (y,) = found.differences
    assert y.gap.words in [
        f"y[0] is {signs}: the sign of 0 differs" for signs in ("-0 from A, 0 from B", "0 from A, -0 from B")
    ]
    assert (y.gap.element.apart, y.spec.data) == (0.0, "zero")


def test_another_type_of_one_output():
    found = compared("half", dtypes=("float32",))
    (rstd,) = found.differences
    assert rstd.gap.words == "rstd is float16 of shape (1,) from A and float32 of shape (1,) from B"
    assert rstd.alike == ("y",)


@pytest.mark.slow
def test_a_sum_over_rows_differs_from_a_number_of_rows_on():
    found = compared("blocks of 8 rows", op=BWD, dtypes=("float32",))
    assert {one.output for one in found.differences} == {"dweight"}
    since = {one.axis: one.since for one in found.onsets}
    assert since["M"] in range(9, 18), "of 16 rows or fewer, torch may add in the same order"
    assert found.arithmetic.exact is None, "products with dy are not exact"


def test_a_kernel_that_differs_from_itself_is_told():
    for a, b, sides in (("atomic", "", {"A"}), ("", "atomic", {"B"}), ("atomic", "atomic", {"A", "B"})):
        found = compared(a, b, dtypes=("float32",))
        assert found.verdict is Exit.FINDINGS
        assert {one.side for one in found.unstable} == sides
        assert {one.gap.output for one in found.unstable} == {"y"}
        assert not found.differences, "rstd is the same"
        assert "itself differs from run to run: y[" in failures(found)[0]


def test_a_kernel_that_raises_differs_from_one_that_returns():
    found = compared("", "raises", dtypes=("float32",))
    (fails,) = found.differences
    assert fails.gap.words == "B fails where A returns: ValueError: at most 3 rows"
    assert fails.spec.shape[0] == 4
    assert found.coverage.compared == found.cases


@pytest.mark.parametrize("b", ["raises", "half"])
def test_the_smallest_case_has_a_type_that_was_asked_for(b):
    (smallest,) = compared("", b, dtypes=("bfloat16",)).differences
    assert smallest.spec.dtype == "bfloat16"


def test_two_that_raise_are_not_compared():
    found = compared("raises", "raises", dtypes=("float32",))
    assert found.verdict in (Exit.PASS, Exit.NOTHING)
    assert any("both fail" in skip.reason for skip in found.skipped)
    assert found.coverage.compared < found.cases


def test_cases_that_one_does_not_take_are_left_out():
    def unsupported(spec):
        return None if spec.shape[0] == 3 else "3 rows alone"

    few = kernel(rmsnorm(), unsupported=unsupported)
    found = compare.compare(kernel(rmsnorm()), few, settings(dtypes=("float32",)))
    (skip,) = found.skipped
    assert (skip.what, skip.reason) == ("cases", "B does not take it: 3 rows alone")
    assert skip.cases == found.coverage.refused > 0
    none = kernel(rmsnorm(), unsupported=lambda spec: "nothing")
    found = compare.compare(none, kernel(rmsnorm()), settings(dtypes=("float32",)))
    assert (found.verdict, found.coverage.compared) == (Exit.NOTHING, 0)
    with pytest.raises(FindingsError, match=r"too little was compared: .*A does not take it: nothing"):
        found.raise_for_findings()


@pytest.mark.parametrize(("a", "b", "side"), [("y alone", "", "A"), ("", "y alone", "B")])
def test_an_output_that_one_does_not_return_is_not_compared(a, b, side):
    found = compared(a, b, dtypes=("float32",))
    assert found.verdict is Exit.PASS
    assert [(skip.what, skip.reason) for skip in found.skipped] == [("output rstd", f"{side} does not return it")]
    assert {tally.output for tally in found.tallies} == {"y"}


@pytest.mark.parametrize("autograd", [(False, False), (True, False), (False, True)])
def test_inputs_without_a_gradient_are_tried_where_either_kernel_has_autograd(autograd, monkeypatch):
    asked = []
    monkeypatch.setattr(planning, "table_of", lambda *_, frozen: asked.append(frozen) or ([], [], ()))
    monkeypatch.setattr(onset, "scan", lambda *_: ())
    one, other = (kernel(rmsnorm_bwd(), BWD, autograd=has) for has in autograd)
    compare.compare(one, other, settings(dtypes=("float32",)))
    assert asked == [any(autograd)]


@pytest.mark.parametrize("side", ["A", "B"])
def test_kernels_that_hang_often_end_the_run(side, monkeypatch):
    """As a search does; the cases that were not met are counted."""
    met = []

    def called(runner, spec, timeout):
        met.append(spec)
        return Returned(problem="it did not return", hung=(len(met) % 2 == 1) == (side == "A"))

    monkeypatch.setattr(walk, "called", called)
    found = compared("", dtypes=("float32",))
    assert len(met) == 2 * sweep.HANGS
    assert "hung 4 times" in found.coverage.ended
    assert found.verdict is not Exit.PASS


@pytest.mark.parametrize(("share", "verdict"), [(20, Exit.NOTHING), (5, Exit.PASS)])
def test_where_almost_no_case_is_taken_nothing_is_said(share, verdict, monkeypatch):
    table = [CaseSpec((2, 8), seed=seed) for seed in range(40)]
    monkeypatch.setattr(planning, "table_of", lambda *_, **__: (table, [], ()))
    monkeypatch.setattr(onset, "scan", lambda *_: ())
    few = kernel(rmsnorm(), unsupported=lambda spec: "another seed" if spec.seed % share else None)
    found = compare.compare(few, kernel(rmsnorm()), settings(dtypes=("float32",)))
    assert (found.coverage.compared, found.coverage.refused) == (40 // share, 40 - 40 // share)
    assert found.verdict is verdict


def test_types_that_one_does_not_offer_are_left_out():
    one = kernel(rmsnorm(), dtypes=("float32",))
    found = compare.compare(one, kernel(rmsnorm()), settings())
    assert [(skip.what, skip.reason) for skip in found.skipped] == [("dtype bfloat16", "not offered by A")]
    assert {tally.dtype for tally in found.tallies} == {"float32"}


def test_contracts_that_differ_are_told():
    a = kernel(rmsnorm("rounded"), contract=Contract(xhat="x"))
    found = compare.compare(a, kernel(rmsnorm()), settings(dtypes=("bfloat16",)))
    (declared,) = found.arithmetic.declared
    assert (declared.field, declared.a, declared.b) == ("xhat", "x", "None")


def test_a_table_that_is_not_finished_is_no_pass(monkeypatch):
    monkeypatch.setattr(walk, "time", SimpleNamespace(perf_counter=count(int(time.perf_counter())).__next__))  # fast
    found = compared("", seconds=9.0)
    assert found.verdict is Exit.INCOMPLETE
    assert "time limit of 9 s was reached" in found.unfinished
    assert compared("", seconds=9.0, allow_incomplete=True).verdict in (Exit.PASS, Exit.NOTHING)


def test_ctrl_c_keeps_what_was_found(monkeypatch):
    calls = []

    def interrupted(*args, **options):
        calls.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "onsets", interrupted)
    found = compared("rounded", dtypes=("bfloat16",))
    assert calls
    assert found.interrupted
    assert [one.output for one in found.differences] == ["y"]
    assert found.verdict is Exit.FINDINGS
    assert compared("", dtypes=("bfloat16",)).verdict is Exit.INCOMPLETE


def test_replay_compares_one_case():
    a, b = kernel(rmsnorm("rounded")), kernel(rmsnorm())
    found = compare.replay(a, b, CaseSpec((4, 64), "bfloat16"), settings())
    assert (found.verdict, found.cases) == (Exit.FINDINGS, 1)
    assert compare.replay(a, b, CaseSpec((4, 64)), settings()).verdict is Exit.PASS
    with pytest.raises(UsageError, match="has no num_groups"):
        compare.replay(a, b, CaseSpec((4, 64), num_groups=2), settings())


def test_pairs_have_one_operator():
    fwd, bwd = kernel(rmsnorm()), kernel(rmsnorm_bwd(), BWD)
    assert compare.pair((fwd, bwd), (bwd,)) == [(bwd, bwd)]
    with pytest.raises(
        UsageError, match="expected two kernels of one operator, got k for rmsnorm_fwd and k for rmsnor"
    ):
        compare.pair((fwd,), (bwd,))
    with pytest.raises(UsageError, match="choose the op rmsnorm_fwd or rmsnorm_bwd"):
        compare.pair((fwd, bwd), (fwd, bwd), single=True)


@pytest.mark.slow
def test_a_rare_difference_has_no_size():
    plain, first = rmsnorm(), []

    def seldom(x, weight, eps, normalized_shape):
        y, rstd = plain(x, weight, eps, normalized_shape)
        if x.shape == (16, 33):
            first.append(float(x[0, 0]))
            y[0, 0] += first[0] == first[-1]
        return y, rstd

    found = compare.compare(kernel(plain), kernel(seldom), settings(dtypes=("float32",)))
    assert [one.spec.shape for one in found.differences] == [(16, 33)]
    assert "y differs in 1 of" in per_type(found)[0]
    assert "too rarely to say from which size on" in per_type(found)[0]
