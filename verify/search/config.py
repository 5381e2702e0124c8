"""Defaults of all interfaces from [tool.verify-norm] of the user's pyproject.toml, in this folder or one above it.

    [tool.verify-norm]
    dtypes = ["fp16", "bf16"]
    examples = 200
    baseline = "norms/baseline.json"    # relative to this file

    [tool.verify-norm.hunt]             # for one command: audit, hunt, power, replay, same, exhaust
    seconds = 60

    [tool.verify-norm.compare]          # limits: see verify_norm.core.regression.RegressionLimits
    share = 0.02

The nearest pyproject.toml that has the table counts. An option of the command line, of Python or of pytest wins.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, create_model

from verify_norm.core.errors import UsageError
from verify_norm.core.regression import RegressionLimits
from verify_norm.search.options import TAKES, Options, Strict, explained

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = "tool.verify-norm"
COMMANDS_WITH_TABLES = ("audit", "hunt", "power", "replay", "same", "exhaust")
OPTIONS = TAKES | {"replay": ("device", "timeout")}  # a replay line says the rest itself
NOT_SHARED = (("audit", "seconds"), ("hunt", "seconds"))  # not from the main table: these commands take another time
File = Annotated[str, Field(description="the path of a file, relative to this one", min_length=1)]
FILES = ("baseline", "corpus", "html")
FILES_OF = {"audit": FILES, "hunt": ("corpus",)}  # the main table has all
KEYS = {key: (one.annotation, one) for key, one in Options.model_fields.items()} | dict.fromkeys(FILES, (File, ""))


def _table(*keys: str, **tables: Any) -> type[Strict]:
    """Return the model of a table with these keys and sub-tables."""
    fields: dict[str, Any] = {key: KEYS[key] for key in keys}
    fields |= {name: (table, Field(None, description=f"a table, [{TABLE}.{name}]")) for name, table in tables.items()}
    return create_model("Table", __base__=Strict, **fields)


COMMANDS = {name: _table(*OPTIONS[name], *FILES_OF.get(name, ())) for name in COMMANDS_WITH_TABLES}
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
        text = _text(path)
        if "verify-norm" not in text:
            continue
        try:
            tool = tomllib.loads(text).get("tool")
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: cannot parse TOML: {error}") from error
        if isinstance(tool, dict) and "verify-norm" in tool:
            return _read(path, tool["verify-norm"])
    return None


def _text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read, or is not UTF-8 and does not mention our table."""
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if TABLE.encode() in data.replace(b"\0", b""):  # in UTF-16 too
            raise UsageError(f"{path}: it is not UTF-8: {error.reason} at byte {error.start}") from error
        return ""


def _read(path: Path, table: Any) -> Config:
    """Return what our table sets; raises UsageError if it is not a table, or a key or a value is wrong."""
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
        keys = [key for key in model.model_fields if key in given and (command, key) not in NOT_SHARED]
        defaults[command] = _parameters(path.parent, {key: given[key] for key in keys} | own[command])
    return Config(path, defaults, limits)


def _parameters(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as the command line has them: lists as text, and paths that hold in any folder."""
    found = {key: ",".join(value) if isinstance(value, tuple) else value for key, value in given.items()}
    paths = {key: str(folder / Path(given[key]).expanduser()) for key in FILES if key in given}
    return found | paths


def defaults(command: str = "verify", start: Path | None = None) -> tuple[dict[str, Any], str]:
    """Return what the nearest table sets of Options for a command, or for a run, and a line that says so.

    Raises UsageError as `nearest`.
    """
    found = nearest(start) or Config()
    given = found.defaults if command in ("verify", "pytest") else found.defaults.get(command, {})
    given = {name: given[name] for name in (*TAKES[command], "corpus") if name in given}
    if not given:
        return {}, ""
    return given, f"{', '.join(given)} {'are' if len(given) > 1 else 'is'} from {found.path}"
