"""benchmarks/run.py times right kernels, refuses wrong ones, and computes its tables correctly."""

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from verify_norm.cases import make
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.promises import arithmetic
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.add_rmsnorm_quant import add_rmsnorm_quant_fwd, add_rmsnorm_quant_group_fwd, rmsnorm_quant_fwd
from verify_norm.kernels.gated_rmsnorm import gated_rmsnorm_fwd
from verify_norm.kernels.l2norm import l2norm_fwd
from verify_norm.kernels.modulate_layernorm import modulate_layernorm_fwd
from verify_norm.kernels.qk_norm_rope import qk_norm_rope_fwd

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NORMS = ("layernorm", "rmsnorm", "groupnorm", "add_layernorm", "add_rmsnorm")
WAYS = ("fwd", "bwd")
EVERY = [f"{norm}_{way}" for norm in NORMS for way in WAYS] + ["layernorm_fp8_fwd", "rmsnorm_fp8_fwd"]
EVERY += [f"{norm}_{way}" for norm in ("groupnorm_silu", "groupnorm_gelu", "batchnorm", "instancenorm") for way in WAYS]
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, where this would not be a smoke test")
RMS = (
    "import torch\n"
    "calls = []\n"
    "def rmsnorm_fwd(x, weight, eps, normalized_shape):\n"
    "    calls.append(x)\n"
    "    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + {eps})\n"
    "    return {returned}\n"
)
RIGHT = "(x.float() * rstd * weight.float()).to(x.dtype)"


@pytest.fixture(scope="module", autouse=True)
def bench():
    """Import the modules of benchmarks/, which belong to no package."""
    sys.path.insert(0, str(BENCHMARKS))
    names = ("oracle", "work", "timing", "peers", "race", "table", "plots", "presets", "plan", "run", "variants", "ncu",
             "host")  # fmt: skip
    modules = {name: importlib.import_module(name) for name in names}
    yield type("Bench", (), modules)
    sys.path.remove(str(BENCHMARKS))
    for name in names:
        del sys.modules[name]


def kernel(tmp_path, returned=RIGHT, eps="eps"):
    path = tmp_path / "mine.py"
    path.write_text(RMS.format(returned=returned, eps=eps))
    return f"{path}:rmsnorm_fwd"


