"""The state of a process: all of its parts can be read, and put back."""

import decimal

from verify_norm.running import state


def test_a_state_that_is_put_back_is_as_it_was():
    for name, (read, restore) in state.STATE.items():
        before = read()
        restore(before)
        assert read() == before, name


def test_modes_are_put_back_before_what_they_change():
    assert list(state.STATE)[: len(state.MODES)] == list(state.OF_JUDGE)[: len(state.MODES)] == list(state.MODES)
    assert state.OF_JUDGE.items() <= state.STATE.items()


def test_what_a_context_of_decimal_numbers_says_makes_it():
    read, restore = state.STATE["decimal.getcontext()"]
    with decimal.localcontext(decimal.Context(7, decimal.ROUND_UP, -5, 50, 0, 1)):
        before = read()
    with decimal.localcontext():
        restore(before)
        assert read() == before
