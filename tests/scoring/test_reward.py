"""The reward of a kernel: right samples of each project's form get it, wrong ones do not, bad input is one line."""

from dataclasses import replace
from pathlib import Path

import pytest

from verify_norm import UsageError, reward
from verify_norm.scoring import forms, timing
from verify_norm.search import search

SUBMISSIONS = Path(__file__).parents[1] / "support" / "submissions"
NORMS = SUBMISSIONS / "norms.py"
GAMEABLE = "verify_norm.kernels.zoo.untrusted"
QUICK = {"dtypes": "fp32", "device": "cpu", "seconds": 20.0, "seed": 1, "shape": (8, 64)}


@pytest.fixture(autouse=True)
def few_cases(few_corners, unexplained, monkeypatch):
    few_corners(slice(12))
    run = search.search
    few = {"examples": 0, "checks": ("signature", "accuracy")}
    monkeypatch.setattr(search, "search", lambda kernel, settings: run(kernel, replace(settings, **few)))


def model(name, tmp_path):
    """Return a file whose ModelNew is that class of norms.py, as KernelBench has one in each file."""
    path = tmp_path / "model.py"
    path.write_text(NORMS.read_text(encoding="utf-8") + f"\n\nModelNew = {name}\n", encoding="utf-8")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "name", "shape"),
    [
        ("33", "BatchNorm", (4, 8, 4, 4)),
        ("34", "InstanceNorm", (4, 8, 4, 4)),
        ("36", "RMSNorm", (8, 64)),
        ("39", "L2Norm", (8, 256)),
        ("40", "LayerNorm", (8, 64)),
    ],
)
def test_solutions_of_kernelbench_get_it(problem, name, shape, tmp_path):
    found = reward(model(name, tmp_path), form="kernelbench", problem=problem, **{**QUICK, "shape": shape})
    assert found.correct, found.why
    assert found.cases > 10
    assert found.power


@pytest.mark.slow
def test_a_solution_is_in_its_own_file():
    path = str(SUBMISSIONS / "35_GroupNorm.py")
    shape = {**QUICK, "shape": (4, 16, 8)}
    assert reward(path, form="kernelbench", problem=path, baseline="", **shape).correct


@pytest.mark.slow
def test_a_wrong_solution_gets_none_and_a_line_to_replay(tmp_path):
    path = model("WrongRMSNorm", tmp_path)
    found, again = (reward(path, form="kernelbench", problem="36", **QUICK) for _ in range(2))
    assert not found.correct
    assert found.why.startswith("accuracy: y[")
    assert found.speedup is None
    assert found.replay.endswith("--untrusted")
    assert replace(again, cases=found.cases) == found, (
        "the same seed gives the same, in as many cases as the time allows"
    )


@pytest.mark.slow
def test_other_forms_get_it():
    solution, definition = (str(SUBMISSIONS / name) for name in ("solution.json", "rmsnorm_h64.json"))
    found = reward(solution, form="flashinfer", problem=definition, **{**QUICK, "dtypes": "bf16"})
    assert found.correct, found.why
    assert found.baseline == "rmsnorm_fwd_torch"
    found = reward(str(NORMS), "rmsnorm_fwd", form="gpumode", problem="x+weight+eps", baseline="", **QUICK)
    assert found.correct, found.why


@pytest.mark.slow
def test_the_baseline_runs_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def rmsnorm_fwd(x, weight, eps):\n"
        "    y = x.double() * (x.double() ** 2).mean(-1, keepdim=True).add(eps).rsqrt()\n"
        "    return (y if weight is None else y * weight.double()).to(x.dtype)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    found = reward("mine.py:rmsnorm_fwd", **QUICK)
    assert (found.correct, found.baseline) == (True, "rmsnorm_fwd_torch"), found.why


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reads_frames", "excuses_once"])
def test_cheats_get_none(name):
    assert reward(f"{GAMEABLE}:{name}", "rmsnorm_fwd", **QUICK).why.startswith("accuracy: y[")


