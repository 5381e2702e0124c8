"""The verifier's power on the project's own kernels: each wrong edit is detected, on the right output, and made small.

The kernels' sources are copied, edited and loaded as a stranger's package, so that what runs is the kernel but for one
line.
"""

import json
import shutil
from math import prod
from pathlib import Path

import pytest
from typer.testing import CliRunner

import verify_norm.kernels
from verify_norm.cli.app import app
from verify_norm.loading.registry import load
from verify_norm.report.documents import load as load_report

FEW = 12  # corner cases: every wrong edit shows by the eleventh
CHECKS = "crash,signature,accuracy,statistics,memory"  # others launch again, or need large cases
SOURCES = Path(verify_norm.kernels.__file__).parent
RECOMPUTED = """

def layernorm_bwd(dy, x, weight, bias, mean, rstd, eps, normalized_shape=None):
    rows = x.double().reshape(rstd.numel(), torch.Size(normalized_shape).numel())
    var = rows.var(1, correction={correction})
    return right(dy, x, weight, bias, mean, ({rstd}).float(), eps, normalized_shape)
"""
RENAME = ("layernorm.py", "def layernorm_bwd(", "def right(")

MASKED = "mask=(row < M)[:, None] & (cols < N)[None, :], other=0.0, cache_modifier=CACHE)"
LINES = "lines = rstd.new_empty(parts, programs, n)"
ADDED = "mask=(line < lines)[:, None] & (cols < N)[None, :], other=0.0)"

# name -> edits of the sources, what is appended to layernorm.py, outputs that are wrong, most elements of x at the end
MUTANTS = {
    "no c2": ([("rows/backward.py", "c2 = (c2 / N)[:, None]", "c2 = 0.0")], "", {"dx"}, 4),
    "weight left out of dx": ([("rows/backward.py", "g *= ws[c]", "g *= 1.0")], "", {"dx"}, 4),
    "N - 1 in the variance": (
        [RENAME],
        RECOMPUTED.format(correction=1, rstd="1 / (var + eps).sqrt()"),
        {"dx", "dweight"},
        8,
    ),
    "eps outside the root": (
        [RENAME],
        RECOMPUTED.format(correction=0, rstd="1 / (var.sqrt() + eps)"),
        {"dx", "dweight"},
        8,
    ),
    "partials in the input type": (
        [
            ("rows/launch.py", LINES, LINES.replace("n)", "n, dtype=x.dtype)")),
            ("rows/backward.py", ADDED, f"{ADDED}.to(tl.float32)"),
        ],
        "",
        {"dweight", "dbias"},
        400,
    ),
    "partials longer than the rows written": (
        [("rows/launch.py", LINES, LINES.replace("programs,", "programs + 3,"))],
        "",
        {"dweight", "dbias"},
        4,
    ),
    "dy read with x's strides": (
        [("rows/backward.py", "load(DY, row, sdm, cols, sdn,", "load(DY, row, sxm, cols, sxn,")],
        "",
        {"dx", "dweight", "dbias"},
        6,
    ),
    "a row beyond the last unmasked": (
        [("rows/tiles.py", MASKED, MASKED.replace("row < M", "row <= M"))],
        "",
        {"dweight", "dbias"},
        4,
    ),
    "xhat rounded to bfloat16": (
        [("rows/backward.py", "down(d * x, SUMS)", "down(d * x.to(tl.bfloat16).to(tl.float32), SUMS)")],
        "",
        {"dweight"},
        8,
    ),
    "one-pass variance": (
        [
            ("rows/forward.py", "x = xs[c] - mean[:, None]", "x = xs[c]"),
            ("rows/forward.py", "square /= N", "square = square / N - mean * mean"),
            ("rows/forward.py", "y = xs[c] * rstd", "y = (xs[c] - mean[:, None]) * rstd"),
        ],
        "",
        {"rstd", "y"},
        8,
    ),
}


def altered(name, folder):
    """The target of a mutant: its package is written under `folder`, which must be on sys.path."""
    edits, appended, *_ = MUTANTS[name]
    package = "mutant_" + "".join(c if c.isalnum() else "_" for c in name)
    shutil.copytree(SOURCES, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / package).rglob("*.py"):
        path.write_text(path.read_text().replace("verify_norm.kernels", package))
    for file, old, new in edits:
        path = folder / package / file
        assert old in path.read_text(), f"{file} has changed: the mutant {name!r} needs another edit"
        path.write_text(path.read_text().replace(old, new))
    with (folder / package / "layernorm.py").open("a") as source:
        source.write(appended)
    return f"{package}.layernorm:layernorm_{'fwd' if name == 'one-pass variance' else 'bwd'}"


def verify(target, report, *options):
    result = CliRunner().invoke(app, ["--kernel", target, "--json", str(report), "--examples", "0", *options])
    return result, load_report(report.read_text())


@pytest.mark.sampled(16)
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_is_detected(name, tmp_path, monkeypatch, few_corners, unexplained):
    monkeypatch.syspath_prepend(tmp_path)
    few_corners(slice(FEW))
    _, _, wrong, size = MUTANTS[name]
    result, report = verify(altered(name, tmp_path), tmp_path / "report.json", "--checks", CHECKS)
    assert result.exit_code == 1, result.output
    outputs = {finding.output for finding in report.findings if finding.check != "crash"}  # which has none
    assert outputs
    assert outputs <= wrong, result.output
    smallest = min(report.findings, key=lambda f: prod(f.spec.shape))
    assert prod(smallest.spec.shape) <= size, smallest.spec
    replayed = CliRunner().invoke(app, ["replay", _replay_line(result.output)])
    assert replayed.exit_code == 1, replayed.output


@pytest.mark.nightly
@pytest.mark.slow
def test_the_unaltered_copy_passes(tmp_path, monkeypatch, few_corners):
    MUTANTS["nothing"] = ([], "", set(), 0)
    monkeypatch.syspath_prepend(tmp_path)
    few_corners(slice(FEW))
    try:
        result, report = verify(altered("nothing", tmp_path), tmp_path / "report.json")
    finally:
        del MUTANTS["nothing"]
    assert result.exit_code == 0, result.output
    assert report.cases == FEW
    assert load("layernorm_bwd").run is not None


def _replay_line(output):
    line = next(line for line in output.splitlines() if line.lstrip().startswith("replay "))
    text = line.partition("'")[2].rpartition("'")[0]
    json.loads(text)
    return text
