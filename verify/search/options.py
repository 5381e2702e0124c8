"""What a user can set about a search: one list of options for every interface, validated here, in plain words.

Importing this module loads neither torch nor Triton.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from verify_norm.core import known as named
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import ALIASES, KERNEL_DTYPES, dtype_name
from verify_norm.core.errors import LIST, UsageError, one_of
from verify_norm.core.only import EXAMPLE, checked
from verify_norm.core.settings import DEFAULTS, Count, Seconds, Workers

T = TypeVar("T")
U = TypeVar("U")
REFUSED = "refused"  # the type of a pydantic error whose message is already in our words


def least(quantity: Any) -> float:
    """Return the smallest value of an annotated type, such as Seconds."""
    return float(quantity.__metadata__[0].ge)


def split(names: str | Iterable[str]) -> list[str]:
    """Return the parts of a comma-separated list; a list stays as it is."""
    return [part.strip() for part in names.split(",") if part.strip()] if isinstance(names, str) else list(names)


def _names(known: Callable[[list[str]], tuple[str, ...]]) -> BeforeValidator:
    """Return a validator for names: a list of them, or a text that separates them by commas."""

    def read(value: Any) -> tuple[str, ...]:
        names = split(value) if isinstance(value, Iterable) else [value]
        names = [str(name).removeprefix("torch.") if _is_torch_dtype(name) else name for name in names]
        if not all(isinstance(name, str) for name in names):
            raise ValueError
        return _said(known, names)

    return BeforeValidator(read)


def _is_torch_dtype(value: Any) -> bool:
    """Return whether a value is a type as torch.float32; torch need not be there."""
    return type(value).__module__ == "torch" and type(value).__name__ == "dtype"


def _said(read: Callable[[T], U], value: T) -> U:
    """Return read(value); what it refuses keeps its words."""
    try:
        return read(value)
    except UsageError as error:
        message = str(error).removeprefix("contract: ").removeprefix("only: ")  # the key is named before it
        raise PydanticCustomError(REFUSED, "{message}", {"message": message}) from None


def types(names: list[str]) -> tuple[str, ...]:
    """Return the types of x with these names, one at least; raises UsageError."""
    if not names:
        known = ", ".join(short for short, name in ALIASES.items() if name in KERNEL_DTYPES)
        raise UsageError(f"expected at least one dtype of {known}, got none")
    return tuple(map(dtype_name, names))


def _checks(names: list[str]) -> tuple[str, ...]:
    return tuple(one_of("check", name, CHECK_NAMES, see=LIST) for name in names)


def _contract(value: Any) -> str:
    """Return a contract as text, checked; raise ValueError for what is neither a text, a Contract nor None."""
    if not isinstance(value, (str, Contract, NoneType)):
        raise ValueError
    return _said(named.checked, named.whole(value) if isinstance(value, Contract) else value or "")


def _only(value: Any) -> str:
    """Return what a kernel takes as text, checked; raise ValueError for what is neither a text nor None."""
    if not isinstance(value, (str, NoneType)):
        raise ValueError
    return _said(checked, value or "")


class Strict(BaseModel):
    """A model that converts nothing and ignores nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Flag:
    """How the command line calls an option, and its help."""

    name: str
    help: str


