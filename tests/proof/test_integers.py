"""Numbers that are affine in the program and the rows beyond: each operation against all small values of both."""

from itertools import product

import numpy as np
import pytest

from verify_norm.proof.integers import Maybe, Undecided, add, compare, divide, logical, most_rows, mul, num, sub

SOME = (0, 1, 2, 3, 100)  # of p, and of q
NUMBERS = [num(c, p, q) for c, p, q in product((-3, 0, 1, 4), (-2, 0, 2), (-4, 0, 4))]
PLAIN = [num(c) for c in (-3, -1, 0, 1, 4)]
TESTS = {"slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal} | {
    "eq": np.equal,
    "ne": np.not_equal,
}


def values(a):
    return np.array([int(a.c + p * a.p + q * a.q) for p in SOME for q in SOME])


def said(found):
    """True, False, or None where it depends on the symbols."""
    return None if isinstance(found, Maybe) else bool(found)


@pytest.mark.parametrize("predicate", TESTS)
def test_a_comparison_holds_for_all_or_none(predicate):
    for a, b in product(NUMBERS, PLAIN + NUMBERS[:4]):
        holds = TESTS[predicate](values(a), values(b))
        found = said(compare(predicate, a, b))
        assert found is None or (holds == found).all(), (a, b)
        if predicate not in ("eq", "ne") and (holds.all() or not holds.any()):
            assert found == holds.all(), (a, b)


@pytest.mark.parametrize("predicate", ["ult", "ule", "ugt", "uge"])
def test_an_unsigned_comparison_is_of_what_is_never_negative(predicate):
    for a, b in product(NUMBERS, PLAIN):
        negative = (values(a) < 0).any() or (values(b) < 0).any()
        if negative:
            assert said(compare(predicate, a, b)) is None
        else:
            assert said(compare(predicate, a, b)) == said(compare(f"s{predicate[1:]}", a, b))


@pytest.mark.parametrize("remainder", [False, True])
def test_a_division_is_exact_or_undecided(remainder):
    for a, b in product(NUMBERS, PLAIN):
        try:
            found = values(divide(a, b, remainder=remainder))
        except Undecided:
            assert not (a.plain and b.c)  # of plain numbers it is known
            continue
        towards_zero = np.trunc(values(a) / int(b.c)).astype(int)
        assert (found == (values(a) - towards_zero * int(b.c) if remainder else towards_zero)).all(), (a, b)
    assert values(divide(num(4, 2, 4), num(2), remainder=False)).tolist() == (values(num(4, 2, 4)) // 2).tolist()
    for a, b in ((num(4, 1, 0), num(2)), (num(4, 0, 1), num(2)), (num(4), num(0)), (num(4), num(1, 1))):
        with pytest.raises(Undecided):
            divide(a, b, remainder=remainder)
    with pytest.raises(Undecided, match="unsigned"):
        divide(num(-4), num(2), remainder=remainder, signed=False)


def test_sums_and_products():
    for a, b in product(NUMBERS, PLAIN):
        assert (values(add(a, b)) == values(a) + values(b)).all()
        assert (values(sub(a, b)) == values(a) - values(b)).all()
        assert (values(mul(a, b)) == values(mul(b, a))).all()
        assert (values(mul(a, b)) == values(a) * values(b)).all()
    with pytest.raises(Undecided):
        mul(num(0, 1), num(0, 0, 1))


@pytest.mark.parametrize(("name", "of"), [("andi", np.logical_and), ("ori", np.logical_or), ("xori", np.logical_xor)])
def test_conditions_are_known_where_what_is_open_does_not_matter(name, of):
    ways = {True: (True,), False: (False,), None: (True, False)}
    for x, y in product(ways, ways):
        one, other = (
            Maybe("why", np.array(v is True), np.array(v is None)) if v is None else np.array(v) for v in (x, y)
        )
        outcomes = {bool(of(a, b)) for a in ways[x] for b in ways[y]}
        assert said(logical(name, one, other)) == (outcomes.pop() if len(outcomes) == 1 else None), (name, x, y)
    with pytest.raises(Undecided):
        logical("shli", np.array(True), np.array(True))


@pytest.mark.parametrize(
    ("number", "element", "rows", "most"),
    [
        (num(0, 1024), "i32", 8, (2**31 - 1) * 8 / 1024 + 1),  # p programs of 8 rows
        (num(0, 0, 3), "i32", 8, (2**31 - 1) / 3 + 1),
        (num(47, 1024, 3), "i32", 8, (2**31 - 1 - 47) / 128 + 1),
        (num(47, 8, 0, 24, -32), "i32", 8, (2**31 - 1 - 47) / (1 + 4) + 1),
        (num(2**31 - 1), "i32", 8, np.inf),
        (num(-(2**31)), "i32", 8, np.inf),
        (num(100, 1), "i8", 1, 28),
        (num([0, 1], 1), "i64", 1, 2**63 - 1),
    ],
)
def test_for_which_numbers_of_rows_a_number_fits_into_its_type(number, element, rows, most):
    assert most_rows(number, element, rows) == pytest.approx(most)


@pytest.mark.parametrize(("value", "element"), [(2**31, "i32"), (-(2**31) - 1, "i32"), (128, "i8")])
def test_a_number_that_fits_for_none(value, element):
    with pytest.raises(Undecided, match=f"does not fit into {element}"):
        most_rows(num(value), element, 1)
