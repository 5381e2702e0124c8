"""What a search plans: the corner table, and the shapes of models."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import pytest

from verify_norm.cases import corners, dispatch, models
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.isolate import InProcess
from verify_norm.search import planning
from verify_norm.search.collector import Collector


@pytest.mark.parametrize("name", ["layernorm_bwd", "rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd"])
def test_a_gpu_gets_the_shapes_of_models_at_full_size_with_few_further_runs(name):
    op = OPS[name]
    gpu, cpu = (
        planning.table_of(op, Settings(device=device), KERNEL_DTYPES, frozen=False) for device in ("cuda:0", "cpu")
    )
    full, _ = models.model_cases(op, full=True, dtypes=KERNEL_DTYPES)
    shapes = [spec.shape for spec in (*full, *corners.enormous(op, KERNEL_DTYPES))]
    assert [spec.shape for spec in gpu[1]] == shapes
    assert max(prod(spec.shape) for spec in gpu[1]) > 2**23
    assert all(len(spec.further) < 4 for spec in gpu[1])
    assert cpu[1] == []
    asked = planning.table_of(op, Settings(device="cuda:0", shapes="models"), KERNEL_DTYPES, frozen=False)
    assert asked[:2] == ([], full)


def begun(op="rmsnorm_fwd", settings=None, **fields):
    """The state of a run that has not begun."""
    kernel = Kernel("k", op, **{"run": print} | fields)
    return Collector(kernel, settings or Settings(isolate=False), InProcess(kernel, "cpu"))


def twice(function, *given):
    """What a function returns the second time: what it notes, it adds."""
    function(*given)
    return function(*given)


def test_a_run_has_the_types_that_it_and_the_kernel_name_and_says_what_does_not_apply():
    settings = Settings(("float32", "bfloat16"), ("accuracy", "statistics"), isolate=False)
    state = begun(
        "rmsnorm_bwd",
        settings,
        dtypes=("bfloat16", "float16"),
        unset=("bias",),
        kept=(("eps", "it is 1e-6"), ("inner", "it is 3")),
    )
    assert twice(planning.offered_dtypes, state) == ("bfloat16",)
    assert dict(state.skipped) == {
        ("argument bias", "rmsnorm_bwd has none, so it is None"): 2,
        ("argument eps", "it is 1e-6"): 2,
        ("argument inner", "it is 3"): 2,
        ("check statistics", "does not apply to rmsnorm_bwd"): 2,
        ("dtype float32", "k offers bfloat16, float16"): 2,
    }


def test_without_checks_that_are_named_all_are_looked_at():
    state = begun("rmsnorm_bwd")
    assert planning.offered_dtypes(state) == KERNEL_DTYPES
    assert dict(state.skipped) == {("check statistics", "does not apply to rmsnorm_bwd"): 1}


def test_a_model_that_is_too_large_for_a_cpu_is_named():
    state = begun("groupnorm_fwd", Settings(shapes="models", isolate=False))
    table, large = twice(planning.corner_table, state, ("float32",))
    shaped, left_out = models.model_cases(OPS["groupnorm_fwd"], full=False, dtypes=("float32",))
    assert (table, large) == (shaped, [])
    assert dict(state.skipped) == {(f"model {name}", planning.TOO_LARGE): 2 for name in left_out}
    assert left_out


FITTED = {"fit": lambda spec: replace(spec, eps=0.5)}


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "groupnorm_fwd"])
def test_the_table_has_what_every_kernel_runs_then_models_and_what_may_be_slow_comes_later(op):
    fuzz, every, gpu = (
        begun(op, Settings(shapes=shapes, device=device, isolate=False), **FITTED)
        for shapes, device in (("fuzz", "cpu"), ("all", "cpu"), ("fuzz", "cuda:0"))
    )
    usual, large = planning.corner_table(fuzz, ("float16",))
    cases = planning.table_of(OPS[op], fuzz.settings, ("float16",), frozen=False)[0]
    assert (usual, large) == fuzz.pace.parted([replace(spec, eps=0.5) for spec in cases], OPS[op])
    assert usual
    assert large
    shaped = models.model_cases(OPS[op], full=False, dtypes=("float16",))[0]
    assert planning.corner_table(every, ("float16",)) == (usual + shaped, large)
    table, later = planning.corner_table(gpu, ("float16",))
    cases, shaped, _ = planning.table_of(OPS[op], gpu.settings, ("float16",), frozen=False)
    few, many = gpu.pace.parted([replace(spec, eps=0.5) for spec in cases], OPS[op])
    assert (table, later) == (few, many + shaped)


@pytest.mark.parametrize(("autograd", "gpu"), [(False, False), (True, False), (True, True)])
def test_the_table_is_that_of_the_kernel_and_the_device(autograd, gpu):
    settings = Settings(device="cuda:0" if gpu else "cpu", isolate=False)
    state, op = begun("layernorm_bwd", settings, autograd=autograd), OPS["layernorm_bwd"]
    table, large = planning.corner_table(state, ("float32",))
    cases = corners.corners(op, ("float32",), frozen=autograd, gpu=gpu)
    shaped = models.model_cases(op, full=True, dtypes=("float32",))[0] if gpu else []
    further = (
        *(replace(spec, further=corners.AT_EVERY_SIZE) for spec in shaped),
        *corners.enormous(op, ("float32",) * gpu),
    )
    assert {*table, *large} == {*cases, *further}
    assert any(spec.frozen for spec in table) == autograd
    assert {*cases} != {*corners.corners(op, ("float32",), frozen=autograd, gpu=not gpu)}


def test_batches_are_for_the_checks_that_run_them():
    def batches(device, *checks):
        settings = Settings(checks=checks, isolate=False, device=device)
        table, large = planning.corner_table(begun(settings=settings), ("float32",))
        return {spec.batch for spec in (*table, *large)}

    for device, largest in (("cpu", 4099), ("cuda:0", 524_800)):
        assert batches(device, "accuracy") == {0}
        assert max(batches(device, "accuracy", "determinism")) == largest


@pytest.mark.parametrize("seed", [5, 2**64 + 5])
def test_an_untrusted_kernel_meets_data_that_it_cannot_know(seed):
    def seeds(**settings):
        table, large = planning.corner_table(begun(settings=Settings(isolate=False, **settings)), ("float32",))
        return [spec.seed for spec in (*table, *large)]

    assert seeds(seed=seed) == seeds()
    assert seeds(seed=seed, untrusted=True) == [known ^ 5 for known in seeds()]


@pytest.mark.parametrize(("device", "gpu"), [("cpu", False), ("cuda:1", True)])
def test_all_pairs_of_choices_meet_in_the_first_further_cases(device, gpu, monkeypatch):
    asked, rows = [], [CaseSpec((2, n)) for n in range(1, 6)]

    def array(*given, **named):
        asked.append((given, named))
        return SimpleNamespace(rows=rows, pairs=77)

    monkeypatch.setattr(planning.covering, "array", array)
    few, table = dispatch.tiny(OPS["rmsnorm_bwd"], ("float16",), 9), (CaseSpec((3, 3)),)
    settings = Settings(examples=len(few) + 3, seed=9, device=device, isolate=False)
    state = begun("rmsnorm_bwd", settings, autograd=True, **FITTED)
    found = planning.covering_cases(state, ("float16",), table)
    assert found == tuple(replace(spec, eps=0.5) for spec in (*few, *rows[:3]))
    assert state.possible == 77
    assert asked == [((OPS["rmsnorm_bwd"], ("float16",), (*table, *few), 9), {"frozen": True, "gpu": gpu})]


def test_the_smallest_case_of_each_type_comes_first():
    """Of its batch; one without elements builds nothing, and the rest keeps its order."""
    empty, small, wide = CaseSpec((0, 3)), CaseSpec((1, 2)), CaseSpec((9, 9))
    half, repeated = CaseSpec((5, 5), weight_dtype="float16"), CaseSpec((1, 1), batch=50)
    table = [wide, repeated, empty, half, small]
    assert planning._smallest_first(table) == [small, half, wide, repeated, empty]


@pytest.mark.parametrize("name", ["layernorm_bwd", "groupnorm_fwd"])
def test_cases_in_which_programs_may_race_come_early_on_a_gpu(name):
    settings = Settings(device="cuda:0", isolate=False)
    table, large = planning.corner_table(begun(name, settings), KERNEL_DTYPES)
    ordered = list(planning.in_order(table, large, "cuda:0"))
    crowded = [spec for spec in large if 2**19 < prod(spec.shape) <= 2**23]
    early = [spec for spec, slow in ordered[: planning.FIRST + len(KERNEL_DTYPES)] if slow]
    early = [spec for spec in early if spec in crowded]
    assert [spec.dtype for spec in early] == list(dict.fromkeys(spec.dtype for spec in crowded))
    assert len(early) > 1
    assert [spec for spec, slow in ordered if not slow] == table
    rest = [spec for spec, slow in ordered if slow and spec not in early]
    assert rest == [spec for spec in large if spec not in early]
    assert not any(slow for _, slow in ordered[: planning.FIRST])


def test_on_a_cpu_what_may_be_slow_comes_last():
    table, large = [CaseSpec((1, n)) for n in range(1, 99)], [CaseSpec((16384, 192)), CaseSpec((4096, 1024))]
    ordered = list(planning.in_order(table, large, "cpu"))
    assert ordered == [*((spec, False) for spec in table), *((spec, True) for spec in large)]
