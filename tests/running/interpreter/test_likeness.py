"""Triton's interpreter, as the tool patches it, gives the bits that a GPU gave for the programs of benchmarks/."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # its scripts import one another
interpreter = importlib.import_module("interpreter")
PROGRAMS = {program.name: program for program in importlib.import_module("interpreted").PROGRAMS}
sys.path.remove(str(BENCHMARKS))
RECORD = json.loads(interpreter.RESULTS.read_text())
COMPARED = [program for program in PROGRAMS.values() if not program.undefined]


def test_the_record_is_of_these_programs_on_a_gpu():
    assert RECORD["programs"].keys() == PROGRAMS.keys()
    assert {"device", "date", "torch", "triton", "numpy"} < RECORD.keys()
    assert "NVIDIA" in RECORD["device"]


def test_what_is_known_to_differ_is_recorded_with_a_reason():
    assert interpreter.KNOWN.keys() <= {program.name for program in COMPARED}
    assert all(interpreter.KNOWN.values())


@pytest.mark.slow
@pytest.mark.parametrize("program", COMPARED, ids=lambda program: program.name)
def test_the_interpreter_gives_what_the_gpu_gave(program):
    different = interpreter.compare(program, RECORD["programs"][program.name])
    if program.name in interpreter.KNOWN:
        assert different, f"{program.name} no longer differs: take it off KNOWN"
    else:
        assert not different


@pytest.mark.parametrize("program", [p for p in PROGRAMS.values() if p.undefined], ids=lambda program: program.name)
def test_what_is_undefined_runs(program):
    assert interpreter.run(program, "cpu")


@pytest.mark.parametrize(
    ("dtype", "got", "want", "ulp", "differs"),
    [
        ("float32", [1.0, torch.nan], [1.0, -torch.nan], 0.0, False),
        ("float32", [0.0], [-0.0], 0.0, True),
        ("float32", [1.0], [1 + 2.0**-23], 0.0, True),
        ("float32", [1.0], [1 + 2.0**-23], 1.0, False),
        ("float32", [1.0], [1 + 3 * 2.0**-23], 2.0, True),
        ("float32", [1e-40], [0.0], 2.0, False),
        ("float32", [torch.inf], [3e38], 2.0, True),
        ("float32", [torch.nan], [1.0], 2.0, True),
        ("int64", [2**53 + 1], [2**53], 0.0, True),
    ],
)
def test_a_difference_is_seen(dtype, got, want, ulp, differs):
    data = [torch.tensor(v, dtype=getattr(torch, dtype)).view(torch.uint8).numpy().tobytes() for v in (got, want)]
    assert bool(interpreter.unlike(dtype, *data, ulp).size) is differs
