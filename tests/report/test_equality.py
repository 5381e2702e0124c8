"""A comparison of two kernels as text and as JSON."""

import json
from dataclasses import replace

import jsonschema
import pytest
from rich.console import Console

from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip
from verify_norm.equality.model import (
    Arithmetic,
    Contrast,
    Declared,
    Difference,
    Element,
    Equality,
    Exact,
    Gap,
    Onset,
    Subject,
    Tally,
    Unstable,
)
from verify_norm.report import documents, schema
from verify_norm.report.equality import show

SPEC = CaseSpec((2, 1025), "bfloat16")
GAP = Gap("y", "y[1, 0] is 1 from A, 2 from B", Element((1, 0), 1.0, 2.0, 128.0, 1.5, 64.0, 64.0), 3, (2, 1025), 128.0)
SAME = Equality(
    a=Subject("k:llama:f", "k:f", "python", Contract()),
    b=Subject("b:f", "b:f", "python", Contract(), bind="x=h"),
    op="rmsnorm_fwd",
    settings=Settings(),
    environment={"torch": "2"},
    cases=9,
    seconds=1.0,
    tallies=(Tally("y", "float32", 4, 0), Tally("y", "bfloat16", 5, 0)),
    differences=(),
    unstable=(),
    onsets=(),
    arithmetic=None,
    skipped=(Skip("cases", "B does not take it: too long", 2),),
    coverage=Coverage(11, 11, 11, 2, 9, {"y": 9}),
)
HOW = Arithmetic(
    contrasts=(Contrast("xhat", "xhat", "bfloat16", "rounded", "not rounded", ("seen so", "seen otherwise")),),
    declared=(Declared("lanes", "128", "32"),),
    exact=Exact(SPEC, ()),
)
DIFFERENT = replace(
    SAME,
    tallies=(Tally("y", "float32", 4, 2, zeros=2), Tally("y", "bfloat16", 5, 3)),
    differences=(Difference(GAP, SPEC, 3, ("rstd",)), Difference(Gap(None, "B fails where A returns: E"), SPEC, 1)),
    onsets=(
        Onset("y", "bfloat16", "N", 1025, 1024),
        Onset("y", "bfloat16", "M", 1),
        Onset("y", "float32", "N", 9, 8, False),
    ),
    arithmetic=HOW,
)


def text(found):
    console = Console(width=200, highlight=False, emoji=False)
    with console.capture() as captured:
        show(found, console)
    return " ".join(captured.get().split())


def test_the_same_is_said_by_type():
    said = text(SAME)
    assert (
        "float32: identical in 4 cases bfloat16: identical in 5 cases SAME k:llama:f and b:f: identical in 9 cases"
        in said
    )
    assert "not compared: cases (2 cases): B does not take it: too long" in said


def test_a_difference_has_its_values_its_field_and_its_line():
    said = text(DIFFERENT)
    for words in (
        "y[1, 0] is 1 from A, 2 from B",
        "case 2×1025 bfloat16",
        "A 1.0 64.00 ULP from the truth",
        "truth 1.5",
        "differ 3 of 2,050 elements, by at most 128 ULP",
        "identical rstd",
        "DIFFER B fails where A returns: E",
        "contract xhat: xhat for bfloat16 is rounded in A, not rounded in B",
        "declared lanes=128 in A, 32 in B",
        "float32: y differs in 2 of 4 cases, by signs of 0 alone, too rarely to say from which size on",
        "bfloat16: y differs from N = 1025 on (identical up to 1024), in 3 of 5 cases",
        "verify-norm same k:llama:f b:f --bind-b x=h --replay '{",
    ):
        assert words in said
    assert "sums " not in said, "a field is found"


def test_without_a_contrast_exact_sums_speak():
    said = text(replace(DIFFERENT, arithmetic=replace(HOW, contrasts=(), alike=(("divisor", "N"),))))
    assert "the fingerprints show no certain difference; both have divisor: N" in said
    assert "sums nothing differs with x = ±1" in said
    exact = Exact(SPEC, ("y",))
    said = text(replace(DIFFERENT, arithmetic=replace(HOW, contrasts=(), exact=exact)))
    assert "y still differs with x = ±1" in said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            replace(SAME, coverage=replace(SAME.coverage, corners_done=3, ended="time")),
            "INCOMPLETE k:llama:f and b:f: no",
        ),
        (replace(SAME, coverage=replace(SAME.coverage, compared=0)), "nothing compared: k:llama:f and b:f: too little"),
        (replace(SAME, unstable=(Unstable("A", GAP, SPEC),)), "UNSTABLE A itself differs from run to run"),
    ],
)
def test_every_verdict_has_its_word(found, said):
    assert said in text(found)


def test_the_json_is_what_the_schema_says():
    for found in (SAME, DIFFERENT, replace(SAME, unstable=(Unstable("A", GAP, SPEC),))):
        document = json.loads(documents.dump_equality(found))
        assert document["identical"] is found.ok
        assert not list(jsonschema.Draft202012Validator(schema.schema("same")).iter_errors(document))
    assert len(json.loads(documents.dump_equality(SAME, DIFFERENT))) == 2
