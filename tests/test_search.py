"""What a run covers, counts and reports."""

import importlib
import sys
from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from verify_norm import cases, corners, data, memory, shapes, strategies
from verify_norm.checks import CHECKS
from verify_norm.dtypes import FORMATS
from verify_norm.examine import NO_ROOM
from verify_norm.ops import OPS
from verify_norm.registry import load
from verify_norm.report.model import Settings
from verify_norm.search import replay, search
from verify_norm.spec import FAMILIES, LAYOUTS, WEIGHTS, CaseSpec, Kernel

DTYPES = ("float32", "float16", "bfloat16")


def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    return (y if weight is None else y * (weight.double() + weight_offset)).to(x.dtype)


def run(function=rmsnorm_fwd, *, examples=60, seconds=30.0, unsupported=None, **options):
    kernel = Kernel("k", "rmsnorm_fwd", run=function, unsupported=unsupported)
    return search(kernel, Settings(examples=examples, seconds=seconds, **options))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("elements", [2**14, 2**19])
def test_drawn_specs_fit_their_operator(op, elements):
    seen = Counter()
    source = "x" if op.endswith("_fwd") or not op.startswith("add_") else "residual_out"

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(OPS[op], DTYPES, elements))
    def drawn(spec):
        assert all(n >= 0 for n in spec.shape)
        assert torch.Size(spec.shape).numel() <= 4 * elements
        assert data.refusal(spec, OPS[op]) is None
        if "num_groups" in OPS[op].attrs:
            assert spec.shape[1] % spec.num_groups == 0
        elif OPS[op].view != "rows":
            assert len(spec.shape) >= 2
            assert spec.shape[1] > 0
            assert spec.num_groups is None
        else:
            assert 1 <= spec.normalized_ndim <= len(spec.shape) <= 5
            assert min(spec.shape[len(spec.shape) - spec.normalized_ndim :]) > 0
        seen.update((spec.dtype, getattr(spec, f"{source}_layout"), spec.data, len(spec.shape), spec.weight_data))
        seen["alike"] += spec.dy_layout == getattr(spec, f"{source}_layout") != "contiguous"
        seen.update((("training", spec.training), ("running", spec.running), ("momentum", spec.momentum)))

    with strategies.whatever_is_imported():
        drawn()
    assert set(DTYPES) <= set(seen)
    assert len(set(LAYOUTS) & set(seen)) >= 5  # all of them are in the corner table
    assert set(FAMILIES) | set(WEIGHTS) <= set(seen)
    modes = {("training", False), ("running", False), ("momentum", 1.0), ("momentum", 0.0)}
    assert op.endswith("_fwd") or seen["alike"] > 30  # of 300
    assert modes & set(seen) == (modes if op.startswith("batchnorm") else set())


def test_a_run_covers_every_dtype_and_layout():
    report = search(load("layernorm_bwd"), Settings(examples=150, seconds=55))
    assert report.ok
    assert report.cases >= 150
    assert {t.dtype for t in report.tallies if t.output == "dx"} == set(DTYPES)
    for layout in LAYOUTS:
        assert report.layouts[f"dy {layout}"]
        assert layout == "scalar" or report.layouts[f"x {layout}"]
    assert (report.seconds - report.seconds_in_kernel) / report.cases < 0.1  # a case costs little beside the kernel
    gradient = next(check for check in report.checks if check.name == "gradient")
    assert gradient.cases > 10
    assert 0 < gradient.power < 0.1


def test_what_is_imported_does_not_change_what_is_drawn(tmp_path, monkeypatch):
    cases = []

    def recorded(x, weight, eps, weight_offset, normalized_shape):
        cases.append((tuple(x.shape), eps, x.dtype))
        return rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)

    def drawn():
        cases.clear()
        run(recorded, examples=200, checks=("signature",), isolate=False)
        return tuple(cases)

    before = drawn()
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(1, 601))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(providers, "is_local_module_file", lambda path: "full_of_numbers" in path)
    monkeypatch.setitem(sys.modules, "full_of_numbers", importlib.import_module("full_of_numbers"))
    assert 600 in providers._get_local_constants().set_for_type("integer")
    assert drawn() == before


@pytest.mark.parametrize("gpu", [False, True], ids=["a CPU", "a GPU"])
@pytest.mark.parametrize("op", OPS)
def test_corners_are_specs_of_their_operator(op, gpu):
    table = corners.corners(OPS[op], DTYPES, gpu=gpu)
    assert len(table) == len(set(table)) > 40
    assert {spec.dtype for spec in table} == set(DTYPES)
    assert not [spec for spec in table if data.refusal(spec, OPS[op])]
    assert {spec.weight_data for spec in table} == set(WEIGHTS)
    assert {spec.num_groups is None for spec in table} == {"num_groups" not in OPS[op].attrs}
    zero = [spec for spec in table if spec.data == "zero"]
    assert {0.0} < {spec.eps for spec in zero}