@pytest.mark.slow
def test_a_kernel_that_cannot_be_loaded_or_refuses_gets_none(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_that_name\n", encoding="utf-8")
    assert "cannot be imported" in reward(f"{path}:rmsnorm_fwd", "rmsnorm_fwd", **QUICK).why
    path.write_text(
        "def rmsnorm_fwd(x, weight, eps):\n"
        "    if x.shape[-1] % 2: raise ValueError('the length must be a multiple of 2')\n"
        "    y = x.double() * (x.double() ** 2).mean(-1, keepdim=True).add(eps).rsqrt()\n"
        "    return (y if weight is None else y * weight.double()).to(x.dtype)\n",
        encoding="utf-8",
    )
    assert "must be a multiple of 2" in reward(f"{path}:rmsnorm_fwd", "rmsnorm_fwd", **QUICK).why
    assert reward(f"{path}:rmsnorm_fwd", "rmsnorm_fwd", baseline="", only="N%2=0", **QUICK).correct


@pytest.mark.slow
def test_a_kernel_that_is_wrong_in_a_timed_call_gets_none(monkeypatch, tmp_path):
    path = tmp_path / "late.py"
    path.write_text(
        "def rmsnorm_fwd(x, weight, eps):\n"
        "    y = x.double() * (x.double() ** 2).mean(-1, keepdim=True).add(eps).rsqrt()\n"
        "    y = y if weight is None else y * weight.double()\n"
        "    return (y * (2 if tuple(x.shape) == (8, 64) and x.is_contiguous() else 1)).to(x.dtype)\n",
        encoding="utf-8",
    )
    found = reward(f"{path}:rmsnorm_fwd", "rmsnorm_fwd", **QUICK)
    assert not found.correct
    assert found.why == "in a timed call y is beyond its error bound, or of another shape"


@pytest.mark.parametrize(
    ("times", "speedup"),
    [
        (([3.0, 3.0], [5.0, 5.0], [1.0, 1.0]), 2.0),
        (([1.05, 1.2], [5.0, 5.0], [1.0, 1.1]), None),
        (([3.0, 3.0], [1.0, 1.0], [1.0, 1.0]), None),
    ],
)
def test_the_speedup_leaves_out_the_way(times, speedup):
    assert timing._ratio(*times) == speedup


@pytest.mark.parametrize(
    ("kernel", "options", "said"),
    [
        ("x.py", {"form": "kernel"}, "unknown form 'kernel'"),
        ("x.py", {"form": "kernelbench", "problem": "36"}, "no file x.py"),
        (
            f"{NORMS}:RMSNorm",
            {"form": "kernelbench", "problem": 36},
            "norms.py:RMSNorm: it is given without a name, as",
        ),
        (str(NORMS), {}, "kernel: expected a function of .*norms.py, such as .*norms.py:rms_norm, got the file alone"),
        ("torch:sin", {}, "op: expected an operator, such as rmsnorm_fwd: torch:sin does not tell; got none"),
        (str(NORMS), {"form": "kernelbench", "problem": 1}, "unknown problem '1'"),
        (str(NORMS), {"form": "kernelbench"}, "problem: expected the number of a problem"),
        (str(NORMS), {"form": "kernelbench", "problem": "1"}, "unknown problem '1'"),
        (str(NORMS), {"form": "kernelbench", "problem": "36", "op": "layernorm_fwd"}, "is rmsnorm_fwd, got layernorm"),
        (str(NORMS), {"form": "flashinfer", "problem": str(NORMS)}, "expected JSON"),
        (str(NORMS), {"form": "gpumode", "problem": "x"}, "op: expected an operator"),
        (str(NORMS), {"form": "gpumode", "problem": "q", "op": "rmsnorm_fwd"}, "unknown name in the tuple 'q'"),
        ("rmsnorm_fwd", {"problem": "36"}, "problem: expected none"),
        ("rmsnorm_fwd", {"seconds": 61.0}, "seconds: expected at most 60"),
        ("rmsnorm_fwd", {"dtypes": "fp33"}, "unknown dtype"),
        (f"{NORMS}:rms_norm", {"op": "rmsnrm_fwd"}, "unknown op 'rmsnrm_fwd' .did you mean rmsnorm_fwd"),
        (f"{NORMS}:rms_norm", {"op": "rmsnorm_fwd", "baseline": "none.py:f"}, "no file none.py"),
        (
            f"{NORMS}:rms_norm",
            {"op": "rmsnorm_fwd", "baseline": "layernorm_fwd"},
            "a kernel for layernorm_fwd, not for",
        ),
    ],
)
def test_bad_input_is_one_line(kernel, options, said):
    with pytest.raises(UsageError, match=said) as error:
        reward(kernel, **{**QUICK, **options})
    assert len(str(error.value).splitlines()) == 1


def test_a_solution_writes_into_its_own_folder_alone(tmp_path):
    text = (SUBMISSIONS / "solution.json").read_text(encoding="utf-8").replace("parts/root.py", "../root.py")
    (tmp_path / "solution.json").write_text(text, encoding="utf-8")
    definition = str(SUBMISSIONS / "rmsnorm_h64.json")
    with pytest.raises(UsageError, match="inside of the solution"):
        forms.subject(str(tmp_path / "solution.json"), None, "flashinfer", definition, tmp_path / "files")
