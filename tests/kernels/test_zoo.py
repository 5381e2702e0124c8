"""The zoo: each wrong kernel is convicted of what is wrong with it, and none of the right ones of anything."""

import subprocess
import sys

import pytest
import torch

from verify_norm import registry, zoo
from verify_norm.checks import CHECKS
from verify_norm.kernels.zoo import ZOO, differences
from verify_norm.ops import OPS
from verify_norm.report.model import Settings

WRONG = [specimen for specimen in zoo.shown("cpu") if specimen.wrong]
RIGHT = [specimen for specimen in zoo.shown("cpu") if not specimen.wrong]
HERE = Settings(isolate=False)
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="verify-norm zoo runs them on a GPU, in processes that a wrong kernel may end"
)


def ids(specimens):
    return [specimen.name for specimen in specimens]


@interpreted
@pytest.mark.parametrize("specimen", WRONG, ids=ids(WRONG))
def test_a_wrong_kernel_is_convicted_of_what_is_wrong_with_it(specimen):
    finding = zoo.convict(specimen, HERE)
    assert finding is not None
    assert finding.check in specimen.caught_by


@interpreted
@pytest.mark.parametrize("specimen", RIGHT, ids=ids(RIGHT))
def test_a_right_kernel_is_convicted_of_nothing(specimen):
    outcome = zoo.audit(specimen, Settings(examples=30, seconds=1.5, isolate=False))
    assert outcome.right, outcome.findings
    assert outcome.cases


def test_every_bug_of_the_list_and_every_unusual_kernel_is_there():
    numbers = {int(name[1:3]) for name in ZOO if name.startswith("A")}
    assert numbers == set(range(1, 41))
    assert {name[:3] for name in ZOO if name.startswith("U")} == {f"U{n:02}" for n in range(1, 14)}
    assert {name[:4] for name in ZOO if name.startswith("S")} == {f"S00{n}" for n in range(5)}


def test_the_table_is_filled_in():
    for name, specimen in ZOO.items():
        assert name == specimen.name
        assert specimen.kernel.summary
        assert specimen.source
        assert specimen.kernel.op in OPS
        assert bool(specimen.reason) == (specimen.needs != "cpu"), name
        assert specimen.wrong == (specimen.kind != "unusual")
        assert set(specimen.caught_by) <= set(CHECKS)
        known = {tensor.name for tensor in OPS[specimen.kernel.op].outputs}
        assert set(specimen.outputs) <= known
        if specimen.needs != "none":
            assert registry.ready(specimen.kernel).run is not None
            assert specimen.caught_by or not specimen.wrong


def test_reading_the_table_loads_neither_torch_nor_triton():
    code = (
        "import sys; from verify_norm.kernels.zoo import ZOO; print(len(ZOO), {'torch', 'triton'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(len(ZOO)), "set()"]


@interpreted
def test_a_kernel_needs_its_bug_to_be_convicted():
    """What convicts a wrong kernel convicts its bug: the host of most of them, without one, passes the same cases."""
    for name, host in (("A17_onepass_variance", "H01_layernorm_fwd"), ("A04_dw_partials_floor", "H04_rmsnorm_bwd")):
        finding = zoo.convict(ZOO[name], HERE)
        kernel = registry.ready(ZOO[host].kernel)
        assert finding is not None
        assert zoo.examine(kernel, finding.spec, (finding.check,), "cpu").findings == ()


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
    """What a specimen writes beyond its buffer is less than any guard zone holds."""
    from verify_norm import memory
    from verify_norm.kernels.zoo import hosts

    home = torch.full((4 + memory.GUARD,), -1.0, device=device)
    hosts.spill(torch.zeros(1000, device=device), home[:4])
    assert (home[4 : 4 + hosts.SLACK] == 0).all()
    assert (home[4 + hosts.SLACK :] == -1).all()
    assert hosts.SLACK < memory.GUARD
