"""Defaults from the user's pyproject.toml: the table [tool.verify-norm], found upwards from the working folder.

    [tool.verify-norm]
    dtypes = ["fp16", "bf16"]
    examples = 200
    baseline = "norms/baseline.json"    # beside this file, wherever the command is run

    [tool.verify-norm.hunt]             # of one command alone: audit, hunt, power, replay
    seconds = 60

    [tool.verify-norm.compare]          # limits: see verify_norm.report.comparison.Limits
    share = 0.02

The nearest pyproject.toml that has the table counts. What the command line says wins over it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from verify_norm import session
from verify_norm.bind import UsageError

if TYPE_CHECKING:
    from verify_norm.report.comparison import Limits

TABLE = "tool.verify-norm"
SHAPES = ("fuzz", "models", "all")


@dataclass(frozen=True, slots=True)
class Key:
    """What a key sets: the option, the words for what its value is to be, and the value as the option takes it."""

    option: str
    wanted: str
    read: Callable[[Any, Path], Any]  # None where the value is not as wanted


def _number(least: float, kind: type = float) -> Callable[[Any, Path], Any]:
    def read(value: Any, folder: Path) -> Any:
        numbers = (int,) if kind is int else (int, float)
        return value if type(value) in numbers and least <= value < float("inf") else None

    return read


def _words(known: Callable[[str], str | None]) -> Callable[[Any, Path], Any]:
    def read(value: Any, folder: Path) -> Any:
        words = session.split(value) if isinstance(value, str) else value
        right = isinstance(words, list) and all(isinstance(word, str) for word in words)
        names = [known(word) for word in words] if right else [None]
        return None if None in names else ",".join(map(str, names))

    return read


def _dtype(word: str) -> str | None:
    name = session.DTYPES.get(word, word)
    return name if name in session.KERNEL_DTYPES else None


def _text(value: Any, folder: Path) -> Any:
    return value if isinstance(value, str) and value else None


def _path(value: Any, folder: Path) -> Any:
    return str(folder / Path(value).expanduser()) if isinstance(value, str) and value else None


KEYS: dict[str, Key] = {
    "dtypes": Key("--dtype", "a list of fp32, fp16, bf16", _words(_dtype)),
    "checks": Key("--checks", 'a list of checks, as ["accuracy"]', _words(lambda word: word)),
    "examples": Key("--examples", "a whole number, 0 or more", _number(0, int)),
    "seconds": Key("--seconds", "a number, 0.1 or more", _number(0.1)),
    "seed": Key("--seed", "a whole number, 0 or more", _number(0, int)),
    "device": Key("--device", '"auto", "cpu", "cuda" or "cuda:N"', _text),
    "timeout": Key("--timeout", "a number, 0.1 or more", _number(0.1)),
    "shapes": Key("--shapes", "one of " + ", ".join(SHAPES), lambda value, _: value if value in SHAPES else None),
    "baseline": Key("--baseline", "the path of a file, from this one's folder", _path),
    "corpus": Key("--corpus", "the path of a file, from this one's folder", _path),
    "html": Key("--html", "the path of a file, from this one's folder", _path),
}
COMMANDS: dict[str, tuple[str, ...]] = {  # what each takes from the table; "" is the main command
    "": tuple(KEYS),
    "audit": ("dtypes", "examples", "seed", "device", "timeout", "baseline", "corpus", "html"),
    "hunt": ("seed", "device", "corpus"),
    "power": ("examples", "seconds", "seed", "device"),
    "replay": ("device", "timeout"),
}
TIMED = ("audit", "hunt")  # whose seconds are others than the main command's, so that only their own tables set them


def find(start: Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """The nearest pyproject.toml with our table, and the table; None where there is none.

    Raises UsageError where a file that speaks of us is no TOML, or our table is no table.
    """
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "verify-norm" not in text:
            continue
        try:
            tool = tomllib.loads(text).get("tool", {})
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not TOML: {error}") from error
        if isinstance(tool, dict) and "verify-norm" in tool:
            return path, _table(tool["verify-norm"], path, TABLE)
    return None


def _table(value: Any, path: Path, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} is to be a table, [{name}]")
    return value


def defaults(path: Path, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each command the options that the table sets; raises UsageError where a key or a value is not right."""
    own = [command for command in COMMANDS if command]
    _known(path, TABLE, table, (*KEYS, *own, "compare"))
    shared = _read(path, TABLE, {key: value for key, value in table.items() if key in KEYS})
    said: dict[str, dict[str, Any]] = {}
    for command, keys in COMMANDS.items():
        said[command] = {key: shared[key] for key in keys if key in shared}
        if command in table:
            where = f"{TABLE}.{command}"
            mine = _table(table[command], path, where)
            _known(path, where, mine, (*keys, "seconds") if command in TIMED else keys)
            said[command] |= _read(path, where, mine)
    return {command: {KEYS[key].option: value for key, value in found.items()} for command, found in said.items()}


def limits(start: Path | None = None) -> Limits:
    """The limits of a comparison: the table's, and for the others the usual ones. Raises UsageError as `find` does."""
    from verify_norm.report.comparison import Limits

    found = find(start)
    if found is None:
        return Limits()
    path, table = found
    where = f"{TABLE}.compare"
    mine = _table(table.get("compare", {}), path, where)
    _known(path, where, mine, [field.name for field in fields(Limits)])
    for key, value in mine.items():
        least = 1.0 if key.partition("_")[0] in ("ratio", "mean", "p99") else 0.0
        if _number(least)(value, path) is None:
            raise _wrong(path, where, key, f"a number, {least:g} or more", value)
    return Limits(**mine)


def require(key: str, value: Any) -> None:
    """Raise UsageError where a value that Python code says is none that the table could."""
    if KEYS[key].read(value, Path()) is None:
        raise UsageError(f"{key} is to be {KEYS[key].wanted}, not {repr(value)[:60]}")


def _known(path: Path, where: str, keys: Iterable[str], known: Iterable[str]) -> None:
    from verify_norm.registry import one_of  # it takes a moment, and there seldom is a table

    for key in keys:
        try:
            one_of(f"key in [{where}]", key, known)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error


def _read(path: Path, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    said = {key: KEYS[key].read(value, path.parent) for key, value in values.items()}
    for key, value in said.items():
        if value is None:
            raise _wrong(path, where, key, KEYS[key].wanted, values[key])
    return said


def _wrong(path: Path, where: str, key: str, wanted: str, value: Any) -> UsageError:
    return UsageError(f"{path}: {key} in [{where}] is to be {wanted}, not {repr(value)[:60]}")


class Group(TyperGroup):
    """The main command: the table's values are the defaults of its options, and of its commands'."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """As any command's."""
        with session.usage_errors():
            found = find()
            said = {} if found is None else defaults(*found)
        own = _parameters(self, said.get("", {}))
        commands = {name: _parameters(command, said.get(name, {})) for name, command in self.commands.items()}
        extra.setdefault("default_map", own | commands)
        return super().make_context(info_name, args, parent, **extra)


class Command(TyperCommand):
    """A command that tells which of its defaults are the table's."""

    def invoke(self, ctx: Any) -> Any:
        """As any command's."""
        announce(ctx)
        return super().invoke(ctx)


def _parameters(command: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the names of the command's parameters."""
    return {p.name: options[opt] for p in command.params for opt in p.opts if opt in options}


def announce(context: typer.Context) -> None:
    """Say on standard error which options have their values from the table, if any have."""
    from_table = [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "DEFAULT_MAP"
    ]
    found = find() if from_table else None
    if found is not None:
        session.complain(f"defaults of {', '.join(from_table)} are from {found[0]}")
