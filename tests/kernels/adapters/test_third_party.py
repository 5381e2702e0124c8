"""Other people's kernels: those that are there pass where they are right, known faults of torch's are detected."""

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from verify_norm.cases import corners, make
from verify_norm.cli.app import app
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.adapters import THIRD_PARTY
from verify_norm.loading import builtin, targets
from verify_norm.loading.registry import load
from verify_norm.running import execute
from verify_norm.search.search import replay

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="these are faults of torch's CPU kernels")
PAGE = Path(__file__).parents[3] / "kernels/adapters/THIRD_PARTY.md"


def there(module):
    return importlib.util.find_spec(module) is not None


def ratios(kernel, spec):
    """The worst |got − want| / allowed of each output."""
    run = execute.execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    assert run.problem is None, (spec, run.problem)
    return {name: output.ratio.max(initial=0.0) for name, output in run.outputs.items() if output is not None}


@pytest.mark.parametrize("record", THIRD_PARTY, ids=lambda k: k.name)
def test_a_row_is_whole(record):
    assert (record.op.endswith("_bwd"), bool(record.summary)) == (record.forward is not None, True)
    assert record.forward is None or builtin.PEERS[record.forward].op == OPS[record.op].forward
    assert callable(targets.attribute(record.target))  # without the library: it is imported when it is called
    assert record.name not in builtin.BUILTIN


@pytest.mark.parametrize("library", ["liger_kernel", "fla", "flash_attn", "quack"])
def test_a_library_that_is_not_there_is_told_in_one_line(library, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else found(name))
    name = next(kernel.name for kernel in THIRD_PARTY if kernel.origin == library)
    how = "flash-attn --no-build-isolation" if library == "flash_attn" else "'verify-norm[third-party]'"
    said = f"{library} is not installed here: pip install {how}"
    with pytest.raises(UsageError) as caught:
        load(name)
    assert str(caught.value) == said
    result = CliRunner().invoke(app, ["--kernel", name])
    assert (result.exit_code, said in result.output) == (2, True)
    listed = " ".join(CliRunner().invoke(app, ["list"]).output.split())
    assert name in listed
    assert said in listed


@pytest.mark.parametrize(
    "record", [k for k in THIRD_PARTY if k.origin in ("liger_kernel", "fla")], ids=lambda k: k.name
)
def test_what_is_there_passes_where_it_is_right(record):
    """In float32 and around 0: a few corners, since it is Triton's interpreter that runs them."""
    if not there(record.origin):
        pytest.skip(f"{record.origin} is not installed")
    kernel, judged = load(record.name), 0
    for spec in corners.corners(OPS[kernel.op], ("float32",))[:24]:
        far = record.name.startswith("liger_groupnorm") and abs(spec.offset) > 10
        if kernel.unsupported(spec) or not spec.shape[0] or far:
            continue
        found = ratios(kernel, spec)
        judged += len(found)
        assert max(found.values()) <= 1, (found, spec)
    assert judged >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("rmsnorm_bwd_torch_compiled", CaseSpec((5, 33), "bfloat16")),
        ("batchnorm_fwd_torch_compiled", CaseSpec((4, 3, 5), "bfloat16", "float32")),
    ],
)
def test_compiled_torch_passes_where_it_is_right(name, spec):
    assert max(ratios(load(name), spec).values()) <= 1


def test_compiled_torch_is_compiled(monkeypatch):
    """Beyond eight recompilations torch would run the function as it is; each rank, type and layout is another."""
    from verify_norm.kernels.adapters import torch_native

    limits = []

    def compiled(function):
        return lambda *arguments: limits.append(torch._dynamo.config.recompile_limit)

    monkeypatch.setattr(torch_native, "_compile", compiled)
    torch_native.rmsnorm_fwd_torch_compiled(torch.ones(2, 3), None, 1e-5, (3,))
    assert limits == [2**20]
    assert torch._dynamo.config.recompile_limit < 2**20


@pytest.mark.slow
@on_cpu
@pytest.mark.parametrize(
    ("name", "spec", "lost", "least"),
    [
        ("layernorm_bwd_torch", CaseSpec((17, 64), "bfloat16", offset=100.0), {"dx", "dweight"}, 100),
        ("layernorm_bwd_torch", CaseSpec((17, 64), "bfloat16", "float32"), {"dweight", "dbias"}, 100),
        ("layernorm_bwd_torch_compiled", CaseSpec((7, 33), "bfloat16", "float32"), {"dx", "dweight"}, 10),
        ("groupnorm_bwd_torch", CaseSpec((1, 2), "float16", num_groups=1), {"dx"}, 50),
        ("batchnorm_fwd_torch", CaseSpec((4, 6, 35), "float16", offset=100.0), {"y", "mean"}, 3),
        ("instancenorm_fwd_torch", CaseSpec((4, 6, 35), "bfloat16", offset=10.0), {"y"}, 10),
    ],
)
def test_torch_loses_in_half_precision(name, spec, lost, least):
    found = ratios(load(name), spec)
    assert all(found[output] > least for output in lost), found


@on_cpu
def test_the_page_tells_what_torch_does(capsys):
    """Its examples print what it says."""
    example, on_a_gpu, missing, crashing = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    crashed = subprocess.run([sys.executable, "-c", crashing], capture_output=True, check=False)
    assert crashed.returncode == -signal.SIGSEGV
    exec(missing, {})
    assert capsys.readouterr().out == "True None\n"
    exec(example, {})
    printed = [float(number) for number in re.findall(r"\d+\.\d+(?:e-\d+)?", capsys.readouterr().out)]
    assert len(printed) == 6
    assert max(printed[0], printed[3]) < 0.005
    assert min(*printed[1:3], *printed[4:]) > 0.02
    assert 'device="cuda"' in on_a_gpu


@pytest.mark.gpu
def test_the_page_tells_what_torch_does_on_a_gpu(capsys):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], {})
    few, many = (float(number) for number in capsys.readouterr().out.split())
    assert few < 0.51
    assert many > 3


@pytest.mark.nightly
@pytest.mark.slow
@on_cpu
def test_the_pages_replay_lines_show_what_it_says():
    """Each line of a CPU's stock torch; those of other libraries need them."""
    from verify_norm.core import serial

    lines = re.findall(r"^OMP_NUM_THREADS=1 verify-norm replay '(.*)' --device cpu$", PAGE.read_text(), re.MULTILINE)
    shown, threads = 0, torch.get_num_threads()
    torch.set_num_threads(1)
    for line in lines:
        name, op, spec = serial.read_spec(line)
        if name not in builtin.BUILTIN:
            continue
        report = replay(load(name, op), spec, Settings(isolate=False))
        assert report.findings, line
        shown += 1
    torch.set_num_threads(threads)
    assert shown >= 8