def attempt(bench, name, work):
    with bench.timing.Clock("cpu") as clock, torch.no_grad():
        given = bench.work.arguments(work, "cpu")
        return bench.race.attempt(bench.peers.ours(name, work.op), work, given, clock, {})


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_on_tensors_is_the_reference(bench, name, dtype):
    """Values and bounds are NumPy's, for every timed operator."""
    op, shape = OPS[name], (2, 6, 4, 5) if OPS[name].view == "groups" else (7, 33)
    for contract in (Contract(), Contract(variance="two_pass", expanded=True, residual="rounded")):
        spec = CaseSpec(shape, dtype, num_groups=3, offset=3.0, scale=200.0, seed=5)
        case = make.case(spec, op, contract)
        given = {**case.arguments, "normalized_shape": shape[-1:]}
        given = {n: given[n] for n in (*(t.name for t in op.inputs), *op.attrs)}
        dtypes = {name: want.dtype for name, want in case.expected.items() if want is not None}
        found = bench.oracle.expected(op, given, contract, {"x": dtype, **dtypes})
        for output, want in case.expected.items():
            got = found[output]
            np.testing.assert_allclose(got.value.tensor.numpy(), want.value, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(got.delta.tensor.numpy(), want.delta, rtol=1e-9)
            allowed = judge.allowed(want)
            np.testing.assert_allclose(judge.allowed(got).tensor.numpy(), allowed, rtol=1e-9)


def test_an_element_beyond_its_bound_is_found_and_nan_and_the_unbounded(bench):
    value = torch.linspace(1, 2, 50, dtype=torch.float64)
    device, delta = bench.oracle.DeviceArray, torch.full_like(value, 1e-6)
    want = Expected(device(value), device(delta), "float32")
    right = (value + 0.9e-6).float()
    assert bench.oracle.compare(right, want).right
    for wrong in (value[7] + 2e-6, torch.nan, torch.inf):
        got = right.clone()
        got[7] = wrong
        assert bench.oracle.compare(got, want).ratio > 1
    delta[3] = torch.inf
    unbounded = bench.oracle.compare(right, want)
    assert (unbounded.ratio <= 1, unbounded.right, unbounded.judged) == (True, False, 49)


@pytest.mark.parametrize(
    ("returned", "eps", "reason"),
    [
        (RIGHT.replace("* weight.float()", ""), "eps", "the error of y is "),
        (RIGHT, "2 * eps + 1e-2", "the error of y is "),
        (RIGHT + ", rstd[:, 0] * 1.0001", "eps", "the error of rstd is "),
        (RIGHT.replace(".to(x.dtype)", ""), "eps", "y: expected bfloat16, got float32"),
        (RIGHT + "[:1]", "eps", "y: expected shape (8, 64), got (1, 64)"),
        ("(" + RIGHT + ").where(torch.arange(64) > 0, torch.nan)", "eps", "the error of y is inf times its bound"),
        (RIGHT + " * (1 if len(calls) == 1 else 1.1)", "eps", "the error of y is "),  # right at first, wrong when timed
        ("None", "eps", "y: expected a tensor, the kernel returned none"),
    ],
)
def test_a_wrong_kernel_is_refused_and_has_no_time(bench, tmp_path, returned, eps, reason):
    row = attempt(bench, kernel(tmp_path, returned, eps), bench.work.Work("rmsnorm_fwd", (8, 64)))
    assert (row.status, row.times, row.gbs, row.of_copy) == ("wrong", None, None, None)
    assert row.reason.startswith(reason), row.reason
    assert "us" not in row.record()


@pytest.mark.parametrize(
    "returned", [RIGHT, f"{RIGHT}, rstd", f"dict(y={RIGHT})", f"({RIGHT}).T.contiguous().T", f"[{RIGHT}, None]"]
)
def test_a_right_kernel_is_timed_in_whatever_form_it_answers(bench, tmp_path, returned):
    row = attempt(bench, kernel(tmp_path, returned), bench.work.Work("rmsnorm_fwd", (8, 64)))
    assert row.status == "ok", row.reason
    assert row.times.best > 0
    assert 0 < row.errors["y"] <= 1


def test_a_gradient_that_is_not_there_is_less_work_and_wrong(bench, tmp_path):
    path = tmp_path / "lazy.py"
    path.write_text(
        "import torch\n"
        "def rmsnorm_bwd(dy, x, weight, eps):\n"
        "    x = x.detach().requires_grad_()\n"
        "    with torch.enable_grad():\n"
        "        y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)\n"
        "    return torch.autograd.grad(y, x, dy)\n"
    )
    row = attempt(bench, f"{path}:rmsnorm_bwd", bench.work.Work("rmsnorm_bwd", (8, 64), "float32"))
    assert (row.status, row.reason) == ("wrong", "dweight: expected a tensor, the kernel returned none")


def test_a_kernel_that_raises_is_refused_with_its_words(bench, tmp_path):
    row = attempt(bench, kernel(tmp_path, "1 / 0"), bench.work.Work("rmsnorm_fwd", (8, 64)))
    assert (row.status, row.reason) == ("refused", "ZeroDivisionError: division by zero")


@on_cpu
@pytest.mark.parametrize("name", ["layernorm_fwd_e4m3fn", "rmsnorm_fwd_e5m2"])
def test_norms_into_8_bits_are_timed_and_held_to_their_bound(bench, name):
    work = bench.work.Work(f"{name.partition('_')[0]}_fp8_fwd", (8, 64))
    assert work.size == 3 * 8 * 64
    row = attempt(bench, name, work)
    assert row.status == "ok", row.reason
    assert set(row.errors) >= {"y", "amax", "rstd"}


def test_a_variant_is_planned_by_its_constant_and_the_next_kernel_is_not(bench, monkeypatch):
    seen = []
    monkeypatch.setattr(bench.variants, "KEPT", ())
    work = bench.work.Work("layernorm_fwd", (4, 32), "float32")
    for name in ("layernorm_fwd@row_plan.FEWER_WARPS=64+group_plan.BLOCK=8", "layernorm_fwd"):
        bench.peers.ours(name, work.op).prepare({})
        seen.append((bench.variants.row_plan.FEWER_WARPS, bench.variants.group_plan.BLOCK["cuda"]))
    assert seen == [(64, 8), (12288, 2048)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("FEWER_WARPS=1", "unknown constant of the plans 'FEWER_WARPS'"),
        ("row_plan.FEWER_WARPS=x", "expected a constant like row_plan.PAIRED=1024, got 'row_plan.FEWER_WARPS=x'"),
    ],
)
def test_a_constant_that_there_is_not(bench, how, words):
    with pytest.raises(UsageError, match=words):
        bench.peers.ours(f"layernorm_fwd@{how}", "layernorm_fwd")


