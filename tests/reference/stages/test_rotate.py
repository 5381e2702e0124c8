"""A rotation: it keeps the norm, turns by the angle, leaves the tail, and turns back in the backward."""

import doctest

import numpy as np
import pytest

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.stages import rotate
from verify_norm.reference.stages.rotate import Rotate
from verify_norm.reference.stages.stage import Approximate

EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
STYLES = ("neox", "interleaved")


def table(tokens, half, seed=0):
    angle = np.random.default_rng(seed).normal(size=(tokens, half)) * 3
    return {"cos": np.cos(angle), "sin": np.sin(angle)}, angle


@pytest.mark.parametrize("style", STYLES)
def test_the_norm_is_kept_the_angle_right_and_the_tail_untouched(style):
    z = np.random.default_rng(1).normal(size=(6, 11))
    given, angle = table(3, 4)
    y = Rotate(style).value(z, given)
    assert np.allclose(np.square(y).sum(1), np.square(z).sum(1), rtol=1e-14)
    assert np.array_equal(y[:, 8:], z[:, 8:])
    one, two = (np.arange(4), np.arange(4) + 4) if style == "neox" else (np.arange(0, 8, 2), np.arange(1, 8, 2))
    turned = np.angle((y[:, one] + 1j * y[:, two]) / (z[:, one] + 1j * z[:, two]))
    assert np.allclose(np.exp(1j * turned), np.exp(1j * angle.repeat(2, 0)), atol=1e-12)  # two heads of each token
    assert np.allclose(Rotate(style).pull(y, z, given)[0], z, atol=1e-14)


@pytest.mark.parametrize("style", STYLES)
def test_an_error_of_one_element_reaches_its_pair_alone(style):
    z, given = np.ones((1, 7)), table(1, 2)[0]
    dz = np.zeros((1, 7))
    dz[0, 0] = 1.0
    delta = Rotate(style).moved(z, dz, dz, given)
    partner = 2 if style == "neox" else 1
    assert delta[0, 0] == abs(given["cos"][0, 0])
    assert delta[0, partner] == abs(given["sin"][0, 0])
    assert np.count_nonzero(delta) == 2
    z = Approximate(z, dz, np.abs(z))
    assert not Rotate(style).own_error(z, given, EXACT).any()
    lost = Rotate(style).pull_error(z.value, dz, z, given, EXACT).lost
    assert np.count_nonzero(lost) == 2
    assert np.array_equal(Rotate(style).pull_error(z.value, 0.0, z, given, EXACT).lost, np.zeros((1, 7)))


def test_no_column_turns_nothing():
    z, none = np.ones((2, 1)), {"cos": np.zeros((2, 0)), "sin": np.zeros((2, 0))}
    assert Rotate().value(z, none) is not z
    assert np.array_equal(Rotate().value(z, none), z)
    empty = {"cos": np.zeros((0, 2)), "sin": np.zeros((0, 2))}
    assert Rotate().value(np.zeros((0, 5)), empty).shape == (0, 5)


@pytest.mark.parametrize(
    ("cos", "sin", "said"),
    [
        ((2, 3), (2, 3), "at most 2 columns"),
        ((2, 2), (2, 1), "expected one shape"),
        ((4, 2), (4, 2), "expected rows that divide 6 rows"),
    ],
)
def test_tables_that_do_not_fit(cos, sin, said):
    with pytest.raises(ValueError, match=said):
        Rotate().value(np.ones((6, 5)), {"cos": np.ones(cos), "sin": np.ones(sin)})


def test_doctests():
    assert doctest.testmod(rotate).failed == 0


COARSE = Arithmetic(u=2.0**-10, tiny=2.0**-6, huge=1e30)  # its roundings and underflows are seen
HALF = {"cos": np.array([[0.5]]), "sin": np.array([[-0.75]])}  # of two elements; the third does not turn


def test_the_error_of_a_rotation_is_four_roundings_of_both_terms_and_four_underflows():
    z = Approximate(np.array([[1.0, -2.0, 5.0]]), np.array([[0.5, 0.25, 0.125]]), np.array([[1.0, 2.0, 5.0]]))
    terms = [0.5 * 1.5 + 0.75 * 2.25, 0.5 * 2.25 + 0.75 * 1.5]
    expected = [COARSE.gamma(4) * term + 4 * COARSE.tiny * (1 + 0.5) for term in terms]
    assert Rotate().own_error(z, HALF, COARSE)[0].tolist() == pytest.approx([*expected, 0.0])
    assert Rotate().size(z, HALF).tolist() == [[0.5 * 1 + 0.75 * 2, 0.5 * 2 + 0.75 * 1, 5.0]]


def test_the_error_of_turning_back_is_two_roundings_of_both_terms_and_three_underflows():
    dy, lost = np.array([[1.0, -2.0, 5.0]]), np.array([[0.5, 0.25, 0.125]])
    z = Approximate(dy, np.zeros(()), np.abs(dy))
    turned = [0.5 * 0.5 + 0.75 * 0.25, 0.5 * 0.25 + 0.75 * 0.5]
    terms = [0.5 * 1.5 + 0.75 * 2.25, 0.5 * 2.25 + 0.75 * 1.5]
    expected = [off + COARSE.gamma(2) * term + 3 * COARSE.tiny for off, term in zip(turned, terms, strict=True)]
    pulled = Rotate().pull_error(dy, lost, z, HALF, COARSE)
    assert pulled.lost[0].tolist() == pytest.approx([*expected, 0.125])
    assert pulled.gradients == {}


def test_a_table_may_turn_all_elements_or_none():
    z = np.array([[1.0, 2.0, 3.0, 4.0]])
    given = {"cos": np.zeros((1, 2)), "sin": np.ones((1, 2))}
    assert Rotate().value(z, given).tolist() == [[-3.0, -4.0, 1.0, 2.0]]
    for none in (np.zeros((1, 0)), np.zeros(())):
        turn = Rotate().turn(z, {"cos": none, "sin": none})
        assert turn(z).tolist() == z.tolist()
        assert turn.c.shape == turn.s.shape == (1, 4)
        assert not turn.turns.any()


def test_a_table_that_does_not_fit_is_named_with_its_shapes():
    with pytest.raises(ValueError, match=r"at most 2 columns.*\(1, 3\).*\(1, 2\)"):
        Rotate().turn(np.ones((1, 4)), {"cos": np.ones((1, 3)), "sin": np.ones((1, 2))})
