"""The zoo: each wrong kernel is detected by an output that is wrong, and no right one is flagged."""

import subprocess
import sys

import pytest
import torch
from detection import detect

from verify_norm.checks import CHECKS
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.kernels.zoo import ZOO, differences
from verify_norm.loading import registry
from verify_norm.search.examine import examine
from verify_norm.validation import zoo

WRONG = [example for example in zoo.detectable("cpu") if example.wrong]
RIGHT = [example for example in zoo.detectable("cpu") if not example.wrong]
ONE_BY_ONE = ("H05_groupnorm_fwd", "H10_welford")  # a program a group: of 280 groups the interpreter takes seconds
HERE = Settings(isolate=False)
TRIES = 8  # of the corner table, for a race between two threads that one case shows in two of five runs
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="verify-norm zoo runs them on a GPU, in processes that a wrong kernel may end"
)


def ids(examples):
    return [example.name for example in examples]


@pytest.mark.sampled(8)
@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("example", WRONG, ids=ids(WRONG))
def test_a_wrong_kernel_is_detected_by_a_wrong_output(example, long_series):
    torch._dynamo.utils.counters.clear()  # of other tests: `modes` compiles nothing where compiled code is in use
    tries = TRIES if "threads" in example.kernel.summary else 1
    finding = next((found for _ in range(tries) if (found := detect(example, HERE))), None)
    assert finding is not None
    assert finding.check in example.caught_by


@pytest.mark.sampled(8)
@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("example", RIGHT, ids=ids(RIGHT))
def test_a_right_kernel_is_not_flagged(example, few_corners):
    """In a case of each kind; `verify-norm zoo` runs all of them, and random ones. U24 refuses most of them."""
    few_corners(slice(17 if example.name in ONE_BY_ONE else 7, 75, 1 if example.name == "U24_two_dimensions" else 10))
    outcome = zoo.run(example, Settings(examples=0, isolate=False))
    assert outcome.as_expected, outcome.findings
    assert outcome.cases > 4


def test_every_bug_of_the_list_and_every_unusual_kernel_is_there():
    numbers = {int(name[1:3]) for name in ZOO if name.startswith("A")}
    assert numbers == set(range(1, 47))
    assert {name[:3] for name in ZOO if name.startswith("U")} == {f"U{n:02}" for n in range(1, 65)}
    assert {name[:3] for name in ZOO if name.startswith("C")} == {f"C{n:02}" for n in range(1, 48)}
    assert {name[:4] for name in ZOO if name.startswith("S")} == {f"S00{n}" for n in range(5)}


def test_the_table_is_filled_in():
    for name, example in ZOO.items():
        assert name == example.name
        assert example.kernel.summary
        assert example.source
        assert OPS[example.kernel.op].name == example.kernel.op
        assert bool(example.reason) == (example.needs != "cpu"), name
        assert example.wrong == (example.kind != "unusual")
        assert set(example.caught_by) <= set(CHECKS)
        known = {tensor.name for tensor in OPS[example.kernel.op].outputs}
        assert set(example.outputs) <= known
        if example.needs != "none":
            assert registry.ready(example.kernel).run is not None
            assert example.caught_by or not example.wrong


def test_reading_the_table_loads_neither_torch_nor_triton():
    code = (
        "import sys; from verify_norm.kernels.zoo import ZOO; print(len(ZOO), {'torch', 'triton'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(len(ZOO)), "set()"]


@interpreted
def test_without_its_bug_a_kernel_passes_the_same_cases():
    """The kernel that most bugs are put into passes the cases that detect them."""
    for name, host in (("A17_onepass_variance", "H01_layernorm_fwd"), ("A04_dw_partials_floor", "H04_rmsnorm_bwd")):
        finding = detect(ZOO[name], HERE)
        kernel = registry.ready(ZOO[host].kernel)
        assert finding is not None
        assert examine(kernel, finding.spec, (finding.check,), "cpu").findings == ()


def test_the_published_gradient_check_convicts_what_is_right():
    """Of 20 seeds none comes near what the text says that it printed, in the type that it says."""
    for seed in range(20):
        errors = differences.gradient_check(seed=seed)
        assert errors["dx"] > 1e-3 > 100 * differences.PROMISED["dx"]


def test_the_published_gradient_check_passes_what_is_wrong():
    """Even in float64 it cannot tell a backward that has lost gamma, which it sets to 1."""
    double = {"dtype": float, "seed": 1}
    right = differences.gradient_check(differences.backward, **double)
    wrong = differences.gradient_check(differences.backward_without_gamma, **double)
    assert right == wrong
    assert max(right.values()) < 1e-6


def test_memory_outside_is_written_within_the_guards(device):
    """What a example writes beyond its buffer is less than any guard zone holds."""
    from verify_norm.cases import placement
    from verify_norm.kernels.zoo import hosts

    home = torch.full((4 + placement.GUARD,), -1.0, device=device)
    hosts.spill(torch.zeros(1000, device=device), home[:4])
    assert (home[4 : 4 + hosts.SLACK] == 0).all()
    assert (home[4 + hosts.SLACK :] == -1).all()
    assert hosts.SLACK < placement.GUARD
