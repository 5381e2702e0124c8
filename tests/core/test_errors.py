"""A user's mistake, and the first line of any other error."""

import doctest
import json

import pytest

from verify_norm.core import errors
from verify_norm.core.errors import UsageError, first_line, one_line, one_of, visible


def test_doctests():
    assert doctest.testmod(errors).failed == 0


def test_a_known_name_is_returned_and_another_gets_a_guess():
    assert one_of("check", "accuracy", ("accuracy", "memory")) == "accuracy"
    with pytest.raises(UsageError, match=r"unknown check 'acuracy' \(did you mean accuracy\?\); there are: accuracy"):
        one_of("check", "acuracy", ("accuracy", "memory"))


def test_a_guess_that_is_less_like_the_name_by_a_tenth_is_left_out():
    with pytest.raises(UsageError, match=r"\(did you mean abczw\?\)"):  # 0.6 of it are alike, of abq a half
        one_of("check", "abcxy", ("abczw", "abq"))


def test_the_beginning_of_a_name_is_guessed_too():
    with pytest.raises(UsageError, match=r"^unknown check 'acc' \(did you mean accuracy\?\); there are: accuracy$"):
        one_of("check", "acc", ("accuracy",))


def test_the_first_line_of_a_message():
    assert first_line(ValueError("\n expected 2\ngot 3")) == "expected 2"
    assert one_line(ValueError("expected 2\ngot 3")) == "ValueError: expected 2"


def test_triton_says_why_behind_the_code_it_quotes():
    quoted = "at 3:4:\ndef kernel(P):\n    a = 1\n    inner(P)\n    ^"
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(quoted) from ValueError(
            "at 2:4:\ndef inner(P):\n    tl.store(P, v)\n      ^\nv is not defined\nhint"
        )
    assert one_line(caught.value) == "RuntimeError: v is not defined in `tl.store(P, v)`"
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(quoted) from KeyError("v")
    assert one_line(caught.value) == "RuntimeError: KeyError: 'v' in `inner(P)`"
    assert one_line(RuntimeError(quoted)) == "RuntimeError: (no reason given) in `inner(P)`"
    assert first_line(RuntimeError("at 3:4:")) == "at 3:4:"


def test_without_a_message_the_code_that_raised():
    with pytest.raises(AssertionError) as caught:
        raise AssertionError
    assert one_line(caught.value) == "AssertionError: raise AssertionError"
    assert first_line(RuntimeError()) == "(no message)"


def test_a_long_list_is_named_by_its_command_and_three_guesses():
    names = [f"layernorm_{n}" for n in range(100)]
    with pytest.raises(UsageError) as caught:
        one_of("kernel", "layernorm", names, see="verify-norm list")
    said = str(caught.value)
    assert said.endswith("); verify-norm list shows all 100")
    assert said.count("layernorm_") == 3
    with pytest.raises(UsageError, match=r"^unknown kernel 'qqq'; verify-norm list shows all 100$"):
        one_of("kernel", "qqq", names, see="verify-norm list")
    with pytest.raises(UsageError) as caught:
        one_of("kernel", "x" * 4000, names, see="verify-norm list")
    assert len(str(caught.value)) < 120


def test_text_of_others_is_one_printable_line_and_stays_json():
    text = json.dumps({"kernel": "k\u202e\x9f\U000e0001:llama", "ü": "–"}, ensure_ascii=False)
    assert visible(text).isprintable()
    assert json.loads(visible(text)) == json.loads(text)
    assert visible("x̂ ± 2 × ü") == "x̂ ± 2 × ü"


def test_names_are_listed_and_cut_at_the_most_characters():
    assert errors.alternatives(["a", "b", "c"]) == "a, b or c"
    assert errors.alternatives(["a"]) == "a"
    assert errors.quoted("a" * 58) == f"'{'a' * 58}'", "60 characters are not cut"
    assert errors.quoted("a" * 59) == f"'{'a' * 58}…"


def test_an_error_whose_text_fails_is_named_by_its_innermost_line():
    class BrokenError(Exception):
        def __str__(self):
            raise ValueError

    def deep():
        raise BrokenError

    with pytest.raises(BrokenError) as caught:
        deep()
    assert first_line(caught.value) == "raise BrokenError"


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0.5, 0.5), (3, 0.5), (10**9, 0), (0.0, 0.0)])
def test_a_number_of_the_least_or_more_is_right(value, least):
    errors.number("seconds", value, least)


@pytest.mark.parametrize(
    ("value", "least", "said"),
    [
        (0, 1, "a whole number, 1 or more, got 0"),
        (1.5, 1, "a whole number, 1 or more, got 1.5"),
        ("2", 1, "a whole number, 1 or more, got '2'"),
        (0.4, 0.5, "a number, 0.5 or more, got 0.4"),
        (float("inf"), 0.0, "a number, 0 or more, got inf"),
        (float("nan"), 0.0, "a number, 0 or more, got nan"),
        (None, 0.0, "a number, 0 or more, got None"),
    ],
)
def test_a_number_that_is_none_or_too_small_is_refused_in_words(value, least, said):
    with pytest.raises(UsageError) as caught:
        errors.number("seconds", value, least)
    assert str(caught.value) == f"seconds: expected {said}"


def test_an_argument_that_is_no_text_is_refused_in_words():
    errors.texts(kernel="k", op="")
    with pytest.raises(UsageError, match=r"^op: expected a text, got 3$"):
        errors.texts(kernel="k", op=3)


def test_the_error_that_a_compiler_met_stands_for_its_own():
    text = "Dynamo failed to run FX node: got ValueError('eps must be positive\\nat all')"
    compiled = type("TorchRuntimeError", (RuntimeError,), {})
    assert one_line(compiled(text)) == "TorchRuntimeError: ValueError: eps must be positive"
    assert one_line(compiled("out of memory")) == "TorchRuntimeError: out of memory"
    assert one_line(RuntimeError(text)) == f"RuntimeError: {text}", "it only quotes one"
