"""The ladder of CUDA C++: refused with a reason where it cannot run; on a GPU 1 to 3 are right, 4 and 5 convicted."""

import importlib.util
import shutil
import subprocess
from importlib.resources import files

import pytest
import torch
from typer.testing import CliRunner

from verify_norm.cases import corners, make
from verify_norm.cli.app import app
from verify_norm.core.ops import OPS
from verify_norm.core.run import Called
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels import domain
from verify_norm.kernels.variants.cuda import layernorm
from verify_norm.loading import returned
from verify_norm.loading.registry import load
from verify_norm.report import documents
from verify_norm.running import execute

OP = OPS["layernorm_fwd"]
STEPS = (1, 2, 3, 4, 5)
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
TYPES = (("float", "float"), ("__half", "float"), ("__nv_bfloat16", "__nv_bfloat16"))


def on_gpu(test):
    reason = domain.no_cuda()
    return pytest.mark.gpu(pytest.mark.skipif(reason is not None, reason=str(reason))(test))


def ratios(step, spec, block=layernorm.BLOCK):
    """The worst |got − want| / allowed of each output."""
    kernel = load(f"layernorm_fwd_cuda{step}")
    case = make.case(spec, OP, kernel.contract, "cuda:0")
    given = {name: case.arguments[name] for name in ("x", "weight", "bias", "eps", "normalized_shape")}
    got = layernorm.forward(step, **given, block=block)
    outputs = returned.named(got, OP)
    called = Called(outputs)
    judged = {n: execute._judged(one, case, n) for n, one in execute._values(called, case, kernel).items()}
    return {n: float(one.ratio.max(initial=0.0)) for n, one in judged.items()}


@on_cpu
def test_without_a_gpu_it_says_so_in_one_line():
    assert all("torch sees no GPU" in load(f"layernorm_fwd_cuda{step}").unsupported(CaseSpec((2, 3))) for step in STEPS)
    result = CliRunner().invoke(app, ["--kernel", "layernorm_fwd_cuda1", "--examples", "0", "--in-process"])
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if "nothing was checked" in line]
    assert "it is CUDA C++, and torch sees no GPU here" in line


def test_without_cuda_core_it_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("cuda") else found(name))
    domain.no_cuda.cache_clear()
    try:
        assert "pip install 'verify-norm[cuda]'" in load("layernorm_fwd_cuda3").unsupported(CaseSpec((2, 3)))
    finally:
        domain.no_cuda.cache_clear()


def test_tensors_of_a_cpu_are_refused_in_words_of_the_device():
    kernel = load("layernorm_fwd_cuda3")
    run = execute.execute(kernel, make.case(CaseSpec((2, 3)), OP, kernel.contract))
    assert (run.limits, run.outputs) == (("device",), {})
    assert "CUDA C++ runs on a GPU alone, and x is on cpu" in run.problem


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"step": 6}, "steps 1 to 5, not 6"), ({"block": 48}, "multiple of 32"), ({"block": 1056}, "up to 1024")],
)
def test_what_there_is_not_is_refused(wrong, said, monkeypatch):
    class OnGPU(torch.Tensor):
        is_cuda = True

    x = torch.ones(2, 3).as_subclass(OnGPU)
    given = {"step": 1, "x": x, "weight": None, "bias": None, "eps": 1e-5, **wrong}
    with pytest.raises(ValueError, match=said):
        layernorm.forward(**given)


def test_missing_headers_are_told_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(layernorm, "_folders", lambda: [tmp_path])
    layernorm.includes.cache_clear()
    try:
        with pytest.raises(
            ImportError, match=r"no CUDA header cooperative_groups.h .* pip install 'verify-norm\[cuda\]'"
        ):
            layernorm.includes()
        (tmp_path / "cooperative_groups.h").touch()  # of a wheel of its own, without CCCL's
        with pytest.raises(ImportError, match="no CUDA header cuda/std/type_traits"):
            layernorm.includes()
    finally:
        layernorm.includes.cache_clear()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc here")