@pytest.mark.parametrize("name", EVERY)
def test_stock_torch_is_right_in_every_operator_and_timed(bench, name):
    """Stock torch runs forward and backward as peers do: through autograd, with outputs in the operator's order."""
    shape = (8, 64) if OPS[name].view == "rows" else (2, 8, 4, 4)
    work = bench.work.Work(name, shape, "float32", 4)
    with bench.timing.Clock("cpu") as clock, torch.no_grad():
        given = bench.work.arguments(work, "cpu")
        (row,) = bench.race._peer("torch", work, given, clock, {})
    assert row.status == "ok", row.reason
    outputs = [t.name for t in OPS[name].outputs if t.name not in ("mean", "rstd", "running_mean", "running_var")]
    assert list(row.errors) == outputs


CHAINS = {
    "gated_rmsnorm": (gated_rmsnorm_fwd, "x gate weight"),
    "l2norm": (l2norm_fwd, "x"),
    "qk_norm_rope": (qk_norm_rope_fwd, "x weight cos sin"),
    "modulate_layernorm": (modulate_layernorm_fwd, "x weight bias scale shift"),
    "rmsnorm_quant": (rmsnorm_quant_fwd, "x weight"),
    "add_rmsnorm_quant": (add_rmsnorm_quant_fwd, "x residual weight"),
    "add_rmsnorm_quant_group": (add_rmsnorm_quant_group_fwd, "x residual weight"),
}


@pytest.mark.parametrize("base", CHAINS)
def test_stock_torch_of_what_may_have_no_operator_is_our_kernel(bench, base):
    run, names = CHAINS[base]
    assert bench.peers.CHAINS.keys() == CHAINS.keys()
    shapes = {"weight": (64,), "bias": (64,), "scale": (2, 64), "shift": (2, 64), "cos": (2, 24), "sin": (2, 24)}
    given = {name: torch.randn(shapes.get(name, (2, 3, 64))) for name in names.split()}
    made = bench.peers._torch(base)(SimpleNamespace(**given, normalized_shape=(64,), eps=1e-5))
    got, want = (out if isinstance(out, tuple) else (out,) for out in (made, run(**given, eps=1e-5)))
    for one, other in zip(got, want, strict=False):
        if one.dtype == torch.float8_e4m3fn:  # beside a tie both neighbours are right
            assert ((one.float() - other.float()).abs() <= other.float().abs() / 8).all()
        else:
            torch.testing.assert_close(one.flatten(), other.flatten())


@on_cpu
@pytest.mark.parametrize("way", WAYS)
def test_heads_are_rotated_by_the_angles_of_their_tokens(bench, way):
    work = bench.work.Work(f"qk_norm_rope_{way}", (4, 3, 16), "float32")
    given = bench.work.arguments(work, "cpu")
    assert given["cos"].shape == given["sin"].shape == (4, 8)
    torch.testing.assert_close(given["cos"].square() + given["sin"].square(), torch.ones(4, 8))
    rows = [attempt(bench, work.op, work)]
    with bench.timing.Clock("cpu") as clock, torch.no_grad():
        rows += bench.race._peer("torch", work, given, clock, {})
    assert [(row.status, row.reason) for row in rows] == [("ok", "")] * 2


