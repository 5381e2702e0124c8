"""Defaults of the commands from [tool.verify-norm] (`verify_norm.search.config`)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from verify_norm.cli import console
from verify_norm.core.errors import UsageError, one_of
from verify_norm.loading import nested
from verify_norm.search.config import Config, nearest


def load(context: typer.Context, ignored: bool) -> None:
    """Make the table's values the defaults of all commands: the callback of --no-config, which runs first."""
    with console.statuses():
        context.obj = (None if ignored else nearest()) or Config()
    context.default_map = context.obj.defaults


class Group(TyperGroup):
    """The main command. What a command returns is the exit status, and what ends it early has one of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        with console.statuses():
            refuse_two_operators(args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that an argument names."""
        with console.statuses():
            if args[0] not in self.commands and looks_like_a_kernel(args[0]):
                raise UsageError(f"unknown command {args[0]!r}: a kernel is given as --kernel {args[0]}")
            one_of("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command and exit with its status."""
        with console.statuses():
            nested.refuse()
            raise typer.Exit(super().invoke(ctx) or 0)


class Command(TyperCommand):
    """A command that names those of its defaults that are from the table."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; of a command of one kernel typer would take the last one."""
        if any(one.name == "kernel" and not one.multiple for one in self.params if isinstance(one, TyperOption)):
            kernels = list(dict.fromkeys(values(args, "--kernel", "-k")))
            if len(kernels) > 1:
                raise UsageError(f"{self.name}: expected one --kernel, got {', '.join(kernels)}; run it once for each")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        announce(ctx)
        return super().invoke(ctx)


def looks_like_a_kernel(argument: str) -> bool:
    """Return whether an argument is of a form that --kernel takes.

    >>> [looks_like_a_kernel(text) for text in ("k.py:f", "k.py", "layernorm_bwd", "adit")]
    [True, True, True, False]
    """
    return ":" in argument or argument.endswith((".py", "_fwd", "_bwd"))


def values(args: Sequence[str], *options: str) -> list[str]:
    """Return the values of an option that has these names.

    >>> values(("-k", "a", "--kernel=b", "--op", "c"), "--kernel", "-k")
    ['a', 'b']
    """
    after = [value for option, value in pairwise(args) if option in options]
    return after + [one.partition("=")[2] for one in args if one.startswith(tuple(f"{name}=" for name in options))]


def refuse_two_operators(args: Sequence[str]) -> None:
    """Raise UsageError for --op with two values, of which typer would take the last one."""
    ops = list(dict.fromkeys(values(args, "--op")))
    if len(ops) > 1:
        raise UsageError(f"--op stands for {' and for '.join(ops)}: expected one operator")


def announce(context: typer.Context) -> None:
    """Name on standard error the options that have their values from the table, if any."""
    from_table = [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "DEFAULT_MAP"
    ]
    if from_table:
        console.complain(f"defaults of {', '.join(from_table)} are from {context.obj.path}")
