"""The main job on a GPU: the kernels as they are compiled, not as they are interpreted."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from detection import detect
from typer.testing import CliRunner

import verify_norm
from verify_norm.cases import address_space, contents, corners, placement
from verify_norm.checks import determinism
from verify_norm.cli.app import app
from verify_norm.core import errors, ways
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.exhaustive.model import Choice
from verify_norm.exhaustive.run import exhaust
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.loading.builtin import BUILTIN
from verify_norm.report import documents
from verify_norm.running import delayed_inputs
from verify_norm.search import crew, sanitize
from verify_norm.search.examine import examine
from verify_norm.search.search import search
from verify_norm.validation.zoo import detectable

SHARE = str(
    max(crew.cores() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
)  # of the processors, for one test
HOSTILE = Path(__file__).parent / "support" / "hostile_cuda.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]


@pytest.mark.parametrize("name", [name for name, kernel in BUILTIN.items() if kernel.backend == "triton"])
def test_every_kernel_passes_on_the_gpu(name):
    arguments = ["--kernel", name, "--examples", "60", "--seconds", "150", "--seed", "11", "--json", "-"]
    arguments += ["--workers", SHARE]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = documents.load(result.stdout)
    assert report.cases > 80
    assert "interpreter" not in report.environment


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees one CUDA device here")
@pytest.mark.parametrize("name", ["layernorm_fwd", "U38_converted", "U29_in_threads"])
def test_the_last_device_is_as_good_as_the_first(name):
    """A kernel and a CUDA graph are launched on the current device, which each thread has of its own."""
    kernel, device = registry.ready(ZOO[name].kernel) if name in ZOO else registry.load(name), "cuda:1"
    examined = examine(kernel, CaseSpec((2, 64)), ("modes", "calls", "determinism"), device)
    assert examined.looked
    assert not examined.findings, examined.findings
    assert torch.cuda.current_device() == 0


def test_a_module_on_the_cpu_serves_cases_on_the_gpu():
    for way in ways.WAYS["call"]:
        kernel = registry.ready(ZOO["U38_converted"].kernel)
        examined = examine(kernel, CaseSpec((2, 64), call=way), ("calls",), "cuda:0")
        assert examined.looked == ("calls",)
        assert not examined.findings


def test_far_tensors_take_one_block_which_serves_again():
    kernel, far = registry.load("rmsnorm_fwd"), CaseSpec(shape=(3, 4), dtype="bfloat16", x_layout="far")
    examine(kernel, far, ("accuracy",), "cuda:0")
    before = torch.cuda.mem_get_info()[0]
    for spec, taken in ((far, True), (replace(far, shape=(1000, 5)), True), (replace(far, x_layout="offset"), False)):
        examined = examine(kernel, spec, ("accuracy", "memory"), "cuda:0")
        assert examined.looked
        assert not examined.findings
        assert ("x far" in examined.layouts) is taken
    assert before - torch.cuda.mem_get_info()[0] <= 4 * address_space.BLOCK


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16", "float32"])
def test_far_rows_hold_their_values_between_poison(dtype):
    values = np.arange(5.0 * 6).reshape(5, 6) % 16
    kept = [placement.place(values + number, dtype, "far", np.nan, "cuda:0") for number in (0, 1)]
    for number, tensor in enumerate(kept):
        assert tensor.untyped_storage().nbytes() > 2**32
        assert np.array_equal(contents.to_float64(tensor), values + number)
        wrapped = tensor.as_strided(tensor.shape, (tensor.stride(0), 1), tensor.storage_offset() - 2**31)
        assert np.isnan(contents.to_float64(wrapped)).all()
    ranges = {each.untyped_storage().data_ptr() for each in kept}
    del kept, tensor, wrapped
    assert len(ranges) == 2
    assert placement.place(values, dtype, "far", 7.0, "cuda:0").untyped_storage().data_ptr() in ranges


def overflowing(t):
    e = (2 * t).exp()
    return (e - 1) / (e + 1)


@pytest.mark.parametrize(("body", "right"), [(torch.tanh, True), (overflowing, False)])
def test_an_operator_of_ones_own_is_judged(body, right):
    def kernel(x, weight):
        return (body(x.float()) * weight.float()).to(x.dtype)

    operator = verify_norm.operator(lambda x, weight: weight * np.tanh(x), name="tanh")
    reports = verify_norm.verify(kernel, operator, device="cuda", examples=60, seconds=60, isolate=False)
    for report in reports:
        assert report.cases > 60
        assert bool(report.findings) is not right, report.findings
        assert right or np.isnan(report.findings[0].got)


def test_an_offset_that_wraps_at_32_bits_is_seen():
    assert detect(ZOO["A16_int32_row_offset"], Settings(device="cuda:0")) is not None


@pytest.mark.parametrize(
    "name",
    [
        "A28_block_depends_on_M",
        "U16_programs_by_rows",
        "rmsnorm_fwd",
        "layernorm_fwd",
        "layernorm_bwd",
        "groupnorm_fwd",
    ],
)
def test_a_rows_bits_at_servings_sizes(name):
    """Only vLLM's RMSNorm changes them at 256 rows, and in each type."""
    kernel, found, seen = registry.ready(ZOO[name].kernel) if name in ZOO else registry.load(name), [], set()
    dtypes = ("float32", "float16", "bfloat16")
    for spec in corners.corners(OPS[kernel.op], dtypes, gpu=True):
        if spec.batch:
            examined = examine(kernel, spec, ("batch_invariance", "determinism"), "cuda:0")
            assert "batch_invariance" in examined.looked, spec
            found += examined.findings
            seen.add((spec.batch, spec.shape[1]))
    assert OPS[kernel.op].view != "rows" or seen >= set(product((255, 256, 257, 300, 4096), (512, 4096, 8192)))
    assert {f.check for f in found} == ({"batch_invariance"} if name.startswith("A28") else set()), found
    assert not found or {f.spec.dtype for f in found} == set(dtypes)


