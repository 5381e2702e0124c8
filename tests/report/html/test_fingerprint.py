"""The part of a page on a fingerprint: types with the same statement together, each order of a sum once."""

from verify_norm.auditing.fingerprint.statement import Fingerprint, Statement, undecided
from verify_norm.auditing.model import Audit
from verify_norm.report.html.fingerprint import fingerprint

PAIRS, ROW = ((0, 1), (2, 3)), (((0, 1), 2), 3)


def part(*statements):
    return fingerprint(Audit(None, fingerprint=Fingerprint("k", "layernorm_fwd", "cpu", statements, 7)))


def test_without_a_statement_there_is_no_part():
    assert fingerprint(Audit(None)) is None
    assert part() is None


def test_types_with_the_same_evidence_are_one_line_and_undecided_ones_come_last():
    same = [Statement("divisor", "N", "shown", 0.9, dtype) for dtype in ("float32", "bfloat16")]
    other = Statement("divisor", "N", "shown by y", 0.9, "float16")
    found = part(undecided("fma", "no idea"), *same, other)
    assert [(s.name, types) for s, types in found["statements"]] == [
        ("divisor", "float32, bfloat16"),
        ("divisor", "float16"),
        ("fma", "float32"),
    ]
    assert (found["runs"], found["device"]) == (7, "cpu")


def test_an_order_is_drawn_once_for_all_sums_that_have_it():
    found = part(
        Statement("dbias order", "pairwise", "e", 0.9, tree=PAIRS),
        Statement("dweight order", "pairwise", "e", 0.9, tree=PAIRS),
        Statement("row order", "sequential", "e", 0.9, tree=ROW),
        Statement("divisor", "N", "e", 0.9),
    )
    assert [one["title"] for one in found["orders"]] == ["dbias order and dweight order", "row order"]
    assert [one["written"] for one in found["orders"]] == [str(PAIRS), str(ROW)]
    assert [leaf.extent.first for leaf in found["orders"][0]["drawing"].leaves] == [0, 1, 2, 3]


def test_a_tree_too_long_or_too_deep_to_write_out_is_drawn_alone():
    deep = 0
    for index in range(1, 4096):
        deep = (deep, index)
    (one,) = part(Statement("long row sum", "sequential", "e", 0.9, tree=deep))["orders"]
    assert one["written"] == ""
