"""Proofs of whole calls: kernels of ours, and the zoo's wrong ones; and the command."""

import importlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.kernels.zoo import ZOO
from verify_norm.proof.certificate import certificate
from verify_norm.proof.memory import NotProved
from verify_norm.proof.prove import Asked, prove
from verify_norm.proof.prover import prove_form
from verify_norm.proof.replay.check import check
from verify_norm.proof.replay.reading import Rejected
from verify_norm.proof.shapes import Affine, Form
from verify_norm.proof.shown import Configuration

EVERY = "every M, 1 ≤ M ≤ 2147483647"
OURS = {  # kernel: type, length of a row, groups, positions, rows; for which M it is proved, and the contract
    "layernorm_fwd": (("bfloat16", 4096, 0, 1, 301), EVERY, "strict,variance=two_pass"),
    "add_layernorm_fwd": (("float16", 40960, 0, 1, 301), EVERY, "strict,variance=two_pass"),
    "rmsnorm_fwd": (("float32", 1000, 0, 1, 301), EVERY, "strict,lanes=32,variance=two_pass"),
    "add_rmsnorm_fwd": (("bfloat16", 768, 0, 1, 301), EVERY, "strict,variance=two_pass"),
    "rmsnorm_bwd": (("float32", 99, 0, 1, 40), EVERY, "strict,summation=sequential,variance=two_pass"),
    "layernorm_bwd": (("float32", 100, 0, 1, 40), EVERY, "strict,summation=sequential,variance=two_pass"),
    "add_rmsnorm_bwd": (("float16", 96, 0, 1, 40), EVERY, "strict,summation=sequential,variance=two_pass"),
    "groupnorm_fwd": (("bfloat16", 24, 2, 4, 2), f"{EVERY} samples", "strict,variance=two_pass"),
}
WRONG = {  # of the zoo: length of a row, and what stands in the way, with its line
    "A01_ln_masked_variance": (1000, "meaning", "not the variance of a row", "hosts.py:84"),
    "A02_gn_mask_bound_C": (60, "memory", "written twice", "groupnorm.py:46"),
    "A05_row_tile_unmasked": (20, "memory", "an address beyond x", "hosts.py:69"),
    "A06_cols_beyond_block": (1500, "meaning", "not the mean of a row", "hosts.py:70"),
    "A07_row_sum_broadcast": (20, "meaning", "not C1 of a row", "hosts.py:132"),
    "A16_int32_row_offset": (1500, "memory", "a number of 32 bits overflows", "hosts.py:106"),
    "A17_onepass_variance": (1000, "rounding", "E[x²] − mean² cancels", "hosts.py:82"),
    "A18_fp16_sumsq": (1000, "rounding", "arithmetic in f16", "hosts.py:82"),
    "A19_onepass_variance_clipped": (1000, "reach", "arith.maxnumf", "hosts.py:88"),
    "A24_eps_outside_sqrt": (1000, "meaning", "not var + eps", "hosts.py:90"),
    "A25_eps_none_low_precision": (1000, "meaning", "not var + eps", "hosts.py:94"),
    "A26_eps_on_sum": (1000, "meaning", "not var + eps", "hosts.py:92"),
    "A34_dw_missing": (96, "meaning", "dweight is not returned", ""),
    "A39_no_dependency_wait": (1000, "memory", "x is used before the wait for the launch", "hosts.py:77"),
    "S000_as_printed": (1000, "reach", "a loop whose bounds cannot be read", "tutorial.py:76"),
    "S004_k2_unguarded_tail": (1500, "memory", "an address beyond y", "ladder.py:34"),
}


HERE = Path(__file__).parent.parent / "support" / "unproved.py"
WAYS = {  # of unproved.py: the operator, and what stands in the way
    "looped_fwd": ("rmsnorm_fwd", ""),
    "flagged_fwd": ("rmsnorm_fwd", ""),
    "unweighted_fwd": ("rmsnorm_fwd", "y is not the operator's"),
    "early_fwd": ("rmsnorm_fwd", "x is used before the wait"),
    "flat_fwd": ("rmsnorm_fwd", "y has another shape"),
    "zeroed_fwd": ("rmsnorm_fwd", "torch writes to the input x"),
    "fused_fwd": ("layernorm_fwd", ""),
    "cubed_fwd": ("layernorm_fwd", "the function __nv_rcbrtf is not one that is read"),
    "rounded_sum_fwd": ("add_rmsnorm_fwd", ""),
    "coarse_fwd": ("add_rmsnorm_fwd", "the sum is rounded to bfloat16, and x is float32"),
    "addends_fwd": ("add_rmsnorm_fwd", "arithmetic in bf16: X0 add RESIDUAL"),
    "halved_fwd": ("add_rmsnorm_fwd", "arithmetic in f16: X mul X"),
    "shared_bwd": ("rmsnorm_bwd", "dweight, which all programs share, is written by each of them"),
}