RACES = [
    "A38_default_stream",
    "A39_no_dependency_wait",
    "A40_amax_too_early",
    "A43_stream_not_waited_for",
    "A44_eps_staged",
]


@pytest.mark.parametrize("name", RACES)
def test_a_launch_that_does_not_wait_is_seen(name):
    example = ZOO[name]
    if example not in detectable("cuda:0"):
        pytest.skip(example.reason)
    found = detect(example, Settings(device="cuda:0", checks=("determinism",)))
    assert found is not None
    assert "does not wait for the one before" in found.message


@pytest.mark.parametrize("name", ["layernorm_bwd", "groupnorm_silu_bwd", "rmsnorm_fwd_e4m3fn", "layernorm_fwd_cuda3"])
def test_inputs_that_arrive_late_change_no_bit_of_a_kernel_that_waits(name, monkeypatch):
    kernel, arriving, seen = registry.load(name), delayed_inputs.arriving, []
    monkeypatch.setattr(delayed_inputs, "arriving", lambda case: (seen.append(case), arriving(case))[1])
    settings = Settings(device="cuda:0", examples=60, seconds=60.0, checks=("determinism",), isolate=False)
    report = search(kernel, settings)  # a cold compiler may need more than the 60 s
    assert report.findings == ()
    assert len(seen) > 10


def test_without_a_pause_all_is_over_before_it_is_read(monkeypatch):
    """Why the inputs are late: the same wrong kernel, on the same cases, shows nothing in an idle stream."""
    monkeypatch.setattr(determinism, "_late", lambda run: ())
    kernel = registry.ready(ZOO["A38_default_stream"].kernel)
    settings = Settings(device="cuda:0", examples=30, seconds=30.0, checks=("determinism",), isolate=False)
    assert search(kernel, settings).ok


def test_a_kernel_that_fails_only_there_is_convicted(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):\n"
        "    dims = tuple(range(-len(normalized_shape), 0))\n"
        "    y = x.double() * torch.rsqrt(x.double().square().mean(dims, keepdim=True) + eps * (1 + 9 * x.is_cuda))\n"
        "    return (y if weight is None else y * (weight.double() + weight_offset)).to(x.dtype)\n"
    )
    for device, status in (("cuda:0", 1), ("cpu", 0)):
        command = ["--kernel", f"{path}:rmsnorm_fwd", "--examples", "30", "--device", device]
        result = subprocess.run([sys.executable, "-m", "verify_norm", *command], capture_output=True, text=True)
        assert result.returncode == status, result.stdout + result.stderr


def test_triton_kernels_are_interpreted_on_the_cpu_of_a_machine_with_a_gpu():
    command = ["--kernel", "rmsnorm_fwd", "--examples", "5", "--device", "cpu", "--json", "-"]
    result = subprocess.run([sys.executable, "-m", "verify_norm", *command], capture_output=True, text=True)
    # Triton 3.6's interpreter and NumPy 2.4 do not go together; what matters here is that it was the interpreter.
    assert "Traceback" not in result.stderr, result.stderr
    assert "interpreter" in documents.load(result.stdout).environment


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("past_the_end", "memory", "behind the last element of y"),
        ("illegal_address", "signature", "illegal memory access"),
        ("deadlock", "crash", "did not return"),
    ],
)
def test_what_breaks_a_cuda_context_is_survived(name, check, words):
    kernel = registry.load(f"{HOSTILE}:{name}", "rmsnorm_fwd")
    checks = ("crash", "signature", "accuracy", "memory")
    report = search(kernel, Settings(examples=10, seconds=60.0, timeout=10.0, device="cuda:0", checks=checks))
    (finding,) = [f for f in report.findings if f.check == check]
    assert words in finding.message
    assert prod(finding.spec.shape) > 3000
    accuracy = next(c for c in report.checks if c.name == "accuracy")
    assert accuracy.cases > 20
    assert accuracy.failed == 0


def test_the_sanitizer_sees_what_lies_past_the_end():
    try:
        path = sanitize.find("cuda:0")
    except errors.UsageError as error:
        pytest.skip(str(error))
    settings = Settings(seconds=150.0, device="cuda:0")
    kernel = registry.load(f"{HOSTILE}:past_the_end", "rmsnorm_fwd")
    try:
        report = sanitize.sanitize(kernel, settings, "memcheck", path)
    except errors.UsageError as error:
        pytest.skip(str(error))  # a virtual machine may have it installed, and no right to use it
    (finding,) = report.findings
    assert "Invalid __global__ write" in finding.message
    assert prod(finding.spec.shape) > 3000
    clean = sanitize.sanitize(registry.load("rmsnorm_fwd"), settings, "memcheck", path)
    assert clean.ok, clean.findings


@pytest.mark.parametrize(("space", "op", "items"), [("rows2", "layernorm_bwd", 2**24), ("rows4", "rmsnorm_fwd", 2**24)])
def test_a_part_of_all_rows_passes_in_flat_memory(space, op, items):
    """The last part is as large as those before it: its arrays take their memory again."""
    first = 0x3F803F80 - items // 2
    torch.cuda.reset_peak_memory_stats()
    choice = Choice(space, items=f"{first}:{first + items}")
    found = exhaust(registry.load(op), Settings(device="cuda", isolate=False), choice)
    assert found.verdict is errors.Exit.PASS, list(found.lines())
    assert found.tallies[0].elements == items * (2 if space == "rows2" else 4)
    assert found.judged > items
    assert torch.cuda.max_memory_allocated() < 2**34
