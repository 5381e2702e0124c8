"""Binds an operator's inputs and attributes to the arguments of a callable, by name.

`argument_names` knows the names that other people use. A user's `--bind` (`bind_option`) settles the rest.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.op import Op
from verify_norm.core.ranges import out_of_range
from verify_norm.loading.argument_names import FEATURES, FLAGS, meant
from verify_norm.loading.bind_option import BindOption
from verify_norm.loading.signatures import NUMBERS, form_of
from verify_norm.loading.targets import preset

ARGUMENTS = re.compile(r"\barguments?\b")  # what Python and extensions speak of where a call does not fit
COUNTED = re.compile(r"\bpositional arguments?\b|values to unpack")
UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
DERIVED = ("normalized_shape", "weight_offset")  # of what few functions take
ABSENT = ("bias", "residual", "scale_ub")  # of a library's norm, where the operator has none: they are None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A callable that may become a kernel of `op`: its name, the user's --bind, its contract, and its --only."""

    target: Any
    name: str
    op: Op
    option: BindOption = field(default_factory=BindOption)
    contract: Contract = field(default_factory=Contract)
    only: str = ""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a callable: the operator's name of its value, or a constant if `source` is None.

    `form` makes of the value what the argument's annotation asks for.
    """

    name: str
    source: str | None
    value: Any = None
    positional: bool = False
    form: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """How to call a callable: its arguments in order.

    `fixed` holds values of the operator that all cases must have, `every` what it takes by name beyond its arguments.
    `rest` is the name of its **kwargs, `stars` that of its *args, "" if it has none. Arguments `unset` stand for what
    the operator does not have; those `kept` have a value of their own, each with the words for it.
    """

    arguments: tuple[Argument, ...]
    fixed: Mapping[str, Any]
    returns: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    rest: str = ""
    stars: str = ""
    unset: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the operator's names that the callable takes."""
        return (*_taken(self.arguments), *self.every)

    @property
    def plain(self) -> bool:
        """Return whether all arguments have the operator's own names and nothing else is needed."""
        own = all(a.source == a.name != FEATURES and not (a.positional or a.form) for a in self.arguments)
        return own and not self.returns and not self.rest

    def call(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Call the function with the values `given` by the operator's names, and return its result."""
        values = [(a, a.value if a.source is None else _formed(a.form, given[a.source])) for a in self.arguments]
        named = {a.name: value for a, value in values if not a.positional}
        more = {name: given[name] for name in self.every}
        try:
            return function(*(v for a, v in values if a.positional), **more, **named)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            if hint := self._hint(error):
                raise type(error)(f"{error}; {hint}") from error
            raise

    def _hint(self, error: Exception) -> str:
        """Return how to name the arguments of a callable that takes *args or **kwargs; "" for any other error."""
        if self.stars and not self.rest and COUNTED.search(str(error)):
            its = f"its signature is (*{self.stars}), which gets {', '.join(self.sources)} in this order"
            return f"{its}: write a function around it that names what it takes"
        nameless = bool(self.rest and self.stars and not self.arguments)
        its = f"its signature is (*{self.stars}, **{self.rest})"
        if not isinstance(error, TypeError):
            by_name = nameless and not isinstance(error, ValueError)
            return f"{its}, which gets all by name: name its arguments, by a function around it" * by_name
        refused = UNEXPECTED.search(str(error))
        if nameless and ARGUMENTS.search(str(error)):
            own = [n for n in self.every if n not in DERIVED and (refused is None or n != refused[1])]
            return f"{its}: name its arguments, as --bind {','.join(f'{n}={n}' for n in own)}"
        if refused is None or refused[1] not in self.every:
            return ""
        taken = ", ".join(f"{name}={name}" for name in self.sources if name != refused[1])
        return f"its **{self.rest} gets all that the operator offers; name what it takes, as --bind '{taken}'"


def bind(
    candidate: Candidate,
    parameters: list[inspect.Parameter],
    offered: tuple[str, ...],
    *,
    outputs: tuple[str, ...] = (),
    positional: bool = False,
    elsewhere: Collection[str] = (),
) -> Binding:
    """Return how to call a callable of these `parameters` with what is `offered`, and `outputs` to write into.

    A parameter that fits nothing keeps its default; so does an output or a size with a default that is no size. The
    only one without a default that fits nothing is x, if nothing else is: a kernel needs an x. `positional` gives all
    arguments in order, as autograd.Function.apply takes them. `elsewhere` names what the other part of a module takes:
    its constructor, if this is its forward pass, or the reverse. *args and **kwargs get no weight_offset of LayerNorm,
    for which few functions have an argument.

    Raises UsageError: a parameter without a default fits nothing, or part of the --bind option does.
    """
    option = _with_preset(candidate, offered)
    more = tuple(n for n in offered if n != "weight_offset" or not candidate.op.centred or candidate.op.user_defined)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD and not positional), "")
    _validate(candidate, [p.name for p in named], offered, outputs, elsewhere, rest)
    stars = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    if stars and not named and not rest:
        return Binding(tuple(Argument(n, n, positional=True) for n in more), {}, option.returns, stars=stars)
    fixed = {
        ours: float(value) if ours == "weight_offset" else value  # a flag is a number
        for key, value in option.constants.items()
        if (ours := meant(key, offered) or "") in (NUMBERS if value is not None else ("weight", "bias"))
    }
    ours_of = {theirs: ours for ours, theirs in option.names.items()}
    arguments: list[Argument] = []
    absent = set(ABSENT).difference(t.name.removesuffix("_out") for t in candidate.op.inputs)
    unknown, unset, kept = [], [], []
    for p in named:
        in_order = positional or p.kind is p.POSITIONAL_ONLY
        source = ours_of.get(p.name) or _fitting(p, offered, outputs, {*ours_of.values(), *_taken(arguments)})
        if p.name in option.constants and source not in fixed:
            arguments.append(Argument(p.name, None, option.constants[p.name], in_order))
            if p.name not in candidate.option.constants:
                kept.append((p.name, f"functools.partial keeps it at {p.default!r:.60}"))
        elif source is not None:
            flag = p.name in FLAGS or isinstance(p.default, bool)
            arguments.append(Argument(p.name, source, None, in_order, form_of(bool if flag else p.annotation, source)))
        elif p.default is p.empty and meant(p.name, absent):
            arguments.append(Argument(p.name, None, None, in_order))
            unset.append(p.name)
        elif p.default is p.empty:
            unknown.append(p.name)
        else:
            arguments += [Argument(p.name, None, p.default, in_order)] * in_order
            kept += [(p.name, f"it keeps its default {p.default!r:.60}")] * (p.default is not None)
    if len(unknown) == 1 and "x" in {*offered}.difference(_taken(arguments)) and unknown != ["self"]:
        named_x = replace(
            candidate, option=replace(candidate.option, names={**candidate.option.names, "x": unknown[0]})
        )
        return bind(named_x, parameters, offered, outputs=outputs, positional=positional, elsewhere=elsewhere)
    if unknown:
        raise _unknown(candidate, unknown, offered, _taken(arguments), method=parameters[0].name == "self")
    if not rest:
        return Binding(tuple(arguments), fixed, option.returns, unset=tuple(unset), kept=tuple(kept))
    known = {*elsewhere, *(p.name for p in named)}
    beyond = {theirs: ours for theirs, ours in ours_of.items() if ours in (*offered, *outputs) and theirs not in known}
    arguments += [Argument(theirs, ours) for theirs, ours in beyond.items()]
    constants = {k: v for k, v in option.constants.items() if meant(k, offered) not in fixed and k not in known}
    arguments += [Argument(k, None, v) for k, v in constants.items()]
    every: tuple[str, ...] = ()
    if not ours_of and all(a.source in (None, a.name) for a in arguments):  # it uses the operator's names
        every = tuple(n for n in more if n not in (*_taken(arguments), FEATURES))
    return Binding(tuple(arguments), fixed, option.returns, every, rest, stars, tuple(unset), tuple(kept))


