"""Certificates with one thing changed: each is refused, in one line."""

import json

import pytest
from replayed import FORWARD, SUM, TURNS, TWICE, altered, call_of, ttir

from verify_norm.proof.replay.check import check
from verify_norm.proof.replay.reading import Rejected


@pytest.mark.parametrize("right", [FORWARD, TWICE, TURNS, SUM], ids=["forward", "twice", "turns", "sum"])
def test_what_is_right_is_replayed(right):
    assert check(right).startswith("replayed for M = 1, ")
    assert check(json.loads(json.dumps(right))) == check(right)


def at(*keys, to):
    """Change what stands at a path."""

    def change(found):
        *path, last = keys
        for key in path:
            found = found[key]
        found[last] = to(found[last]) if callable(to) else to

    return change


CALL = ("forms", 0, "call")
EVENTS = (*CALL, "events")


def without(*keys):
    def change(found):
        *path, last = keys
        for key in path:
            found = found[key]
        del found[last]

    return change


def swapped(a, b):
    """Exchange the places of two outputs, or of two inputs."""

    def change(found):
        for side in ("inputs", "outputs"):
            places = found["forms"][0]["call"][side]
            if a in places:
                places[a], places[b] = places[b], places[a]

    return change


FALSE = {  # of which certificate; what is changed; what the refusal says
    "another N": (FORWARD, at("fixed", "N", to=99), ""),
    "another type": (FORWARD, at("fixed", "dtype", to="bfloat16"), ""),
    "another eps": (FORWARD, at("fixed", "eps", to=1e-6), ""),
    "another offset of the weight": (FORWARD, at("fixed", "weight_offset", to=1.0), "y is not the operator's"),
    "another operator": (FORWARD, at("op", to="rmsnorm_fwd"), ""),
    "an operator that proofs do not reach": (FORWARD, at("op", to="batchnorm_fwd"), "of an operator that proofs reach"),
    "another schema": (FORWARD, at("schema", to=2), "no certificate of schema 1"),
    "another kernel": (TWICE, at(*EVENTS, 0, "launch", to=TWICE["forms"][0]["call"]["events"][2]["launch"]), "zip"),
    "no forms": (FORWARD, at("forms", to=[]), "no certificate"),
    "no outputs": (FORWARD, at("outputs", to={}), "no certificate"),
    "no kernels": (FORWARD, at("kernels", to={}), "KeyError"),
    "no values": (FORWARD, without("values"), "KeyError"),
    "the last launch is missing": (TWICE, without(*EVENTS, 2), "y is not written once"),
    "the first launch is missing": (TWICE, without(*EVENTS, 0), ""),
    "the launches are exchanged": (TWICE, at(*EVENTS, to=lambda events: events[::-1]), ""),
    "a launch twice": (TWICE, at(*EVENTS, to=lambda events: [*events, events[0]]), "a place is written"),
    "an input is filled with zeros": (
        TWICE,
        lambda found: found["forms"][0]["call"]["events"].append({"zeros": found["forms"][0]["call"]["inputs"]["x"]}),
        "a place is written",
    ),
    "a kernel without its wait": (
        TWICE,
        ttir("griddepcontrol.wait;", "griddepcontrol.launch_dependents;"),
        "a place is",
    ),
    "the first launch does not wait, and reads": (TWICE, at(*EVENTS, 0, "early", to=True), "a place is read"),
    "another grid": (TURNS, at(*EVENTS, 1, "grid", 0, to=3), "dweight is not written once"),
    "a larger grid": (TURNS, at(*EVENTS, 0, "grid", 1, to=2), "a place is"),
    "another number of programs": (TURNS, at(*EVENTS, 1, "arguments", 2, "plus", to=1), ""),
    "fewer lines than programs": (
        TURNS,
        lambda found: [
            at(*EVENTS, launch, "arguments", number, "bytes", "times G", to=400)(found)
            for launch, number in ((0, 5), (1, 0))
        ],
        "out of bounds",
    ),
    "fewer rows than there are": (TURNS, at(*EVENTS, 0, "arguments", 6, "plus", to=-1), ""),
    "more rows than there are": (FORWARD, at(*EVENTS, 0, "arguments", 6, "plus", to=1), ""),
    "more rows a program": (FORWARD, at("forms", 0, "rows", to=16), "written once"),
    "no programs": (FORWARD, at("forms", 0, "each", to=0), ""),
    "an argument too few": (FORWARD, at(*EVENTS, 0, "arguments", to=lambda given: given[:-1]), "zip"),
    "another place in a buffer": (FORWARD, at(*EVENTS, 0, "arguments", 0, "offset", to=1), ""),
    "an input has another shape": (FORWARD, at(*CALL, "inputs", "weight", "shape", to=[99]), "cannot reshape"),
    "an output has another type": (FORWARD, at(*CALL, "outputs", "rstd", "dtype", to="float16"), "written once"),
    "mean and rstd are exchanged": (FORWARD, swapped("mean", "rstd"), "written once"),
    "weight and bias are exchanged": (FORWARD, swapped("weight", "bias"), ""),
    "the weight has another buffer": (FORWARD, at(*CALL, "inputs", "weight", "buffer", to=2), "a place is written"),
    "an input that the operator has not": (
        FORWARD,
        lambda found: found["forms"][0]["call"]["inputs"].update(rstd=found["forms"][0]["call"]["outputs"]["rstd"]),
        "KeyError",
    ),
    "a contract without the rounded sum": (SUM, at("contract", to="strict,variance=two_pass"), ""),
    "a residual that is subtracted": (SUM, ttir("arith.addf %x", "arith.subf %x"), ""),
    "an output that is rounded twice": (
        SUM,
        ttir("arith.truncf", "arith.extf %x : tensor<256xf16> to tensor<256xf32>\n    %twice = arith.truncf"),
        "",
    ),
    "a turn of a loop too few": (TURNS, ttir("scf.for %tile = %3 to %6", "scf.for %tile = %5 to %6"), ""),
    "a step of a loop too many": (TURNS, ttir("to %6 step %5", "to %6 step %c2_i64"), ""),
    "a step of 1, which two programs may not have": (
        TURNS,
        ttir(
            "%dw_10 = scf.for %tile = %3 to %6 step %5",
            "%one = arith.constant 1 : i64\n    %dw_10 = scf.for %tile = %3 to %6 step %one",
        ),
        "a place is written",
    ),
    "rstd in 16 bits, in a buffer of float32": (
        TWICE,
        lambda found: [
            ttir(
                "%rstd_19 = math.rsqrt %rstd_18 : tensor<2xf32>",
                "%r = math.rsqrt %rstd_18 : tensor<2xf32>\n    %h = arith.truncf %r : tensor<2xf32> to tensor<2xf16>\n"
                "    %rstd_19 = arith.extf %h : tensor<2xf16> to tensor<2xf32>",
            )(found),
            found["values"].update({f"_roots %{name}": {"depth": {"RSTD": 0}} for name in "rh"}),
            found["outputs"].pop("y"),
        ],
        "an element of rstd is not written once, as RSTD of float32",
    ),
    "the sum of the last turn alone": (TURNS, ttir("scf.yield %dw_51", "scf.yield %dw_50"), "dweight is not the op"),
    "lines from the second on": (TURNS, ttir("scf.for %start = %c0_i32", "scf.for %start = %c4_i32"), ""),
    "a sum of lines that begins with 1": (
        TURNS,
        ttir(
            "%cst = arith.constant dense<0.000000e+00> : tensor<4x64xf32>",
            "%cst = arith.constant dense<1.0> : tensor<4x64xf32>",
        ),
        "",
    ),
    "a largest of the lines": (
        TURNS,
        ttir("%12 = arith.addf %arg4, %arg5", "%12 = arith.maximumf %arg4, %arg5"),
        "is no sum",
    ),
    "a line twice, not two lines": (
        TURNS,
        ttir("%12 = arith.addf %arg4, %arg5", "%12 = arith.addf %arg4, %arg4"),
        "is no sum",
    ),
    "the sum along another axis": (
        TURNS,
        ttir('"tt.reduce"(%total) <{axis = 0', '"tt.reduce"(%total) <{axis = 1'),
        "another shape than its type",
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_it_is_refused_in_one_line(name):
    right, change, why = FALSE[name]
    with pytest.raises(Rejected) as caught:
        check(altered(right, change))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", ["MEAN", "VAR", "C1", "C2", "ΣDY", "ΣDY·X"])
def test_a_depth_beyond_the_contract_is_refused(label):
    """Of 100 columns, or rows: log₂ 100 + 100/1024/3 + 6 roundings a term, 12.7; and 3 rows have no more than 3."""
    for rows, depth in ((100, 12), (3, 13)) if label.startswith("ΣDY") else ((3, 12),):
        call = call_of(FORWARD, m=rows)
        call.depths = {label: depth}
        call.replay()
    call = call_of(FORWARD, m=100)
    call.depths = {label: 13}
    with pytest.raises(Rejected, match=f"depth 13 of {label} is more than the contract's"):
        call.replay()
