"""A user's mistake, and the first line of any other error."""

import pytest

from verify_norm.core.errors import UsageError, first_line, one_line, one_of


def test_a_known_name_is_returned_and_another_gets_a_guess():
    assert one_of("check", "accuracy", ("accuracy", "memory")) == "accuracy"
    with pytest.raises(UsageError, match=r"unknown check 'acuracy' \(did you mean accuracy\?\); there are: accuracy"):
        one_of("check", "acuracy", ("accuracy", "memory"))


def test_the_first_line_of_a_message():
    assert first_line(ValueError("\n expected 2\ngot 3")) == "expected 2"
    assert one_line(ValueError("expected 2\ngot 3")) == "ValueError: expected 2"


def test_without_a_message_the_code_that_raised():
    with pytest.raises(AssertionError) as caught:
        raise AssertionError
    assert one_line(caught.value) == "AssertionError: raise AssertionError"
    assert first_line(RuntimeError()) == "(no message)"