def _unknown(
    candidate: Candidate, unknown: list[str], offered: tuple[str, ...], taken: Collection[str], *, method: bool
) -> UsageError:
    """Return the error about parameters without a default that fit nothing, with the --bind that would name the first.

    `taken` are the operator's names that other parameters have.
    """
    if method and unknown[0] == "self":
        of, _, name = candidate.name.rpartition(".")
        instance = f"name that of an instance, such as norm = {of.rpartition(':')[2]}(…), norm.{name}"
        return UsageError(f"{candidate.name} is a method of a class: {instance}")
    free = [name for name in offered if name not in taken]
    like = [name for name in free if name.startswith(unknown[0].lower())]
    some = f"{like[0]}={unknown[0]}" if like else f"NAME={unknown[0]} with NAME from this list" if free else ""
    options = f"--bind {some}, or " * bool(some) + f"--bind {unknown[0]}=<a constant>"
    them = f"argument{'s' * (len(unknown) > 1)} {', '.join(unknown)}"
    offers = f"{candidate.op.name} offers {', '.join(offered)}"
    return UsageError(f"{candidate.name}: unknown {them}; {offers} ({options})")


def _with_preset(candidate: Candidate, offered: tuple[str, ...]) -> BindOption:
    """Return the user's --bind with what functools.partial has bound, besides tensors, which each case replaces."""
    option, inputs = candidate.option, {t.name for t in candidate.op.inputs}
    own: dict[str, Any] = {}
    for name, value in preset(candidate.target).items():
        ours = meant(name, offered)
        taken = name in option.names.values() or ours in {meant(key, offered) or key for key in option.constants}
        if not taken and (ours not in inputs or ours in NUMBERS or (value is None and ours in ("weight", "bias"))):
            own[name] = value
    return replace(option, constants={**own, **option.constants})


