"""The syntax of --bind."""

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.loading.bind_option import parse


@pytest.mark.parametrize("text", ["x", "x=", "x=f()", "x=a,,", "**{}", "x=a -> y z", "1=x", "x=a)+f("])
def test_what_is_not_the_syntax(text):
    with pytest.raises(UsageError, match="; expected something like x=hidden_states"):
        parse(text)