TURNS = {  # of unproved.py, whose programs share tiles: what stands in the way of a proof for every M, and its line
    "turns_bwd": ("", ""),
    "rows_bwd": ("", ""),
    "own_bwd": ("written twice", "unproved.py:187"),
    "short_bwd": ("expected every tile once", "unproved.py:173"),
    "first_bwd": ("expected every tile once", "unproved.py:173"),
    "skips_bwd": ("expected every tile once", "unproved.py:173"),
    "twice_bwd": ("expected every tile once", "unproved.py:173"),
    "long_bwd": ("expected every tile once", "unproved.py:173"),
    "begun_bwd": ("a sum over tiles that does not begin with 0", "unproved.py:173"),
    "product_bwd": ("adds what the turns before decide", "unproved.py:173"),
    "last_tile_bwd": ("adds what the turns before decide", "unproved.py:173"),
    "inside_bwd": ("is written in the loop", "unproved.py:189"),
    "part_bwd": ("is read before it is written", "unproved.py:206"),
    "misses_bwd": ("expected every line of the programs once", "unproved.py:201"),
    "beyond_bwd": ("expected every line of the programs once", "unproved.py:201"),
    "from_bwd": ("expected every line of the programs once", "unproved.py:201"),
    "whole_bwd": ("a quotient that depends on the program", "unproved.py:200"),
    "lane_bwd": ("a line of no program", "unproved.py:206"),
    "one_more_bwd": ("a line of no program", "unproved.py:206"),
    "other_bwd": ("do not hold 0", "unproved.py:206"),
}


NEAR = {  # of near.py, right ones and wrong ones beside them: what stands in the way, and its line
    "plain": ("", ""),
    "bits_of_columns": ("", ""),
    "last_weight_again": ("", ""),
    "a_column_less": ("not the variance of a row", "near.py:39"),
    "another_stride": ("does not move by its program's rows", "near.py:26"),
    "lanes_of_1": ("not var + eps of a row", "near.py:39"),
    "lanes_of_garbage": ("lanes beyond the mask hold garbage", "near.py:22"),
    "from_the_next_row": ("an address beyond x", "near.py:24"),
    "sum_in_bfloat16": ("arithmetic in bf16", "near.py:29"),
    "bessel": ("not var + eps of a row", "near.py:33"),
    "eps_outside": ("not var + eps of a row", "near.py:35"),
    "m_for_n": ("not var + eps of a row", "near.py:37"),
    "last_row_missing": ("rstd is not written from element 36 on", "near.py:42"),
    "one_weight": ("y is not the operator's", "near.py:79"),
    "no_wait": ("rstd is used before the wait for the launch before", "near.py:69"),
    "row_before": ("y is not the operator's", "near.py:79"),
    "two_types_midway": ("XHAT is rounded to bf16 in some elements and to f16 in others", "near.py:72"),
    "over_the_next_row": ("an address beyond y", "near.py:75"),
    "a_row_too_many": ("an address beyond y", "near.py:77"),
    "zeros_added": ("", ""),
    "half_zeroed": ("the host computes zero_ with torch", ""),
    "doubled_after": ("the host computes _foreach_mul_ with torch", ""),
}


def of_zoo(name):
    kernel, (columns, *_) = ZOO[name].kernel, WRONG[name]
    groups = (3, 10) if kernel.op == "groupnorm_fwd" else (0, 1)
    dtype = "float16" if name == "A18_fp16_sumsq" else "bfloat16"
    config = Configuration(kernel.op, dtype, 1e-5, 0.0, columns, *groups)
    return Asked(kernel.target, config, kernel.bind, rows=3 if groups[0] else 37)


@pytest.fixture(scope="module")
def certificates(once, request):
    """Those of all tests that run, in one call: its process imports torch and Triton once."""
    tests = [item.callspec.params for item in request.session.items if "certificates" in item.fixturenames]
    return once("certificates", lambda: proved({given.get("name", "rmsnorm_bwd") for given in tests}))