@pytest.mark.parametrize("op", OPS)
def test_every_type_has_many_rows_and_long_ones_of_ordinary_data(op):
    """A mistake that begins at a size shows nothing where most values under- or overflow, or in another type."""
    table = corners.corners(OPS[op], DTYPES)
    usual = [spec for spec in table if spec.data == "normal" and not (spec.special or spec.log2_scale)]
    many = {spec.dtype for spec in usual if spec.shape[0] > 128}
    long = {spec.dtype for spec in usual if prod(spec.shape[1:]) > 2048 and spec.offset}
    assert many == long == set(DTYPES)


@pytest.mark.parametrize(("weight", "said"), [(True, None), (False, "no input needs a gradient")])
def test_a_case_has_something_to_differentiate(weight, said):
    op, spec = OPS["rmsnorm_bwd"], CaseSpec((2, 3), weight=weight, frozen=("x",))
    assert data.refusal(spec, op) == said
    assert data.refusal(replace(spec, frozen=()), op) is None

    @settings(max_examples=500, deadline=None, derandomize=True, database=None)
    @given(strategies.specs(op, DTYPES, 2**10, frozen=True))
    def drawn(spec):
        assert data.refusal(spec, op) is None

    drawn()


@pytest.mark.parametrize("op", OPS)
def test_a_gpu_has_offsets_beyond_32_bits_in_types_for_which_it_has_room(op):
    def far(*dtypes, gpu=True):
        table = corners.corners(OPS[op], dtypes, gpu=gpu)
        return [s for s in table if "far" in (s.x_layout, s.dy_layout, s.residual_layout, s.residual_out_layout)]

    assert {s.dtype for s in far(*DTYPES)} <= {"float16", "bfloat16"}
    assert len(far(*DTYPES)) == len(far(*DTYPES, gpu=False)) == len(far("float32")) > 0


def test_what_had_no_room_is_told(monkeypatch):
    monkeypatch.setattr(memory, "_untouched", lambda *_: None)
    report = replay(load("layernorm_fwd_torch"), CaseSpec((3, 4), x_layout="far"), Settings(isolate=False))
    assert report.layouts["x contiguous"] == 1
    assert [skip.what for skip in report.skipped] == ["x beyond 2³¹ elements"]
    single = CaseSpec((1, 4), x_layout="far")  # one row has no other to be far from
    assert not replay(load("layernorm_fwd_torch"), single, Settings(isolate=False)).skipped