def features(op: Op, given: Mapping[str, Any]) -> int:
    """Return the number of elements of weight."""
    return prod(given["normalized_shape"]) if op.view == "rows" else given["x"].shape[1]


def _validate(
    candidate: Candidate,
    takes: list[str],
    offered: tuple[str, ...],
    outputs: tuple[str, ...],
    elsewhere: Collection[str],
    rest: str,
) -> None:
    op = candidate.op
    lists = f"{op.name} offers {', '.join((*offered, *outputs))}; {candidate.name} takes {', '.join(takes)}"
    for ours, theirs in candidate.option.names.items():
        if ours not in (*offered, *outputs, *elsewhere):
            meant_by = _meant_by(ours, theirs, takes, offered)
            raise UsageError(f"--bind {ours}={theirs}: unknown input {ours}; {meant_by or lists}")
        if theirs not in (*takes, *elsewhere) and not rest:
            raise UsageError(f"--bind {ours}={theirs}: unknown argument {theirs}; {lists}")
    for key, value in candidate.option.constants.items():
        if key not in (*takes, *elsewhere) and meant(key, offered) is None and not rest:
            raise UsageError(f"--bind {key}={value!r}: unknown argument {key}; {lists}")
        refused = out_of_range(meant(key, (*offered, *op.attrs)) or "", value)
        if refused is not None:
            raise UsageError(f"--bind {key}={value!r:.60}: {refused}")


def _formed(form: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if form is None or value is None or isinstance(value, torch.Tensor) else form(value)


def _meant_by(ours: str, theirs: str, takes: Collection[str], offered: Collection[str]) -> str:
    """Return the --bind that is meant where an argument of the callable stands first; "" if it is none of these."""
    if ours not in takes:
        return ""
    if theirs in offered:
        return f"the operator's name stands first: --bind {theirs}={ours}"
    return f"a text needs quotes, which a shell removes: --bind '{ours}=\"{theirs}\"'"


def _taken(arguments: Iterable[Argument]) -> list[str]:
    return [a.source for a in arguments if a.source is not None]


def _fitting(p: inspect.Parameter, offered: tuple[str, ...], outputs: tuple[str, ...], taken: set[str]) -> str | None:
    """Return what a parameter stands for, among the names that no other parameter has taken."""
    source = meant(p.name, (n for n in offered if n not in taken))
    if source == "normalized_shape" and p.annotation in (int, "int") and FEATURES in offered:
        source = FEATURES
    size = isinstance(p.default, int) and not isinstance(p.default, bool) and p.default > 0
    if source is not None and (source != FEATURES or p.default is p.empty or size):
        return source
    return meant(p.name, [n for n in outputs if n not in taken]) if p.default is p.empty else None