def proved(names):
    ours = []
    for name, ((dtype, columns, groups, positions, rows), *_) in OURS.items():
        ours.append(Asked(name, Configuration(name, dtype, 1e-5, 0.0, columns, groups, positions), rows=rows))
    types = dict.fromkeys(WAYS, "float16") | {"coarse_fwd": "float32"}
    ways = [Asked(f"{HERE}:{name}", Configuration(op, types[name], 1e-5, 0.0, 200)) for name, (op, _) in WAYS.items()]
    config = Configuration("rmsnorm_bwd", "float16", 1e-5, 0.0, 200)
    turns = [Asked(f"{HERE}:{name}", config, rows=301, most_rows=100_000) for name in TURNS]
    config = Configuration("rmsnorm_fwd", "float16", 1e-5, 0.0, 48)
    near = [Asked(f"{HERE.with_name('near.py')}:{name}", config, rows=37, most_rows=100_000) for name in NEAR]
    asked = zip((*OURS, *WRONG, *WAYS, *TURNS, *NEAR), (*ours, *map(of_zoo, WRONG), *ways, *turns, *near), strict=True)
    wanted = {name: one for name, one in asked if name in names}
    return dict(zip(wanted, map(certificate, prove(list(wanted.values()))), strict=True))


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_a_kernel_of_ours_is_proved(name, certificates):
    found, (_, domain, contract) = certificates[name], OURS[name]
    assert found["proved"], found["reasons"]
    assert (found["domain"], found["contract"]) == (domain, contract)
    assert not found["alone"]
    assert found["replayed"].startswith("replayed for M = ")
    assert json.loads(json.dumps(found)) == found


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_of_the_zoo_has_no_certificate_and_its_line_is_named(name, certificates):
    found, (_, what, why, line) = certificates[name], WRONG[name]
    assert not found["proved"]
    fitting = [r for r in found["reasons"] if r["what"] == what and why in r["why"] and r["line"].endswith(line)]
    assert fitting, found["reasons"]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_a_way_to_compute_it(name, certificates):
    found, (_, why) = certificates[name], WAYS[name]
    assert found["proved"] == (why == ""), found.get("reasons")
    assert name != "rounded_sum_fwd" or "residual=rounded" in found["contract"]
    assert found["proved"] or [r for r in found["reasons"] if why in r["why"]], found["reasons"]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", TURNS)
def test_a_loop_over_tiles_that_programs_share(name, certificates):
    found, (why, line) = certificates[name], TURNS[name]
    if not why:
        assert found["domain"] == "every M, 1 ≤ M ≤ 100000", found.get("reasons")
        assert found["depths"]["ΣDY·X"].startswith("min(M, ")
        return
    said = [f"{one['why']} ({one['line']})" for one in found.get("reasons", ())]
    assert [one for one in (*said, found.get("alone", "")) if why in one and line in one], (said, found.get("alone"))
    assert not found["proved"] or found["domain"] == "M = 301", "where it is right"


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", NEAR)
def test_a_kernel_near_a_right_one(name, certificates):
    found, (why, line) = certificates[name], NEAR[name]
    assert found["proved"] == (why == ""), found.get("reasons")
    reasons = found.get("reasons", ())
    assert not why or [one for one in reasons if why in one["why"] and one["line"].endswith(line)], reasons
    assert why or found["domain"] == "every M, 1 ≤ M ≤ 100000"


AHEAD = {  # of the backward of rows of 99, which loads rstd of the next tile: a mistake there
    "that of this tile": ("scf.yield %new_dw_74, %rstd_37", "scf.yield %new_dw_74, %ahead_27"),
    "that of the tile before": ("%ahead_33 = arith.addi", "%ahead_33 = arith.subi"),
    "that of the next 4 rows": ("%ahead_31 = arith.muli %programs_7,", "%ahead_31 = arith.muli %c4_i64,"),
    "a mask of this tile": ("arith.cmpi slt, %ahead_33", "arith.cmpi slt, %row_30"),
    "a row too many": ("arith.cmpi slt, %ahead_33", "arith.cmpi sle, %ahead_33"),
}


def affine(value):
    """Return a call of a certificate as the prover has it."""
    if isinstance(value, dict):
        (of,) = {key[-1] for key in value if key.startswith("times ")} or {""}
        return Affine(value[f"times {of}"], value["plus"], of) if of else {k: affine(one) for k, one in value.items()}
    return [affine(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("", ""), *AHEAD.values()], ids=["right", *AHEAD])
def test_what_a_turn_loads_ahead_is_what_the_next_takes(old, new, certificates):
    found = certificates["rmsnorm_bwd"]
    (saved,), kernels = [form for form in found["forms"] if form["rows"]], {}
    for digest in {event["launch"] for event in saved["call"]["events"] if "launch" in event}:
        kernel = found["kernels"][digest]
        text = kernel["ttir"].replace(old, new, 1) if kernel["name"] == "backward" else kernel["ttir"]
        assert kernel["name"] != "backward" or not old or text != kernel["ttir"]
        kernels[digest] = kernel | {"ttir": text}
    form = Form(affine(saved["call"]), saved["rows"], saved["each"], tuple(saved["programs"]))
    config = Configuration("rmsnorm_bwd", "float32", 1e-5, 0.0, 99)
    if not old:
        assert not prove_form(config, form, kernels).failures
        return
    with pytest.raises(NotProved, match=r"ahead|does not move by its program's rows|a mask by a comparison"):
        prove_form(config, form, kernels)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rmsnorm_fwd", "layernorm_bwd"])