def test_every_type_has_groups_that_no_program_holds_alone_in_either_layout():
    table = (corners.corners(OPS["groupnorm_bwd"], DTYPES, gpu=gpu) for gpu in (True, False))
    large = {s for s in set.difference(*map(set, table)) if s.x_layout != "far"}
    assert {(s.dtype, s.x_layout, s.dy_layout) for s in large} == {
        (dtype, layout, layout) for dtype in DTYPES for layout in ("contiguous", "channels_last")
    }
    assert {s.offset for s in large} == {0.0, 1e3}
    assert min(prod(s.shape) // s.shape[0] // s.num_groups for s in large) > 2**14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd"])
def test_corners_reach_both_ends_of_every_type(op, dtype):
    form, (low, high) = FORMATS[dtype], (set(), set())
    for spec in corners.corners(OPS[op], (dtype,)):
        x = np.abs(data.draw(spec, OPS[op], next(t for t in OPS[op].inputs if t.name == "x")))
        x = x[np.isfinite(x)]
        if x.size and 0 < x.max() < 4 * form.smallest_normal:
            low.add((x < form.smallest_normal).any())
        if x.size:
            high.add(x.max() == form.largest)
    assert low == {True}
    assert True in high


def test_batchnorms_corners_are_in_training_and_in_evaluation():
    table = corners.corners(OPS["batchnorm_fwd"], ("float32",))
    training, fixed = (
        {replace(spec, training=True, seed=0) for spec in table if spec.training is mode} for mode in (True, False)
    )
    assert {spec for spec in training if spec.running} < fixed
    assert {spec.shape for spec in fixed - training} == {(1, 3, 1)}  # one value a channel
    assert {spec.momentum for spec in table} >= {0.0, 1e-3, 0.1, 1.0}


@pytest.mark.parametrize("op", OPS)
def test_models(op):
    small, too_large = shapes.model_cases(OPS[op], full=False, dtypes=DTYPES)
    full, none = shapes.model_cases(OPS[op], full=True, dtypes=DTYPES)
    assert len(small) + len(too_large) == len(full) >= 6
    assert not none
    layouts = {"contiguous", "channels_last"} if OPS[op].view == "groups" and full[0].num_groups else {"contiguous"}
    assert {spec.x_layout for spec in small} == {spec.dy_layout for spec in full} == layouts
    for few, all_ in zip(small, full[: len(small)], strict=True):
        if few.num_groups is None:
            assert few.shape[-1] == all_.shape[-1]
        else:
            assert few.shape[1] // few.num_groups == all_.shape[1] // all_.num_groups
            assert few.shape[2:] == all_.shape[2:]


def test_models_at_full_row_length_pass():
    report = search(load("layernorm_bwd"), Settings(examples=0, seconds=55, shapes="models"))
    assert report.ok
    assert report.cases == len(shapes.model_cases(OPS["layernorm_bwd"], full=False, dtypes=DTYPES)[0])


def test_models_too_large_for_a_cpu_are_said_to_be_left_out():
    def nothing(x):
        raise RuntimeError

    report = search(Kernel("k", "groupnorm_fwd", run=nothing), Settings(examples=0, seconds=9, shapes="models"))
    assert "model X = 2240" in {skip.what for skip in report.skipped}


def test_what_is_not_returned_is_said():
    report = run()
    assert report.ok
    assert ("output rstd", "k does not return it") in {(skip.what, skip.reason) for skip in report.skipped}
    assert {check.name: check.cases for check in report.checks}["statistics"] == 0


def test_what_is_not_supported_is_skipped_with_its_reason():
    report = run(unsupported=lambda spec: "16-bit only" if spec.dtype == "float32" else None)
    assert report.ok
    assert {t.dtype for t in report.tallies} == {"float16", "bfloat16"}
    assert next(skip for skip in report.skipped if skip.reason == "16-bit only").cases > 10


def test_a_kernel_that_supports_nothing_passes_nothing():
    report = run(unsupported=lambda spec: "nothing")
    assert not report.ok
    assert report.cases == 0


def test_findings_count_and_shrink():
    def wrong_in_long_rows(x, weight, eps, weight_offset, normalized_shape):
        y = rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
        return y * 2 if x.shape[-1] > 100 else y

    report = run(wrong_in_long_rows)
    (finding,) = report.findings
    assert (finding.check, finding.output) == ("accuracy", "y")
    assert finding.spec == CaseSpec(shape=(101,))
    failed = next(check.failed for check in report.checks if check.name == "accuracy")
    assert failed == finding.cases > 5


def test_errors_of_several_outputs_are_several_findings():
    def both(dy, x, weight, bias, mean, rstd):
        return torch.full_like(x, torch.nan), torch.zeros_like(weight) if weight is not None else None

    report = search(Kernel("k", "layernorm_bwd", run=both), Settings(examples=20, seconds=20))
    assert {(f.check, f.output) for f in report.findings} >= {("accuracy", "dx"), ("accuracy", "dweight")}
    assert all(f.spec.shape for f in report.findings)


def test_the_largest_error_over_bound_is_kept_with_its_case():
    report = run()
    for tally in report.tallies:
        assert 0 < tally.ratio <= 1
        assert tally.worst.dtype == tally.dtype
        assert tally.elements >= tally.ulp.count > 0


def test_examples_are_drawn_from_the_seed():
    @settings(max_examples=1)
    @given(st.none())
    def unrelated(_):
        pass

    one = run(seed=1).tallies
    unrelated()
    assert one == run(seed=1).tallies
    assert one != run(seed=2).tallies


def test_a_case_that_the_gpu_has_no_room_for_is_told_and_ends_nothing(monkeypatch):
    make = cases.make

    def full(spec, *args):
        if spec.dtype == "float32":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return make(spec, *args)

    monkeypatch.setattr(cases, "make", full)
    report = run(isolate=False)
    assert report.ok
    assert report.cases > 20
    assert any(skip.reason == NO_ROOM and skip.cases > 10 for skip in report.skipped)
    assert {tally.dtype for tally in report.tallies} == {"float16", "bfloat16"}


def test_a_check_that_the_gpu_has_no_room_for_takes_no_other_finding_with_it(monkeypatch):
    def full(ran):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps, weight_offset, normalized_shape: x * 2)
    monkeypatch.setitem(CHECKS, "identities", replace(CHECKS["identities"], function=full, looks=lambda ran: True))
    report = replay(kernel, CaseSpec(shape=(3, 5)), Settings(isolate=False))
    assert "accuracy" in {finding.check for finding in report.findings}
    assert ("check identities", NO_ROOM) in {(skip.what, skip.reason) for skip in report.skipped}
    assert {result.name: result.cases for result in report.checks}["identities"] == 0