def test_bytes_are_those_of_every_tensor_as_large_as_x(bench):
    moved = {"layernorm_fwd": 2, "rmsnorm_bwd": 3, "add_rmsnorm_fwd": 4, "add_layernorm_bwd": 4, "groupnorm_bwd": 3}
    for name, tensors in moved.items():
        assert bench.work.Work(name, (4, 8), "float32").size == tensors * 32 * 4
    assert bench.work.Work("layernorm_fwd", (4096, 8192)).size == 2 * 4096 * 8192 * 2


def row(bench, name, us, *, peer=False, work=None, **more):
    work = work or bench.work.Work("layernorm_fwd", (1000, 1000))  # 4 MB
    times = bench.timing.Times(us, 2 * us, 7.0, 10) if us else None
    made = bench.race.Row(work, name, peer, "ok" if us else "wrong", "" if us else "y is 9 times its bound", times)
    return replace(made, copy_us=10.0, best_peer_us=12.0, **more)


def test_ratios(bench):
    ours, peer, wrong = row(bench, "layernorm_fwd", 8.0), row(bench, "torch", 12.0, peer=True), row(bench, "k", None)
    assert (ours.gbs, ours.of_copy, ours.of_best) == (500.0, 1.25, 1.5)
    assert peer.of_best == 1.0
    text = "\n".join(bench.table.lines_of([wrong, peer, ours]))
    assert [line.split()[0] for line in text.splitlines()] == ["LN", "layernorm_fwd", "torch", "k"]
    assert "8 µs" in text
    assert "1.25 of copy  1.50 × the best peer" in text
    assert "wrong: y is 9 times its bound" in text
    table = bench.table.summary([ours, peer])
    assert "| LN 1000×1000 bfloat16 forward | 400 | **500** (1.25, 1.50×) | 333 |" in table
    no_graph = replace(ours, times=bench.timing.Times(None, 20.0, None, 10, "no graph: …"))
    assert (no_graph.gbs, no_graph.of_copy) == (200.0, 0.5)  # without a graph the eager time counts
    assert bench.table.summary([wrong, peer]).count("wrong") == 1


def test_a_row_comes_back_from_its_record(bench):
    kept = replace(row(bench, "layernorm_fwd", 8.0), errors={"y": 0.5}, seconds=1.5)
    for one in (kept, row(bench, "k", None), replace(kept, best_peer_us=None)):
        assert bench.race.Row.read(json.loads(json.dumps(one.record()))) == replace(
            one, best_peer_us=one.best_peer_us if one.times else None
        )


def test_the_ladder_is_a_table_of_its_own(bench):
    rows = [row(bench, f"layernorm_fwd_cuda{s}@{b}", s * 10.0 if s < 3 else None) for s in (1, 2, 3) for b in (32, 512)]
    table = bench.table.summary([row(bench, "layernorm_fwd", 8.0), *rows])
    assert "| kernel 2 | 200 | 200 |" in table
    assert "| kernel 3 | wrong | wrong |" in table
    assert "layernorm_fwd_cuda" not in table
    svg = bench.presets.picture(rows, "a GPU")
    assert "kernel 1" in svg
    assert "kernel 3" not in svg  # wrong results are not drawn


