"""Whose argument is whose: binds what an operator offers to the arguments of a callable, by name.

Other people's names are known from one table, ALIASES; a user's `--bind` settles the rest, in the syntax of a call:

    x=hidden_states           the operator's x is their hidden_states (a name on the right)
    eps=variance_epsilon      … and its eps their variance_epsilon
    casting_mode="llama"      their argument gets this constant (a literal on the right)
    eps=1e-6, bias=None       a constant of the operator's own: all cases have it, and where they take it they get it
    eps=eps                   a name that no argument has goes to their **kwargs, where they have it
    … -> y, rstd, _, mean     what they return, in this order; _ is looked at by nobody
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verify_norm.ranges import wrong
from verify_norm.spec import Op


class UsageError(Exception):
    """What the user asked for cannot be done; the message is one line: what is wrong, and what would be right."""


FEATURES = "features"  # how many elements weight has
ALIASES: dict[str, tuple[str, ...]] = {  # ours: theirs, upper and lower case alike where no line says otherwise
    "x": ("input", "inputs", "inp", "hidden_states", "hidden", "h", "src", "x_in"),
    "residual": ("r", "res", "resid", "skip", "residual_in"),
    "weight": ("w", "weights", "gamma", "g", "scale", "gain"),
    "bias": ("b", "beta", "shift", "use_bias", "with_bias"),
    "dy": ("grad_output", "grad_outputs", "grad_out", "grad_y", "grad", "do", "dout", "gy"),
    "dresidual_out": ("dresidual", "ds", "ds_out", "dres", "grad_residual_out"),
    "residual_out": ("s", "summed", "x_plus_residual", "x", *("input", "hidden_states")),  # of a backward: x is the sum
    "mean": ("mu", "means", "save_mean", "saved_mean"),
    "rstd": ("inv_std", "invstd", "inv_var", "invvar", "rrms", "inv_rms", "save_rstd", "saved_rstd", "save_invstd"),
    "running_mean": ("moving_mean",),
    "running_var": ("moving_var", "running_variance"),
    "scale": ("output_scale", "out_scale", "y_scale", "scale_y", "quant_scale"),
    "eps": ("epsilon", "variance_epsilon", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"),
    "num_groups": ("G", "groups", "n_groups", "ngroups", "num_group"),
    "weight_offset": ("offset", "unit_offset"),
    "training": ("is_training", "train"),
    "momentum": (),
    "normalized_shape": ("norm_shape",),
    FEATURES: (
        "hidden_size", "hidden_dim", "hidden", "dim", "d", "d_model", "n_embd", "embed_dim", "ndim", "size", "n", "c",
        "n_cols", "ncols", "num_features", "num_channels", "n_channels", "channels",
    ),
    "affine": ("elementwise_affine", "use_affine"),
    "running": ("track_running_stats",),
    "y": ("out", "output", "result"),
    "amax": ("abs_max", "absmax"),
    "dx": ("grad_input", "grad_x", "dinput", "out", "output"),
    "dweight": ("dw", "dgamma", "grad_weight", "grad_gamma"),
    "dbias": ("db", "dbeta", "grad_bias", "grad_beta"),
}  # fmt: skip
# what a constant can hold for all cases
NUMBERS = ("eps", "num_groups", "weight_offset", "training", "momentum", "scale")


def meant(name: str, offered: Iterable[str]) -> str | None:
    """Which of the offered names another's name stands for; None where it stands for none.

    >>> meant("dY", ("dy", "x")), meant("G", ("weight", "num_groups")), meant("g", ("weight", "num_groups"))
    ('dy', 'num_groups', 'weight')
    >>> meant("gate", ("x", "weight")) is None
    True
    """
    offered = tuple(offered)
    for spelling in dict.fromkeys((name, name.lower())):
        if spelling in offered:
            return spelling
        for ours in offered:
            if spelling in ALIASES.get(ours, ()):
                return ours
    return None


@dataclass(frozen=True, slots=True)
class Said:
    """What `--bind` says: names (ours: theirs), constants (theirs, or ours: the value), and what is returned."""

    names: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    returns: tuple[str, ...] = ()


def parse(text: str) -> Said:
    """Read the text of `--bind`; raises UsageError.

    >>> said = parse('x=inp, mode="llama", in_place=False -> y, _, rstd')
    >>> said.names, said.constants, said.returns
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
        raise UsageError(
            f'--bind {text!r} is not to be understood; it is to be like x=hidden_states,eps=1e-6,mode="llama" -> y,rstd'
        ) from error
    return Said(names, constants, returns)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a callable: what it is given, or a constant where `source` is None."""

    name: str
    source: str | None
    value: Any = None
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """How a callable is called: its arguments in order.

    `fixed` holds what of the operator all cases have to agree with, `every` what it takes by name beyond its arguments.
    `rest` is the name of its **kwargs, "" where it has none.
    """

    arguments: tuple[Argument, ...]
    fixed: Mapping[str, Any]
    returns: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    rest: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """What of the operator it takes."""
        return (*_taken(self.arguments), *self.every)

    @property
    def plain(self) -> bool:
        """Whether every argument is given by the operator's own name, and nothing else is."""
        own = all(a.source == a.name != FEATURES and not a.positional for a in self.arguments)
        return own and not self.returns

    def call(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Call the function with what is given, by the operator's names."""
        values = [(a, a.value if a.source is None else given[a.source]) for a in self.arguments]
        named = {a.name: value for a, value in values if not a.positional}
        return function(*(v for a, v in values if a.positional), **{name: given[name] for name in self.every}, **named)


def signature(function: Any, name: str) -> list[inspect.Parameter]:
    """The function's parameters; raises UsageError where Python does not know them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} has no signature to bind arguments by: {error}") from error


def bind(
    name: str, parameters: list[inspect.Parameter], op: Op, said: Said, offered: tuple[str, ...], *,
    outputs: tuple[str, ...] = (), positional: bool = False, elsewhere: Iterable[str] = (),
) -> Binding:  # fmt: skip
    """Bind `parameters` of the callable `name` to what is `offered`, and to `outputs` to write into.

    An argument that nothing offered fits keeps its default, and so does an output or a size that has one which is none.
    `positional`: all are given in order, as autograd.Function.apply takes them. `elsewhere` names what the other half
    of a callable takes: the constructor of a module, where this is its forward pass.

    Raises
    ------
    UsageError : an argument without a default that nothing fits, or a `said` that fits nothing, in one line.
    """
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes = {p.name for p in named}
    asks = (
        f"{op.name} offers {', '.join((*offered, *outputs))}; {name} asks for {', '.join(p.name for p in parameters)}"
    )
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD and not positional), "")
    for ours, theirs in said.names.items():
        if ours not in (*offered, *outputs) and ours not in elsewhere:
            raise UsageError(f"--bind {ours}={theirs}: there is no {ours}: {asks}")
        if theirs not in takes and theirs not in elsewhere and not rest:
            raise UsageError(f"--bind {ours}={theirs}: there is no argument {theirs}: {asks}")
    for key in said.constants:
        if key not in takes and meant(key, offered) is None and key not in elsewhere and not rest:
            raise UsageError(f"--bind {key}={said.constants[key]!r}: there is no argument {key}: {asks}")
        refused = wrong(meant(key, (*offered, *op.attrs)) or "", said.constants[key])
        if refused is not None:
            raise UsageError(f"--bind {key}={said.constants[key]!r:.60}: {refused}")
    if not named and any(p.kind is p.VAR_POSITIONAL for p in parameters) and not rest:
        return Binding(tuple(Argument(n, n, positional=True) for n in offered), {}, said.returns)
    theirs_to_ours = {theirs: ours for ours, theirs in said.names.items()}
    fixed = {
        ours: value for key, value in said.constants.items()
        if (ours := meant(key, offered) or "") in (NUMBERS if value is not None else ("weight", "bias"))
    }  # fmt: skip
    arguments: list[Argument] = []
    unknown = []
    for p in named:
        in_order = positional or p.kind is p.POSITIONAL_ONLY
        taken = {*theirs_to_ours.values(), *_taken(arguments)}
        source = theirs_to_ours.get(p.name) or _fitting(p, offered, outputs, taken)
        if p.name in said.constants and source not in fixed:
            arguments.append(Argument(p.name, None, said.constants[p.name], in_order))
        elif source is not None:
            arguments.append(Argument(p.name, source, None, in_order))
        elif p.default is p.empty:
            unknown.append(p.name)
        elif in_order:
            arguments.append(Argument(p.name, None, p.default, in_order))
    if unknown:
        example = f"--bind {offered[0]}={unknown[0]}, or {unknown[0]}=<a constant>"
        raise UsageError(
            f"{name} asks for {', '.join(unknown)}; {op.name} offers, by name: {', '.join(offered)} ({example})"
        )
    every: tuple[str, ...] = ()
    if rest:
        beyond = {theirs: ours for theirs, ours in theirs_to_ours.items() if ours in (*offered, *outputs)}
        arguments += [Argument(n, ours) for n, ours in beyond.items() if n not in takes and n not in elsewhere]
        constants = {k: v for k, v in said.constants.items() if meant(k, offered) not in fixed}
        arguments += [Argument(k, None, v) for k, v in constants.items() if k not in takes and k not in elsewhere]
        if all(a.source in (None, a.name) for a in arguments):  # it speaks the operator's language
            every = tuple(n for n in offered if n not in (*_taken(arguments), FEATURES))
    return Binding(tuple(arguments), fixed, said.returns, every, rest)


def _taken(arguments: Iterable[Argument]) -> list[str]:
    return [a.source for a in arguments if a.source is not None]


def _fitting(p: inspect.Parameter, offered: tuple[str, ...], outputs: tuple[str, ...], taken: set[str]) -> str | None:
    """What this parameter stands for, of what nobody has taken."""
    free = tuple(n for n in offered if n not in taken)
    source = meant(p.name, free)
    size = isinstance(p.default, int) and not isinstance(p.default, bool) and p.default > 0
    if source is not None and (source != FEATURES or p.default is p.empty or size):
        return source
    return meant(p.name, [n for n in outputs if n not in taken]) if p.default is p.empty else None
