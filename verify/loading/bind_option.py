"""A user's `--bind`, in the syntax of a call.

It gives names to arguments and results, and values to arguments:

    x=hidden_states           the operator's x is the argument hidden_states (a name on the right)
    eps=variance_epsilon      … and its eps is variance_epsilon
    casting_mode="llama"      an argument gets a constant (a literal on the right)
    eps=1e-6, bias=None       a constant of the operator: all cases have it, and an argument for it gets it
    eps=eps                   a name that no argument has goes to **kwargs, if the callable has them
    … -> y, rstd, _, mean     the names of the returned values, in order; _ is ignored
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verify_norm.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class BindOption:
    """A parsed `--bind`: names (ours: theirs), constants (theirs, or ours: the value), names of returned values."""

    names: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    returns: tuple[str, ...] = ()


def parse(text: str) -> BindOption:
    """Return the parsed text of `--bind`; raises UsageError.

    >>> option = parse('x=inp, mode="llama", in_place=False -> y, _, rstd')
    >>> option.names, option.constants, option.returns
    ({'x': 'inp'}, {'mode': 'llama', 'in_place': False}, ('y', '_', 'rstd'))
    """
    pairs, arrow, returned = text.partition("->")
    returns = tuple(part.strip() for part in returned.split(",")) if arrow else ()
    names, constants = {}, {}
    try:
        call = ast.parse(f"f({pairs.strip()})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(name.isidentifier() for name in returns):
            raise SyntaxError
        for keyword in call.keywords:
            if keyword.arg is None:
                raise SyntaxError
            if isinstance(keyword.value, ast.Name):
                names[keyword.arg] = keyword.value.id
            else:
                constants[keyword.arg] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError) as error:
        example = 'x=hidden_states,eps=1e-6,mode="llama" -> y,rstd'
        raise UsageError(f"cannot parse --bind {text!r}; expected something like {example}") from error
    outputs = [name for name in returns if name != "_"]
    for given in ([keyword.arg or "" for keyword in call.keywords], outputs):
        if twice := next((name for name in given if given.count(name) > 1), ""):
            raise UsageError(f"--bind {text!r}: expected each name once, got {twice} twice")
    return BindOption(names, constants, returns)