def test_other_constants_are_lines_below_their_work(bench):
    other = "layernorm_fwd@row_plan.AHEAD=1"
    large = bench.work.Work("layernorm_fwd", (2000, 1000))
    rows = [row(bench, "layernorm_fwd", 8.0), row(bench, other, 16.0), row(bench, other, None, work=large)]
    lines = bench.table.summary([*rows, row(bench, "rmsnorm_fwd", 8.0, work=bench.work.Work("rmsnorm_fwd", (8, 8)))])
    assert "| LN 1000×1000 bfloat16 forward | layernorm_fwd | 8 µs | 1.25 |\n" in lines
    assert "|  | row_plan.AHEAD=1 | 16 µs | 0.62 |\n" in lines
    assert "| LN 2000×1000 bfloat16 forward | row_plan.AHEAD=1 | wrong | – |" in lines
    absent = replace(row(bench, "quack", None), peer=True, status="missing")
    assert "quack" not in bench.table.summary([*rows, absent])
    assert "| RMS 8×8 bfloat16 forward |" in lines.split("\n\n")[0]


def test_pictures_are_svg_with_everyone_who_has_a_time(bench):
    works = [bench.work.Work("layernorm_bwd", (4096, n), "float16") for n in (1024, 2048, 4096, 8192)]
    rows = [row(bench, name, 5.0 + i, work=w) for i, w in enumerate(works) for name in ("layernorm_bwd", "a<b")]
    several = [*rows[:2], row(bench, "rmsnorm_fwd", 9.0, work=bench.work.Work("rmsnorm_fwd", (8, 8)))]
    squares = [bench.work.Work("groupnorm_fwd", (1, 32, x, x), "float32", 8) for x in (64, 128, 256, 512)]
    for some in (rows, several, [row(bench, "groupnorm_fwd", 9.0, work=w) for w in squares], [row(bench, "k", None)]):
        page = ElementTree.fromstring(bench.presets.picture(some, "a GPU"))
        assert page.tag.endswith("svg")
    words = "".join(ElementTree.fromstring(bench.presets.picture(rows, "a GPU")).itertext())
    for text in ("a<b", "layernorm_bwd, 4096 × N, float16, a GPU", "GB/s", "copy", "8192"):
        assert text in words


def test_presets_are_the_plots_of_the_seeds(bench):
    jobs = {name: make() for name, make in bench.presets.PRESETS.items()}
    sizes = [job.work.shape for job in jobs["seed001"]]
    assert (len(sizes), sizes[0], sizes[-1], sizes[15]) == (30, (4096, 1024), (4096, 15872), (4096, 8704))
    assert {job.work.dtype for job in jobs["seed001"]} == {"float16"}
    sizes = [job.work.shape for job in jobs["seed003"]]
    assert (len(sizes), sizes[0], sizes[1], sizes[-1]) == (69, (1, 32, 64, 64), (1, 32, 96, 96), (1, 32, 2240, 2240))
    assert {(job.work.dtype, job.work.num_groups) for job in jobs["seed003"]} == {("float32", 8)}
    (ladder,) = jobs["seed004"]
    assert sum("@" in name for name in ladder.kernels) == 5 * 6
    table = {(job.work.op, job.work.shape) for job in jobs["perf"]}
    assert {
        ("layernorm_bwd", (32768, 4096)),
        ("rmsnorm_fwd", (16384, 16384)),
        ("groupnorm_fwd", (1, 32, 64, 64)),
    } <= table
    (last,) = {job.work for job in jobs["choices"] if "groupnorm_fwd@group_plan.TILED=0" in job.kernels}
    assert (last.shape, last.layout) == ((8, 320, 64, 64), "channels_last")
    for job in jobs["choices"]:
        assert job.kernels[0] == job.work.op
        assert len({str(bench.variants.parse(name.partition("@")[2])) for name in job.kernels[1:]}) >= 1
    few = bench.plan.plan(bench.plan.options(["--preset", "perf,seed004", "--peers", "torch"]))
    assert {peer for some in few.values() for job in some for peer in job.peers} == {"torch"}
    assert [len(some) for some in few.values()] == [len(jobs["perf"]), 1]
    for job in (job for some in jobs.values() for job in some):
        for name in job.kernels:
            assert bench.peers.registry.find(name.partition("@")[0]).op == job.work.op
        assert not {bench.peers.missing(name) for name in job.peers} & {"torch is not installed here"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--kernel layernrm_fwd", "unknown kernel 'layernrm_fwd' (did you mean layernorm_fwd"),
        ("--kernel batchnorm_fwd --shapes 64", "expected rows like 4096x8192, got '64'"),
        ("--kernel layernorm_fwd@256", "expected a step of the CUDA ladder at a block size"),
        ("--peers torhc", "unknown peer 'torhc' (did you mean torch?)"),
        ("--preset seed005", "unknown preset 'seed005'"),
        ("--preset perf --kernel layernorm_fwd", "--preset and --kernel exclude each other"),
        ("--preset perf,seed001 --json f.json", "several presets need --out FOLDER"),
        ("--out .", "--out needs --preset"),
        ("--shapes 4096by8192", "expected a shape like 4096x8192 or 1x32x64x64, got '4096by8192'"),
        ("--shapes 0x8", "expected a shape like 4096x8192 or 1x32x64x64, got '0x8'"),
        ("--shapes 64", "expected rows like 4096x8192, got '64'"),
        ("--kernel groupnorm_fwd_torch --shapes 8x30x4x4", "C a multiple of 32 groups, got '8x30x4x4'"),
        ("--dtype fp8", "unknown dtype 'fp8'"),
        ("--seconds 0", "--seconds: expected a number greater than 0, got 0.0"),
        ("--json no/such/folder/f.json", "cannot write no/such/folder/f.json: no writable folder"),
        ("--quick", "unrecognized arguments: --quick"),
    ],
)
def test_a_mistake_is_one_line(bench, arguments, message, capsys):
    assert bench.run.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err


