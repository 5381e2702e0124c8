"""What a run covers, and when it ends."""

import importlib
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from norms import layernorm, layernorm_bwd, rmsnorm, rmsnorm_bwd
from small_runs import rmsnorm_fwd, run

from verify_norm.cases import corner_rows, models
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import LAYOUTS, CaseSpec, Contract, Kernel
from verify_norm.loading.registry import load
from verify_norm.search import sweep
from verify_norm.search.search import replay, search

DTYPES = ("float32", "float16", "bfloat16")
WITHOUT_FURTHER_RUNS = ("signature", "accuracy", "memory", "nonfinite", "gradient")


@pytest.fixture
def drawn_alone(monkeypatch, few_corners):
    """All cases of a search are drawn: the corner table and the covering array, which takes a second, are empty."""
    few_corners(slice(0))
    monkeypatch.setattr(sweep, "covering_cases", lambda *_: ())


@pytest.mark.slow
def test_a_run_covers_every_dtype_and_layout():
    backward = Kernel("k", "layernorm_bwd", run=layernorm_bwd(), forward_run=layernorm())
    report = search(backward, Settings(examples=30, seconds=600, checks=WITHOUT_FURTHER_RUNS))
    assert report.ok
    assert report.cases >= 80
    assert {t.dtype for t in report.tallies if t.output == "dx"} == set(DTYPES)
    for layout in LAYOUTS:
        assert report.layouts[f"dy {layout}"]
        assert layout == "scalar" or report.layouts[f"x {layout}"]
    gradient = next(check for check in report.checks if check.name == "gradient")
    assert gradient.cases > 10
    assert {d.output: d.everything < 0.1 for d in report.detectable if d.check == "gradient"}["dx"]


@pytest.mark.slow
def test_what_is_imported_does_not_change_what_is_drawn(tmp_path, monkeypatch, drawn_alone):
    cases = []

    def recorded(x, weight, eps, weight_offset, normalized_shape):
        cases.append((tuple(x.shape), eps, x.dtype, repr(x.double().sum().item())))  # of its seed too
        return rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)

    def drawn():
        cases.clear()
        run(recorded, examples=250, checks=("signature",))
        return tuple(cases)

    before = drawn()
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(1, 601))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(providers, "is_local_module_file", lambda path: "full_of_numbers" in path)
    monkeypatch.setitem(sys.modules, "full_of_numbers", importlib.import_module("full_of_numbers"))
    assert 600 in providers._get_local_constants().set_for_type("integer")
    assert drawn() == before


@pytest.mark.slow
def test_models_at_full_row_length_pass():
    """All in the checks that make no further runs, those of one type in all checks."""
    for dtypes, checks in ((DTYPES, WITHOUT_FURTHER_RUNS), (("float32",), ())):
        settings = Settings(dtypes, checks, examples=0, seconds=600, shapes="models", isolate=False)
        report = search(load("layernorm_bwd"), settings)
        assert report.ok
        assert report.cases == len(models.model_cases(OPS["layernorm_bwd"], full=False, dtypes=dtypes)[0])


@pytest.mark.slow
def test_models_too_large_for_a_cpu_are_said_to_be_left_out():
    def nothing(x):
        raise RuntimeError

    report = search(Kernel("k", "groupnorm_fwd", run=nothing), Settings(examples=0, seconds=9, shapes="models"))
    assert "model X = 2240" in {skip.what for skip in report.skipped}


@pytest.mark.slow
def test_a_kernel_that_supports_nothing_passes_nothing():
    report = run(examples=5, unsupported=lambda spec: "nothing")
    assert not report.ok
    assert report.cases == 0


def test_the_smallest_case_has_a_type_that_was_asked_for(unexplained, few_corners):
    """Of the types float32 is the simplest."""
    few_corners(slice(30))

    def doubled(*given, **options):
        return 2 * rmsnorm_fwd(*given, **options)

    (finding,) = run(doubled, dtypes=("bfloat16",), checks=("accuracy",), examples=0).findings
    assert (finding.spec.dtype, len(finding.spec.shape)) == ("bfloat16", 1)


