"""A run as a user asks for it, checked: one place for the command line, Python, pytest and [tool.verify-norm].

Importing this module loads neither torch nor Triton.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from verify_norm.core import known as named
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.dtypes import ALIASES, KERNEL_DTYPES, dtype_name
from verify_norm.core.errors import LIST, UnknownOpError, UsageError, one_of
from verify_norm.core.results import DEFAULTS, Count, Seconds, Settings
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.loading import nested

T = TypeVar("T")
U = TypeVar("U")
REFUSED = "refused"  # the type of a pydantic error whose message is already in our words


def least(quantity: Any) -> float:
    """Return the smallest value of an annotated type, as Seconds."""
    return float(quantity.__metadata__[0].ge)


def split(names: str | Iterable[str]) -> list[str]:
    """Return the parts of a comma-separated list; a list stays as it is."""
    return [part.strip() for part in names.split(",") if part.strip()] if isinstance(names, str) else list(names)


def _names(known: Callable[[list[str]], tuple[str, ...]]) -> BeforeValidator:
    """Return a validator for names: a list of them, or a text that separates them by commas."""

    def read(value: Any) -> tuple[str, ...]:
        names = split(value) if isinstance(value, Iterable) else [value]
        if not all(isinstance(name, str) for name in names):
            raise ValueError
        return _said(known, names)

    return BeforeValidator(read)


def _said(read: Callable[[T], U], value: T) -> U:
    """Return read(value); what it refuses keeps its words."""
    try:
        return read(value)
    except UsageError as error:
        raise PydanticCustomError(REFUSED, "{message}", {"message": str(error).removeprefix("contract: ")}) from None


def _dtypes(names: list[str]) -> tuple[str, ...]:
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


class Strict(BaseModel):
    """A model that converts nothing and ignores nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Options(Strict):
    """What a user can set about a search, by the names that Python and [tool.verify-norm] use."""

    dtypes: Annotated[tuple[str, ...], Field(description='a list of dtypes, as ["fp32", "bf16"]'), _names(_dtypes)] = (
        DEFAULTS.dtypes
    )
    checks: Annotated[tuple[str, ...], Field(description='a list of checks, as ["accuracy"]'), _names(_checks)] = ()
    examples: Count = DEFAULTS.examples
    seconds: Seconds = DEFAULTS.seconds
    seed: Count = DEFAULTS.seed
    device: Annotated[str, Field(description='"auto", "cpu", "cuda" or "cuda:N"')] = "auto"
    shapes: Literal["fuzz", "models", "all"] = DEFAULTS.shapes
    timeout: Seconds | None = DEFAULTS.timeout
    allow_incomplete: bool = DEFAULTS.allow_incomplete
    contract: Annotated[str, Field(description='a contract, as "llama,inplace=y:x"'), BeforeValidator(_contract)] = (
        DEFAULTS.contract
    )


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
    return f"{kind}, {schema['minimum']:g} or more"


@dataclass(frozen=True, slots=True)
class Request:
    """What a run needs: the kernels, ready to run, and how to search them.

    `corpus` holds the cases to run first, for each kernel; `notes` are lines for the user.
    """

    kernels: tuple[Kernel, ...]
    settings: Settings
    corpus: tuple[tuple[CaseSpec, ...], ...]
    notes: tuple[str, ...] = ()

    def runs(self) -> Iterator[tuple[Kernel, tuple[CaseSpec, ...]]]:
        """Yield each kernel with the cases to run first."""
        return zip(self.kernels, self.corpus, strict=True)

    def only(self) -> Kernel:
        """Return the one kernel; raises UsageError if there are two, one a direction."""
        from verify_norm.loading.registry import only

        return only(self.kernels)


def request(
    kernel: object,
    given: Mapping[str, Any],
    *,
    op: str | None = None,
    bind: str = "",
    isolate: bool = True,
    corpus: str = "",
    worker: int = 0,
) -> Request:
    """Return a run of `kernel`, a name, a target or a callable: of what is differentiable, one kernel a direction.

    The directions share the time. `corpus` is the path of a file of cases. `given` has fields of Options. Of
    several GPUs `worker` chooses one where the device names none.

    Raises UsageError: an option is wrong, the device is not there, the kernel cannot be found, imported or bound, or
    the corpus cannot be read.
    """
    nested.refuse(kernel if isolate else None)
    asked = options(**given)
    place = device(asked.device, worker)
    if place == "cpu":
        try:
            interpret(always=True)
        except UsageError:
            if isinstance(kernel, str) or gpus():
                raise
            os.environ["TRITON_INTERPRET"] = "1"  # the caller has imported Triton: only the kernel's process interprets
    from verify_norm.loading.entry_points import shadowed
    from verify_norm.loading.registry import load_directions
    from verify_norm.search.corpus import load

    notes = shadowed(kernel) if isinstance(kernel, str) else ()
    kernels = load_directions(kernel, op, bind, asked.contract)
    random = 0 if asked.shapes == "models" else asked.examples
    if isolate and not all(kernel.target for kernel in kernels):
        from verify_norm.running.isolate import NO_TARGET

        hint = "a crash would end it; isolate=False accepts that"
        notes = (*notes, f"{kernels[0].name} runs in this process: {NO_TARGET}; {hint}")
    share = max(asked.seconds / len(kernels), least(Seconds))
    here = {"examples": random, "seconds": share, "device": place, "isolate": isolate}
    settings = Settings(**(asked.model_dump() | here))
    if corpus and not os.path.exists(corpus):
        raise UsageError(f"there is no corpus {corpus}; verify-norm hunt --corpus {corpus} writes one")
    return Request(tuple(kernels), settings, tuple(load(corpus, each) if corpus else () for each in kernels), notes)


def request_pair(
    kernels: tuple[object, object],
    given: Mapping[str, Any],
    *,
    op: str | None = None,
    binds: tuple[str, str] = ("", ""),
    isolate: bool = True,
) -> tuple[Request, Request]:
    """Return `request` of two kernels; one that names no operator has the other's. Raises UsageError."""

    def load(side: int, op: str | None) -> Request:
        return request(kernels[side], given, op=op, bind=binds[side], isolate=isolate)

    try:
        first = load(0, op)
    except UnknownOpError:
        second = load(1, op)
        return load(0, second.only().op), second
    try:
        return first, load(1, op)
    except UnknownOpError:
        return first, load(1, first.only().op)


def device(name: str, worker: int = 0) -> str:
    """Return the device of that name: "auto" is the first GPU, or the CPU without a GPU.

    Several workers share several GPUs: where the name has no number, a worker takes the GPU of its own number, modulo
    their count. Raises UsageError where there is no such device.
    """
    count = gpus()
    if name == "auto":
        name = "cuda" if count else "cpu"
    if name == "cpu":
        return name
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number.isdigit() or not number):
        raise UsageError(f"unknown device {name!r}; there are: cpu, cuda, cuda:N")
    if int(number or 0) >= count:
        there = f"there are {count}" if count else "torch sees no CUDA device here"
        raise UsageError(f"no device {name}: {there}; --device cpu runs Triton kernels in its interpreter")
    return f"cuda:{int(number) if number else worker % count}"


def gpus() -> int:
    """Return how many CUDA devices torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def interpret(*, always: bool = False) -> None:
    """Turn on Triton's interpreter if there is no GPU, or `always`. It has to be on before Triton is imported."""
    from verify_norm.running.interpreter import patch

    if always or not gpus():
        try:
            patch.enable()
        except RuntimeError as error:
            raise UsageError(str(error)) from error