@on_cpu
def test_the_smoke_test_says_that_its_times_mean_nothing(bench, tmp_path, capsys):
    to = tmp_path / "b.json"
    more = ["--peers", "torch,quack", "--json", str(to), "--plot", str(tmp_path / "b.svg")]
    assert bench.run.main(["--kernel", "layernorm_fwd,rmsnorm_bwd", *more]) == 0
    assert capsys.readouterr().out.startswith("no GPU: this is a smoke test at tiny sizes; its times mean nothing\n")
    report = json.loads(to.read_text())
    assert report["smoke"] is True
    assert report["empty_host_us"] is None
    assert {"date", "torch", "device", "interpreter"} <= report["environment"].keys()
    assert [(r["kernel"], r["status"]) for r in report["rows"]] == [
        ("layernorm_fwd", "ok"), ("torch", "ok"), ("rmsnorm_bwd", "ok"), ("torch", "ok"),
    ]  # fmt: skip
    assert all(0 < max(r["error_over_bound"].values()) <= 1 and r["us"] > 0 for r in report["rows"])
    ElementTree.parse(tmp_path / "b.svg")
    assert bench.run.main(["--show", str(to), "--plot", str(tmp_path / "again.svg")]) == 0
    again = capsys.readouterr().out
    assert "| LN 8×64 float32 forward |" in again
    assert report["environment"]["date"] in again
    assert (tmp_path / "again.svg").read_text() == (tmp_path / "b.svg").read_text()
    for wrong in ("[]", "{", '{"rows": [{}]}'):
        to.write_text(wrong)
        assert bench.run.main(["--show", str(to)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), "expected the JSON of a benchmark" in err) == ("", 1, True)


@pytest.mark.nightly
@pytest.mark.slow
@on_cpu
def test_host_times_are_kept_and_shown(bench, tmp_path, capsys):
    kept = tmp_path / "host.json"
    assert bench.host.main(["--json", str(kept)]) == 0
    report, printed = json.loads(kept.read_text()), capsys.readouterr().out
    assert printed.startswith("no GPU: this is a smoke test; its times mean nothing\n")
    assert report["smoke"] is True
    assert bench.host.lines(report["rows"]) in printed
    assert len({row["call"] for row in report["rows"]}) == len(report["rows"]) > 10
    assert all(0 < row["least_us"] <= row["host_us"] for row in report["rows"])
    assert bench.host.main(["--rounds", "0"]) == 2
    assert capsys.readouterr().err == "host.py: --rounds: expected at least 1, got 0\n"
    assert bench.host.main(["--rounds", "few"]) == 2
    assert capsys.readouterr().err == "host.py: argument --rounds: invalid int value: 'few'\n"