@pytest.mark.slow
def test_findings_count_and_shrink(unexplained):
    def wrong_in_long_rows(x, weight, eps, weight_offset, normalized_shape):
        y = rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
        return y * 2 if x.shape[-1] > 100 else y

    report = run(wrong_in_long_rows, examples=0, checks=("signature", "accuracy", "distribution", "statistics"))
    (finding,) = [found for found in report.findings if found.check == "accuracy"]
    assert {found.output for found in report.findings} == {"y"}
    assert finding.spec == CaseSpec(shape=(101,))
    failed = next(check.failed for check in report.checks if check.name == "accuracy")
    assert failed == finding.cases > 5


@pytest.mark.slow
def test_examples_are_drawn_from_the_seed(drawn_alone):

    @settings(max_examples=1)
    @given(st.none())
    def unrelated(_):
        pass

    def tallies(seed):
        return run(seed=seed, examples=20, checks=("accuracy",)).tallies

    one = tallies(1)
    unrelated()
    assert one == tallies(1)
    assert one != tallies(2)


def test_the_search_ends_at_the_finding_that_it_is_for():
    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps, weight_offset, normalized_shape: x * 2)
    sought = search(kernel, Settings(examples=50), until=lambda finding: finding.check == "accuracy")
    assert [finding.check for finding in sought.findings] == ["accuracy"]
    assert ("cases", "the search was for this finding") in {(skip.what, skip.reason) for skip in sought.skipped}


def test_the_time_is_kept():
    report = run(examples=10**6, checks=("signature",), seconds=0.2)
    assert ("cases", "the 0.2 s were over") in {(skip.what, skip.reason) for skip in report.skipped}


def test_a_case_of_another_operator_is_refused():
    kernel = Kernel("k", "groupnorm_fwd", run=lambda x: x)
    with pytest.raises(UsageError, match=r"the spec does not fit groupnorm_fwd: .*cannot be divided"):
        replay(kernel, CaseSpec((2, 3), num_groups=2), Settings())
    with pytest.raises(UsageError, match="the spec does not fit rmsnorm_fwd, which has no num_groups"):
        replay(Kernel("k", "rmsnorm_fwd", run=lambda x: x), CaseSpec((2, 3), num_groups=3), Settings())


@pytest.mark.slow
def test_many_rows_are_summed_where_that_takes_little_time(pause):
    """A backward that adds the first 1024 rows alone is detected; one that is slow for each row passes without them."""

    def backward(kept, of_a_row):
        def run(dy, x, weight, rstd, eps, weight_offset, normalized_shape):
            pause(of_a_row * len(rstd))
            tensors = [t.reshape(-1, *normalized_shape) for t in (dy, x)]
            dx, _ = rmsnorm_bwd()(dy, x, weight, rstd, eps, normalized_shape, weight_offset)
            first = (t[:kept] for t in tensors)
            return dx, rmsnorm_bwd()(*first, weight, rstd[:kept], eps, normalized_shape, weight_offset)[1]

        return Kernel("k", "rmsnorm_bwd", run=run)

    options = Settings(examples=0, seconds=60.0, isolate=False, checks=("accuracy",))
    assert {f.output for f in search(backward(1024, 0.0), options).findings} == {"dweight"}
    slow = search(backward(None, 0.002), options)
    assert slow.ok
    assert [skip.cases for skip in slow.skipped if "rows are slow" in skip.reason] == [len(corner_rows.MANY_ROWS)]


@pytest.mark.slow
def test_a_batch_is_as_large_as_the_kernels_time_allows(pause):
    """What begins at 4096 rows is detected; a kernel that is slow for each row is not run with so many."""

    def forward(of_a_row):
        def run(x, weight, eps, weight_offset, normalized_shape):
            pause(of_a_row * len(x))
            y, rstd = rmsnorm()(x, weight, eps, normalized_shape, weight_offset)
            return (y, torch.nextafter(rstd, 2 * rstd)) if len(rstd) >= 4096 else (y, rstd)

        return Kernel("k", "rmsnorm_fwd", run=run, contract=Contract(batch_invariant=True))

    options = Settings(dtypes=("float32",), examples=0, seconds=60.0, isolate=False, checks=("batch_invariance",))
    (finding,) = search(forward(0.0), options, until=lambda finding: True).findings
    assert (finding.output, finding.spec.batch) == ("rstd", 4096)
    slow = search(forward(0.001), options)
    assert slow.ok
    assert next(skip.cases for skip in slow.skipped if "rows are slow" in skip.reason) >= 2
