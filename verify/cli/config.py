"""Defaults from the user's pyproject.toml: the table [tool.verify-norm] in the working folder or a folder above it.

    [tool.verify-norm]
    dtypes = ["fp16", "bf16"]
    examples = 200
    baseline = "norms/baseline.json"    # relative to this file

    [tool.verify-norm.hunt]             # for one command: audit, hunt, power, replay, same
    seconds = 60

    [tool.verify-norm.compare]          # limits: see verify_norm.report.compare.model.RegressionLimits
    share = 0.02

The nearest pyproject.toml that has the table counts. The command line wins over it.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field, ValidationError, create_model
from typer.core import TyperCommand, TyperGroup

from verify_norm.cli import console
from verify_norm.core.errors import UsageError
from verify_norm.loading import nested
from verify_norm.report.compare.model import RegressionLimits
from verify_norm.search.request import Options, Strict, explained

TABLE = "tool.verify-norm"
File = Annotated[str, Field(description="the path of a file, relative to this one", min_length=1)]
OWN = (("audit", "seconds"), ("hunt", "seconds"))  # not from the main table: these commands take another time


FILES = ("baseline", "corpus", "html")
KEYS = {key: (one.annotation, one) for key, one in Options.model_fields.items()} | dict.fromkeys(FILES, (File, ""))


def _table(*keys: str, **tables: Any) -> type[Strict]:
    """Return the model of a table with these keys and sub-tables."""
    fields: dict[str, Any] = {key: KEYS[key] for key in keys}
    fields |= {name: (table, Field(None, description=f"a table, [{TABLE}.{name}]")) for name, table in tables.items()}
    return create_model("Table", __base__=Strict, **fields)


COMMANDS = {
    "audit": _table(
        "dtypes", "examples", "seconds", "seed", "device", "timeout", "allow_incomplete", "contract", *FILES
    ),
    "hunt": _table("seconds", "seed", "device", "contract", "corpus"),
    "same": _table("dtypes", "examples", "seconds", "seed", "device", "shapes", "timeout", "allow_incomplete"),
    "power": _table("examples", "seconds", "seed", "device", "contract", "allow_incomplete"),
    "replay": _table("device", "timeout"),
}
MAIN = _table(*KEYS, **COMMANDS, compare=RegressionLimits)


@dataclass(frozen=True, slots=True)
class Config:
    """What our table in a file sets: the defaults of the commands' parameters, and the limits of a comparison."""

    path: Path | None = None
    defaults: dict[str, Any] = field(default_factory=dict)  # by parameter, those of other commands by command
    limits: RegressionLimits | None = None


def nearest(start: Path | None = None) -> Config | None:
    """Return what the nearest pyproject.toml with our table sets; None if there is none.

    Raises UsageError if a file that mentions us is not TOML, or our table has an unknown key or a wrong value.
    """
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "verify-norm" in text:
            try:
                tool = tomllib.loads(text).get("tool", {})
            except tomllib.TOMLDecodeError as error:
                raise UsageError(f"{path}: cannot parse TOML: {error}") from error
            if isinstance(tool, dict) and "verify-norm" in tool:
                return _read(path, tool["verify-norm"])
    return None


def _read(path: Path, table: Any) -> Config:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {TABLE}: expected a table, [{TABLE}], got {table!r:.60}")
    try:  # strict JSON has lists for tuples and objects for models
        main = MAIN.model_validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        *where, _ = map(str, error.errors()[0]["loc"])
        model = MAIN.model_fields[where[0]].annotation if where else MAIN
        raise UsageError(f"{path}: [{'.'.join((TABLE, *where))}] {explained(error, model)}") from None
    given = main.model_dump(exclude_unset=True)
    limits = RegressionLimits(**given.pop("compare", {}))
    own = {command: given.pop(command, {}) for command in COMMANDS}
    defaults = _parameters(path.parent, given)
    for command, model in COMMANDS.items():
        shared = {key: given[key] for key in model.model_fields.keys() & given.keys() if (command, key) not in OWN}
        defaults[command] = _parameters(path.parent, shared | own[command])
    return Config(path, defaults, limits)


def _parameters(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as the command line has them: lists as text, and paths that hold in any folder."""
    found = {key: ",".join(value) if isinstance(value, tuple) else value for key, value in given.items()}
    paths = {key: str(folder / Path(given[key]).expanduser()) for key in FILES if key in given}
    return found | paths


def load(context: typer.Context, ignored: bool) -> None:
    """Make the table's values the defaults of all commands: the callback of --no-config, which runs first."""
    with console.statuses():
        context.obj = (None if ignored else nearest()) or Config()
    context.default_map = context.obj.defaults


class Group(TyperGroup):
    """The main command. What a command returns is the exit status, and what ends it early has one of its own."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command and exit with its status."""
        with console.statuses():
            nested.refuse()
            raise typer.Exit(super().invoke(ctx) or 0)


class Command(TyperCommand):
    """A command that names those of its defaults that are from the table."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        announce(ctx)
        return super().invoke(ctx)


def announce(context: typer.Context) -> None:
    """Name on standard error the options that have their values from the table, if any."""
    from_table = [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "DEFAULT_MAP"
    ]
    if from_table:
        console.complain(f"defaults of {', '.join(from_table)} are from {context.obj.path}")
