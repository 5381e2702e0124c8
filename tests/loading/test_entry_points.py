"""Kernels that installed packages register: who has which name, and what is said of registrations that are broken."""

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.core.errors import UsageError
from verify_norm.loading import builtin
from verify_norm.loading.entry_points import registered
from verify_norm.loading.registry import find, load, load_directions

MODULE = """
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel

def fused(x, weight, eps):
    return x

fused.__verify_norm__ = Kernel("its own name", "rmsnorm_fwd", contract=Contract(deterministic=False), summary="quick")

def both(x, weight, eps):
    return x

RECORD = Kernel("any", "rmsnorm_fwd", target="fakenorms:both", dtypes=("bfloat16",))
PAIR = (
    Kernel("fake_first", "rmsnorm_fwd", target="fakenorms:both"),
    Kernel("fake_second", "layernorm_fwd", run=both),
)
number = 3
def plain(x):
    return x
no_op = Kernel("any", "softmax", target="fakenorms:both")
nowhere = Kernel("any", "rmsnorm_fwd")
"""


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Makes a distribution that registers kernels, as an installed one does."""

    def make(entries, name="fake-norms", module="fakenorms", text=MODULE):
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[verify_norm.kernels]\n{lines}")
        (folder / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)

    return make


def test_nothing_is_registered_where_nothing_is_installed():
    assert registered().complaints == ()
    with pytest.raises(UsageError, match="unknown kernel 'fused_norm'"):
        find("fused_norm")


def test_a_decorated_callable_a_record_and_several(distribution):
    distribution({"fused_norm": "fakenorms:fused", "narrow": "fakenorms:RECORD", "all": "fakenorms:PAIR"})
    said = registered()
    assert said.complaints == ()
    assert set(said.kernels) == {"fused_norm", "narrow", "fake_first", "fake_second"}
    assert {kernel.origin for kernel in said.kernels.values()} == {"fake-norms 1.5"}
    fused = load("fused_norm")
    assert (fused.name, fused.op, fused.target) == ("fused_norm", "rmsnorm_fwd", "fakenorms:fused")
    assert not fused.contract.deterministic
    assert callable(fused.run)
    assert load("narrow").dtypes == ("bfloat16",)
    assert find("fake_second").target == "fakenorms:both"  # told by the callable
    assert find("fake_first").op == "rmsnorm_fwd"
    with pytest.raises(UsageError, match="narrow is a kernel for rmsnorm_fwd, not for layernorm_fwd"):
        find("narrow", "layernorm_fwd")


def test_a_kernel_without_a_direction_is_both(distribution):
    text = (
        "import torch\nfrom verify_norm.core.kernel import Kernel\n"
        "def both(x, weight, eps):\n    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)\n"
        "both.__verify_norm__ = Kernel('', 'rmsnorm')\n"
    )
    distribution({"my_norm": "directions:both"}, module="directions", text=text)
    assert [kernel.op for kernel in load_directions("my_norm")] == ["rmsnorm_fwd", "rmsnorm_bwd"]
    assert load("my_norm", "rmsnorm_bwd").op == "rmsnorm_bwd"  # as a line that replays has it


@pytest.mark.slow
def test_the_command_finds_and_shows_them(distribution):
    distribution({"fused_norm": "fakenorms:fused"})
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("fused_norm")]
    assert line.split() == ["fused_norm", "rmsnorm_fwd", "quick", "(from", "fake-norms", "1.5)"]
    shown = CliRunner().invoke(app, ["show", "fused_norm"])
    assert shown.exit_code == 0
    assert "found at fakenorms:fused, from fake-norms 1.5" in shown.stdout
    few = ["--dtype", "fp32", "--checks", "accuracy", "--examples", "0", "--in-process"]
    ran = CliRunner().invoke(app, ["--kernel", "fused_norm", *few])
    assert ran.exit_code == 1  # it returns x
    assert "FAIL fused_norm" in ran.stdout


BROKEN = {
    "broken_import": ("no_such_module_at_all:fused", "cannot be imported: ModuleNotFoundError: No module named"),
    "broken_attribute": ("fakenorms:absent", "cannot be imported: AttributeError: module 'fakenorms' has no"),
    "broken_number": ("fakenorms:number", "is or holds a int, not a verify_norm.Kernel"),
    "broken_plain": ("fakenorms:plain", "not a verify_norm.Kernel; verify_norm.kernel(op=…) declares one"),
    "broken_op": ("fakenorms:no_op", "unknown op of broken_op 'softmax'"),
    "broken_target": ("fakenorms:nowhere", "has broken_target without a target as 'package.module:attr'"),
}


def test_a_broken_registration_is_one_line_and_the_others_stay(distribution):
    distribution({name: value for name, (value, _) in BROKEN.items()} | {"works": "fakenorms:fused"})
    said = registered()
    assert set(said.kernels) == {"works"}
    assert len(said.complaints) == len(BROKEN)
    for name, (value, why) in BROKEN.items():
        (line,) = [line for line in said.complaints if line.startswith(f"kernel {name!r} of fake-norms 1.5: {value} ")]
        assert why in line
        assert "\n" not in line
        with pytest.raises(UsageError) as caught:
            find(name)
        assert str(caught.value) == line
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0
    assert listed.stderr.count("verify-norm: kernel 'broken_") == len(BROKEN)
    assert "works" in listed.stdout


def test_a_package_that_exits_when_it_is_imported_is_one_line(distribution):
    distribution({"leaves": "leaver:fused"}, module="leaver", text="raise SystemExit('no licence')\n")
    assert registered().complaints == (
        "kernel 'leaves' of fake-norms 1.5: leaver:fused cannot be imported: SystemExit: no licence",
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_name_of_ours_stays_ours_and_that_is_told(distribution):
    distribution({"layernorm_bwd": "fakenorms:fused", "all": "fakenorms:KERNELS"}, text=MODULE + (
        "KERNELS = [Kernel('rmsnorm_fwd', 'rmsnorm_fwd', target='fakenorms:both')]\n"
    ))  # fmt: skip
    assert find("layernorm_bwd").target == builtin.BUILTIN["layernorm_bwd"].target
    said = registered()
    assert said.kernels == {}
    assert said.complaints == (
        "kernel 'layernorm_bwd' of fake-norms 1.5: layernorm_bwd is a kernel of verify-norm; "
        "use --kernel fakenorms:fused for this one",
        "kernel 'all' of fake-norms 1.5: rmsnorm_fwd is a kernel of verify-norm; "
        "use --kernel fakenorms:both for this one",
    )
    few = ["--dtype", "fp16", "--checks", "signature", "--examples", "0"]
    ran = CliRunner().invoke(app, ["--kernel", "layernorm_bwd", *few, "--in-process"])
    assert ran.exit_code == 0
    assert "layernorm_bwd is a kernel of verify-norm; use" in ran.stderr.replace("\n", " ")


def test_of_two_packages_the_first_has_the_name(distribution):
    distribution({"fused_norm": "fakenorms:fused"}, name="b-norms")
    distribution({"fused_norm": "othernorms:fused"}, name="a-norms", module="othernorms")
    said = registered()
    assert said.kernels["fused_norm"].origin == "a-norms 1.5"
    assert said.complaints == (
        "kernel 'fused_norm' of b-norms 1.5: a-norms 1.5 registers 'fused_norm' too, and comes first",
    )


def test_only_the_package_that_is_meant_is_imported(distribution):
    distribution({"fused_norm": "fakenorms:fused"})
    distribution({"leaves": "leaver:fused"}, name="b-norms", module="leaver", text="raise SystemExit(1)\n")
    assert load("fused_norm").target == "fakenorms:fused"
    assert registered("fused_norm").complaints == ()
