"""A plan stands for the same units everywhere, and other units where anything changes that an outcome depends on."""

import json
from dataclasses import replace

import pytest

from verify_norm.campaign.plan import checked, digest, expand, read
from verify_norm.core.errors import UsageError

SOURCE = """
import torch


def rms_norm(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


def rmsnorm_again(x, weight, eps):
    return rms_norm(x, weight, eps)
"""
OWN = {"kernel": "ops.py:rms_norm", "op": "rmsnorm_fwd"}
KEYS = {
    "kernels": [OWN, OWN | {"kernel": "ops.py:rms*"}],
    "dtypes": ["fp32", "bf16"],
    "examples": 25,
    "block": 10,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def ops(tmp_path, monkeypatch):
    """A folder with a file of kernels, where the command runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(SOURCE)
    return tmp_path / "ops.py"


def units(**other):
    return expand(checked(KEYS | other))


def test_it_expands_to_kernels_types_and_blocks_and_the_tables_come_first():
    found = units()
    assert [unit.number for unit in found] == list(range(12))
    assert {str(unit) for unit in found[:4]} == {
        f"ops.py:{name} (rmsnorm_fwd), {dtype}, block 0"
        for name in ("rms_norm", "rmsnorm_again")
        for dtype in ("float32", "bfloat16")
    }
    assert [(unit.block, unit.seed, unit.examples) for unit in found[::4]] == [(0, 0, 10), (1, 1, 10), (2, 2, 5)]
    assert len({unit.id for unit in found}) == 12, "a kernel that is named twice has its units once"
    assert len(units(examples=0)) == 4
    assert len(units(shapes="models")) == 4


def test_the_same_plan_has_the_same_units(tmp_path, monkeypatch):
    before = units()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ops.py").write_text(SOURCE)
    monkeypatch.chdir(elsewhere)
    assert units(workers=3) == before
    assert digest(units()) == digest(before)


def test_each_accelerator_has_all_units():
    found = units(accelerators="H100, A100,H100")
    assert [unit.accelerator for unit in found] == ["H100", "A100"] * 12
    assert len({unit.id for unit in found}) == 24
    assert {replace(unit, id="", number=0, accelerator="") for unit in found} == {
        replace(unit, id="", number=0) for unit in units()
    }
    assert str(found[1]) == "ops.py:rms_norm (rmsnorm_fwd), float32, block 0, on A100"


TUNED = """
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": n}) for n in (8, 16)], key=[])
@triton.jit
def _norm(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, BLOCK)


def rms_norm(x, weight, eps):
    _norm[(1,)](x)
    return x
"""


def test_each_configuration_of_a_tuned_kernel_has_units_of_its_own(tmp_path, ops):
    (tmp_path / "tuned.py").write_text(TUNED)
    both = {"kernels": [OWN, OWN | {"kernel": "tuned.py:rms_norm"}], "dtypes": "fp32", "examples": 0}
    one, other = units(**both)
    every = units(**both, configs="all")
    assert [unit.kernel for unit in every] == [
        "ops.py:rms_norm",
        "tuned.py:rms_norm",
        *(f"tuned.py:rms_norm@_norm(BLOCK={n})" for n in (8, 16)),
    ]
    assert {one.id, other.id} < {unit.id for unit in every}
    listed = units(**both | {"kernels": [OWN | {"kernel": "tuned.py:rms_norm@_norm(BLOCK=16)"}]})
    assert listed[0].id == every[-1].id


CHANGED = [{"seed": 5}, {"checks": ["accuracy"]}, {"seconds": 5.0}, {"only": "ndim=2"}, {"contract": "llama"}]


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: next(iter(change)))
def test_what_changes_an_outcome_changes_the_units(change):
    assert not {unit.id for unit in units()} & {unit.id for unit in units(**change)}


def test_an_edited_file_changes_the_units(ops):
    before = units()
    ops.write_text(SOURCE.replace("rsqrt", "sqrt"))
    assert not {unit.id for unit in before} & {unit.id for unit in units()}


@pytest.mark.parametrize(
    ("name", "text"), [("p.json", json.dumps(KEYS)), ("p.toml", 'kernels = ["ops.py"]\nblock = 7\n')]
)
def test_a_file_is_toml_or_json(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert checked(read(name), name).block in (7, 10)


FILES = [
    ("none.toml", None, "plan none.toml: No such file"),
    ("p.toml", "kernels = [", "plan p.toml: not a plan in TOML: "),
    ("p.json", "{", "plan p.json: not a plan in JSON: "),
    ("p.json", "[]", "plan p.json: expected an object such as"),
    ("p.toml", "block = 3", "plan p.toml: there is no key kernels: expected a list of kernels"),
    ("p.toml", 'kernels = ["a"]\nblok = 3', r"plan p.toml: unknown key 'blok' \(did you mean block"),
    ("p.toml", 'kernels = ["a", {kernel = "b", opp = "c"}]', "plan p.toml: kernels, entry 2: unknown key 'opp'"),
]


@pytest.mark.parametrize(("name", "text", "said"), FILES, ids=[f"{row[0]} {row[1]}"[:40] for row in FILES])
def test_a_file_that_is_no_plan_is_one_line(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        checked(read(name), name)
    assert "\n" not in str(error.value)


BAD = [
    ({"kernels": []}, "kernels: expected a list of kernels"),
    ({"kernels": "ops.py"}, "kernels: expected a list of kernels"),
    ({"kernels": [3]}, "kernels: expected a list of kernels"),
    ({"kernels": [""]}, "kernels, entry 1: kernel: expected what --kernel takes, as a text, got ''"),
    ({"kernels": ["layernorm_fwdd"]}, "unknown kernel 'layernorm_fwdd' .did you mean layernorm_fwd"),
    ({"kernels": ["nothing*"]}, "--kernel nothing.: no kernel matches"),
    ({"kernels": ["ops.py:rmsnorm_agian"]}, "ops.py has no 'rmsnorm_agian'"),
    ({"kernels": [OWN | {"op": "rmsnorm_fw"}]}, "unknown op 'rmsnorm_fw'"),
    ({"kernels": [OWN | {"contract": "lama"}]}, "unknown contract 'lama' .did you mean llama"),
    ({"kernels": [OWN | {"only": "dtype=fp16"}]}, "takes float16, and the run asks for float32, bfloat16"),
    ({"accelerators": []}, "accelerators: expected a list of accelerators, such as .*, got .."),
    ({"accelerators": ["H100", 3]}, "accelerators: expected a list of accelerators"),
    ({"configs": "some"}, "configs: expected one of tuned, all, got 'some'"),
    (
        {"kernels": [OWN | {"kernel": "ops.py:rms_norm@_k(B=1)"}]},
        "@_k.B=1.: the kernel has no tuner with several configurations",
    ),
    ({"block": 0}, "block: expected a whole number, 1 or more, got 0"),
    ({"dtypes": ["fp33"]}, "unknown dtype 'fp33'"),
    ({"device": "tpu"}, "unknown device 'tpu'"),
    ({"untrusted": True}, "untrusted: a campaign's seeds are known before it"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[row[1][:40] for row in BAD])
def test_a_wrong_key_is_one_line(change, said):
    with pytest.raises(UsageError, match=said) as error:
        units(**change)
    assert "\n" not in str(error.value)