@pytest.mark.slow
def test_what_the_documents_say_is_what_was_measured():
    def printed(*arguments):
        command = [sys.executable, str(BENCHMARKS / "tables.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert printed() == (BENCHMARKS / "RESULTS.md").read_text()
    text, rows = (BENCHMARKS.parent / "docs" / "results.md").read_text(), printed("brief").splitlines()
    listed = [line for line in text.splitlines() if re.match(r"\| (LN|RMS|GN|add).* (forward|backward)", line)]
    assert len(listed) > 10
    assert set(listed) <= set(rows)
    kernels, cases, least, models = re.search(
        r"(\S+) kernels, (\S+) random .*least (\S+) .* (\S+) norm", rows[0]
    ).groups()
    assert f"{kernels} kernels, {cases} cases under every check (at least {least} each), {models} norm inputs" in text
    readme = (BENCHMARKS.parent / "README.md").read_text()
    runs = next(row for row in rows if row.startswith("On an NVIDIA"))
    assert all(runs in " ".join(document.split()) for document in (text, readme))
    zoo = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in (BENCHMARKS / "RESULTS.md").read_text().splitlines()
        if row.startswith(("| class of bug |", "| all wrong kernels |", "| right kernels flagged |"))
    ]
    policies = "\n".join(f"| {' | '.join(row)} |" for row in list(zip(*zoo, strict=True))[1:])
    assert all(policies in document for document in (text, readme))


@on_cpu
def test_presets_are_smoked_too(bench, tmp_path, capsys):
    assert bench.run.main(["--preset", "seed001,seed004", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "seed001.json", "seed001.svg", "seed004.json", "seed004.svg",
    ]  # fmt: skip


@pytest.mark.slow
@on_cpu
def test_a_wrong_kernel_fails_the_run(tmp_path):
    wrong = kernel(tmp_path, RIGHT.replace("* weight.float()", ""))
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--kernel", wrong, "--peers", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "wrong: the error of y is " in done.stdout
    assert "GB/s |" not in done.stdout.replace("| GB/s | copy |", "")


def test_the_contracts_of_the_bounds_are_those_of_verification(bench):
    """A peer is timed under the contract that verification uses."""
    of = {(n, op): bench.peers._contracts(n, bench.work.Work(op, (4, 8)))[0] for n, op in (
        ("torch", "layernorm_bwd"), ("compile", "layernorm_bwd"), ("liger", "rmsnorm_fwd"), ("fla", "layernorm_fwd"),
    )}  # fmt: skip
    assert of["torch", "layernorm_bwd"].expanded
    assert of["liger", "rmsnorm_fwd"].xhat == "x"
    assert arithmetic(of["fla", "layernorm_fwd"], "float16").xhat_u == 0.0
    assert not of["compile", "layernorm_bwd"].expanded


def ncu_prints(ncu, **changed):
    """Return a table of one launch as ncu prints it: after lines of the program, with units below the names."""
    metrics = list(ncu.COUNTED.values())
    head = ["ID", "Kernel Name", "Grid Size", *reversed(metrics)]
    counts = {metric: str(10 + i) for i, metric in enumerate(metrics)} | {ncu.COUNTED["ns"]: "1,234.5"}
    counts |= {ncu.COUNTED[name]: value for name, value in changed.items()}
    rows = [head, ["", "", "", *["unit"] * len(metrics)], ["0", "fold", "(8, 1, 1)", *(counts[m] for m in head[3:])]]
    before = ["==PROF== Connected", '"a line", of the program']
    return "\n".join([*before, *(",".join(f'"{cell}"' for cell in row) for row in rows)]) + "\n"


def test_what_ncu_prints_is_read_by_its_columns(bench):
    ncu = bench.ncu
    (launch,) = ncu.read(ncu_prints(ncu, read_bytes="2,500,000"))
    assert launch["name"] == "fold"
    assert launch["grid"] == "(8, 1, 1)"
    assert launch["ns"] == 1234.5
    assert launch["memory_percent"] == 11
    last = ncu.REASONS[-1]
    assert ncu.stalls(launch, most=1) == f"{last.replace('_', ' ')} {9 + len(ncu.COUNTED):.1f}"
    profile = {"kernel": "k", "shape": "4x8", "dtype": "float32", "launches": [launch]}
    cells = "| k 4x8 float32 | fold (8, 1, 1) | 1.2 | 11 % | 2.5 MB | 0.0 MB | 15 % | 14 % | 16 % | 18 | 19 |"
    assert cells in ncu.lines([profile])
    assert ncu.read("==ERROR== no kernel\n") == []


def test_what_a_gpu_does_not_count_is_left_out(bench):
    (launch,) = bench.ncu.read(ncu_prints(bench.ncu, memory_percent="n/a", spilled="", ns="n/a"))
    assert not {"memory_percent", "spilled", "ns"} & set(launch)
    profile = {"kernel": "k", "shape": "4x8", "dtype": "float32", "launches": [launch]}
    assert "| fold (8, 1, 1) | – | – | 0.0 MB | 0.0 MB | 15 % | 14 % | 16 % | 18 | – |" in bench.ncu.lines([profile])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_profile_is_of_the_kernel_and_size_that_were_asked_for(bench, tmp_path, monkeypatch, capsys):
    """A fake ncu runs its command on this machine, then prints a table."""
    text, seen = tmp_path / "table", tmp_path / "seen"
    text.write_text(ncu_prints(bench.ncu))
    fake = tmp_path / "ncu"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {seen}\nwhile [ "$1" != {sys.executable} ]; do shift; done\n'
                    f'"$@" || exit 1\ncat {text}\n')  # fmt: skip
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench.ncu, "facts", lambda device: {"device": device})
    variant = "groupnorm_fwd@group_plan.COMPUTED=2"
    for argv in (["--kernel", "layernorm_fwd", "--shapes", "4x64"],
                 ["--kernel", variant, "--shapes", "1x8x4x4", "--groups", "4", "--dtype", "fp32", "--layout",
                  "channels_last", "--in-place"]):  # fmt: skip
        assert bench.ncu.main([*argv, "--json", str(tmp_path / "out.json")]) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "out.json").read_text())
    (found,) = report["profiles"]
    assert found["kernel"] == variant
    assert found["shape"] == "1x8x4x4"
    assert found["launches"][0]["ns"] == 1234.5
    assert "float32 channels_last in place |" in bench.ncu.lines([found])
    first, second = seen.read_text().splitlines()
    assert "--kernel layernorm_fwd --op layernorm_fwd --shapes 4x64 --dtype bfloat16" in first
    assert "--groups 4" in second
    assert ("--replay-mode application" in second, "--replay-mode" in first) == (True, False)
    fake.write_text("#!/bin/sh\necho '==WARNING== No kernels were profiled.'\n")
    assert bench.ncu.main(["--shapes", "4x64"]) == 2
    assert (
        "expected a launch of layernorm_fwd at 4x64, ncu found none; its last line: ==WARNING=="
        in capsys.readouterr().err
    )


@on_cpu
def test_a_profile_needs_a_gpu(bench, capsys):
    for argv, words in (
        ([], "a profile needs a GPU and NVIDIA's ncu; at least one of them is missing"),
        (["--kernel", "nope"], "unknown kernel 'nope'"),
        (["--shapes", "4096"], "--shapes: expected rows like 4096x8192, got '4096'"),
        (["--shapes", ","], "nothing to profile"),
        (["--preset", "perf"], "unrecognized arguments: --preset perf"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
    ):
        assert bench.ncu.main(argv) == 2
        assert words in capsys.readouterr().err