def test_the_source_compiles_for_every_type(tmp_path):
    """Without a GPU: nvcc takes what NVRTC takes, as one program."""
    source = files("verify_norm.kernels.variants.cuda").joinpath("layernorm.cu").read_text()
    lines = [f'#line 1 "layernorm.cu"\n{source}']
    for number, (x, w) in enumerate(TYPES):
        wanted = [f"&{name}<{x}, {w}, 96>" for name in layernorm.OF_BOTH]
        wanted += [f"&{name}<{x}, 96>" for name in layernorm.OF_X]
        lines += [f"auto kernel{number}_{i} = {what};" for i, what in enumerate(wanted)]
    path = tmp_path / "all.cu"
    path.write_text("\n".join(lines))
    command = [
        "nvcc",
        "-std=c++17",
        "-arch=sm_90",
        "-Werror",
        "all-warnings",
        "-c",
        "-o",
        str(tmp_path / "o"),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@on_gpu
@pytest.mark.parametrize("step", STEPS)
def test_verdicts(step):
    """A right kernel passes every check; E[x²] − E[x]² is found, and it is rstd that is wrong."""
    arguments = ["--kernel", f"layernorm_fwd_cuda{step}", "--examples", "60", "--seconds", "60", "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    report = documents.load(result.stdout)
    assert report.cases > 80
    assert result.exit_code == (0 if step <= 3 else 1), result.output
    if step > 3:
        assert "rstd" in {finding.output for finding in report.findings}
        assert not {f.check for f in report.findings} & {
            "crash",
            "signature",
            "memory",
            "determinism",
            "batch_invariance",
        }


@on_gpu
@pytest.mark.parametrize("step", STEPS)
def test_only_a_large_offset_convicts_the_one_pass_variance(step):
    near, far = (ratios(step, CaseSpec((64, 4096), "float32", offset=offset)) for offset in (0.0, 1000.0))
    assert max(near.values()) <= 1
    assert (max(far.values()) <= 1) == (step <= 3), far
    assert step <= 3 or far["rstd"] > 100


@on_gpu
@pytest.mark.parametrize("block", [32, 96, 512, 1024])
@pytest.mark.parametrize("step", STEPS)
def test_every_block_size_at_every_edge(step, block):
    """Fewer columns than a warp, one more than a block, rows that do not fill a block's share; None; two types.

    The values are 1 and −1 in turn, of which E[x²] − E[x]² is as right as any variance.
    """
    for number, (m, n) in enumerate(((1, 2), (33, 31), (block + 1, 33), (7, block + 1), (257, 3), (3, 5000))):
        for dtype, weight_dtype in (("float32", None), ("float16", "float32"), ("bfloat16", None)):
            none, rest = {"weight": number % 2 == 0, "bias": n > 30}, {"data": "alternating", "x_layout": "row_strided"}
            found = ratios(step, CaseSpec((m, n), dtype, weight_dtype, **none, **rest), block)
            assert max(found.values()) <= 1, (m, n, dtype, found)


@on_gpu
@pytest.mark.parametrize("step", [1, 2, 3])
def test_corners(step):
    judged = 0
    for spec in corners.corners(OP, ("float32", "float16", "bfloat16"), gpu=True):
        taken = spec.weight_dtype in (None, "float32", spec.dtype)
        if taken and spec.special is None and spec.shape[0]:
            found = ratios(step, spec)
            judged += 1
            assert max(found.values()) <= 1, (spec, found)
    assert judged > 60


@on_gpu
@pytest.mark.parametrize("step", STEPS)
def test_it_runs_on_the_current_stream_and_in_a_graph(step):
    x, w, stream = torch.randn(512, 768, device="cuda"), torch.randn(768, device="cuda"), torch.cuda.Stream()
    want = torch.nn.functional.layer_norm(x + 2, (768,), w)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = x.clone()
        torch.cuda._sleep(20_000_000)  # cycles: what does not wait for the stream reads x as it is now
        late += 2
        y, *_ = layernorm.forward(step, late, w, None, 1e-5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            again, *_ = layernorm.forward(step, late, w, None, 1e-5)
    torch.cuda.synchronize()
    assert torch.allclose(y, want, atol=1e-4)
    late.copy_(torch.ones_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(again, torch.zeros_like(x))


@on_gpu
def test_a_weight_and_a_bias_of_two_types():
    x = torch.randn(4, 100, device="cuda").half()
    w, b = torch.randn(100, device="cuda"), torch.randn(100, device="cuda").half()
    for step in STEPS:
        y, mean, rstd = layernorm.forward(step, x, w, b, 1e-5)
        want = torch.nn.functional.layer_norm(x.double(), (100,), w.double(), b.double()).half()
        assert torch.allclose(y.float(), want.float(), atol=2e-3)
        assert (mean.dtype, rstd.dtype, mean.shape) == (torch.float32, torch.float32, (4,))