def test_a_contract_that_is_too_strict_is_rejected(name, certificates):
    with pytest.raises(Rejected, match="is more than the contract's"):
        check(certificates[name] | {"contract": "strict,variance=two_pass"})


def run(*arguments):
    result = CliRunner().invoke(app, ["prove", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result


LIGER = {  # of Liger: groups and positions, and what stands in the way
    "layernorm_fwd": ((0, 1), ""),
    "rmsnorm_fwd": ((0, 1), ""),
    "add_rmsnorm_fwd": ((0, 1), ""),
    "groupnorm_fwd": ((4, 8), "ops/group_norm.py:"),
}


@pytest.mark.slow
def test_forwards_of_liger():
    pytest.importorskip("liger_kernel")
    asked = [
        Asked(f"{HERE.parent / 'liger_forwards.py'}:{name}", Configuration(name, "bfloat16", 1e-5, 0.0, 64, *groups))
        for name, (groups, _) in LIGER.items()
    ]
    for one, (name, (_, where)) in zip(map(certificate, prove(asked)), LIGER.items(), strict=True):
        assert one["proved"] == (where == ""), (name, one.get("reasons"))
        assert one["proved"] or any(where in reason["line"] for reason in one["reasons"]), one["reasons"]


def test_what_the_benchmark_has_recorded(monkeypatch):
    """Of the zoo no certificate where the kernel is wrong, and the right line; no error of a run above its bound."""
    found = json.loads((HERE.parents[2] / "benchmarks/results/proofs.json").read_text(encoding="utf-8"))
    zoo, runs = found["zoo"]["rows"], found["errors"]["rows"] + [row for row in found["gpu"]["rows"] if row["cases"]]
    assert all("right for" in row for row in zoo if row["certificate"])
    named = [row["right line"] for row in zoo if row["right line"] is not None]
    assert sum(named) >= 0.75 * len(named)
    assert all(row["proved"] and max(row["largest error over its bound"].values()) <= 1.0 for row in runs)
    page = (HERE.parents[2] / "docs/explanation/proofs.md").read_text(encoding="utf-8")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # as the program sets it
    monkeypatch.syspath_prepend(HERE.parents[2] / "benchmarks")
    lines = importlib.import_module("proofs").recorded(found | {"lengths": {"rows": ()}})
    assert [line.partition(":")[0] for line in lines] == ["zoo", "errors, CPU", "gpu, NVIDIA H200"]
    for line in lines:
        assert f"- {line} " in " ".join(page.split())


MISTAKES = {
    "neither": ((), "expected either --kernel K or --check FILE"),
    "n": (("--kernel", "layernorm_fwd", "--n", "few"), "expected lengths of a row, such as 4096"),
    "no n": (("--kernel", "layernorm_fwd", "--n", ""), "expected at least one length"),
    "two elements": (("--kernel", "layernorm_fwd", "--n", "2"), "expected 3 to 131072"),
    "dtype": (("--kernel", "layernorm_fwd", "--dtype", "int8"), "unknown dtype 'int8'"),
    "operator": (("--kernel", "groupnorm_bwd"), "proofs reach layernorm_fwd"),
    "groups": (("--kernel", "layernorm_fwd", "--groups", "2"), "belong to groupnorm_fwd"),
    "channels": (("--kernel", "groupnorm_fwd", "--n", "30", "--groups", "2", "--positions", "4"), "no whole channels"),
    "eps": (("--kernel", "layernorm_fwd", "--eps", "0"), "have to differ from 0, 1, N and 1/N"),
    "no file": (("--check", "there-is-none.json"), "expected a file of certificates"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_and_status_2(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert result.output.count("\n") == 1


def test_a_saved_certificate_is_replayed(tmp_path, request):
    right = request.path.parent.parent / "support" / "certificate.json"
    found = json.loads(right.read_text(encoding="utf-8"))
    (tmp_path / "all.json").write_text(json.dumps([found, found | {"values": {}}]), encoding="utf-8")
    result = run("--check", tmp_path / "all.json")
    assert result.output.startswith("layernorm_fwd, N = 100, float32: replayed for M = 1, 8, 9, 15")
    assert "claimed as {}" in result.output