class Options(Strict):
    """What a user can set about a search: the one list for the command line, Python, pytest and [tool.verify-norm].

    Defaults and ranges are those of `verify_norm.core.settings.Settings`.
    """

    dtypes: Annotated[
        tuple[str, ...],
        Flag("--dtype", "Types of x, such as fp32,bf16."),
        Field(description='a list of dtypes, such as ["fp32", "bf16"]'),
        _names(types),
    ] = DEFAULTS.dtypes
    checks: Annotated[
        tuple[str, ...],
        Flag("--checks", "Run only these checks, such as accuracy,signature."),
        Field(description='a list of checks, such as ["accuracy"]'),
        _names(_checks),
    ] = ()
    contract: Annotated[
        str,
        Flag("--contract", "What the kernel promises, such as llama,inplace=y:x; see verify-norm show contracts."),
        Field(description='a contract, such as "llama,inplace=y:x"'),
        BeforeValidator(_contract),
    ] = DEFAULTS.contract
    only: Annotated[
        str,
        Flag("--only", f"What the kernel takes, such as {EXAMPLE}; see verify-norm show only."),
        Field(description=f'what the kernel takes, such as "{EXAMPLE}"'),
        BeforeValidator(_only),
    ] = DEFAULTS.only
    examples: Annotated[
        Count, Flag("--examples", "Number of cases after the corner table: all pairs of choices, then random ones.")
    ] = DEFAULTS.examples
    seconds: Annotated[Seconds, Flag("--seconds", "Seconds for the whole run.")] = DEFAULTS.seconds
    seed: Annotated[Count, Flag("--seed", "Seed of the random cases.")] = DEFAULTS.seed
    device: Annotated[
        str,
        Flag("--device", "Device: cpu, cuda or cuda:N. auto is the first GPU, or the CPU without a GPU."),
        Field(description='"auto", "cpu", "cuda" or "cuda:N"'),
    ] = "auto"
    workers: Annotated[
        Workers | None,
        Flag(
            "--workers",
            "Processes that examine cases at the same time: 1 on a CPU, at most 12 on a GPU. The cases are the same.",
        ),
    ] = DEFAULTS.workers
    shapes: Annotated[
        Literal["fuzz", "models", "all"],
        Flag(
            "--shapes",
            "Shapes: fuzz (random; on a GPU also those of models), models (norm shapes of real models), or all.",
        ),
    ] = DEFAULTS.shapes
    timeout: Annotated[
        Seconds | None,
        Flag("--timeout", "Seconds after which a case counts as hung: 20, or 90 on a GPU; more while it may compile."),
    ] = DEFAULTS.timeout
    untrusted: Annotated[
        bool,
        Flag("--untrusted", "The kernel may cheat: truth and verdict stay out of its process, which is in a sandbox."),
    ] = DEFAULTS.untrusted
    allow_incomplete: Annotated[
        bool,
        Flag(
            "--allow-incomplete", "Exit status 0, not 3, for a run without findings that ends before all corner cases."
        ),
    ] = DEFAULTS.allow_incomplete
    require_own: Annotated[
        bool,
        Flag(
            "--require-own",
            "A norm operator of torch that runs inside the kernel, for example as a fallback, is a finding.",
        ),
    ] = DEFAULTS.require_own


SEARCH = ("examples", "seconds", "seed", "device")
TAKES: dict[str, tuple[str, ...]] = {  # the options of each command
    "verify": tuple(Options.model_fields),
    "pytest": tuple(name for name in Options.model_fields if name != "checks"),  # the selected tests say which
    "audit": tuple(name for name in Options.model_fields if name not in ("checks", "shapes", "untrusted")),
    "hunt": ("contract", "only", "seconds", "seed", "device"),
    "power": ("contract", "only", *SEARCH, "allow_incomplete"),
    "replay": ("contract", "only", "device", "checks", "timeout", "require_own", "untrusted"),
    "same": ("dtypes", "only", *SEARCH, "shapes", "timeout", "allow_incomplete"),
    "exhaust": ("contract", "only", "device", "timeout"),
    "campaign": tuple(name for name in Options.model_fields if name not in ("seconds", "untrusted")),
    "zoo": (*SEARCH, "allow_incomplete"),
}


def flags() -> dict[str, Flag]:
    """Return how the command line calls each option."""
    fields = Options.model_fields.items()
    return {name: next(part for part in field.metadata if isinstance(part, Flag)) for name, field in fields}


def options(**given: Any) -> Options:
    """Return the options that are given; raises UsageError for the first wrong one."""
    try:
        return Options(**given)
    except ValidationError as error:
        raise UsageError(explained(error, Options)) from None


def explained(error: ValidationError, model: Any) -> str:
    """Return pydantic's first error in plain words: the key, what was expected, what came."""
    detail = error.errors()[0]
    if detail["type"] == REFUSED:
        return f"{detail['loc'][-1]}: {detail['msg']}"
    properties = TypeAdapter(model).json_schema()["properties"]
    key = str(detail["loc"][-1])
    if key not in properties:
        try:
            one_of("key", key, properties)
        except UsageError as unknown:
            return str(unknown)
    return f"{key}: expected {_expected(properties[key])}, got {detail['input']!r:.60}"


def _expected(schema: Mapping[str, Any]) -> str:
    """Return what a field takes, from its JSON Schema, in words."""
    schema = next(iter(schema.get("anyOf", [schema])))
    if "description" in schema:
        return str(schema["description"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "boolean":
        return "true or false"
    kind = {"integer": "a whole number", "number": "a number"}[schema["type"]]
    least, most = schema["minimum"], schema.get("maximum")
    return f"{kind}, {least:g} or more" if most is None else f"{kind} from {least:g} to {most:g}"
