"""One call of a kernel on a case: the case made real, its truth, and what came back. Loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from verify_norm.core.contract import Beyond, Contract
from verify_norm.core.dtypes import Array
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec


@dataclass(frozen=True, slots=True)
class Expected:
    """The truth for one output: float64 values, the error allowed before the final rounding, the output's type.

    `delta` has the shape and the unit of `value`: it is an absolute error, not one in ULP. `saturate` says what is
    right beyond the type's largest number, as in Contract.
    """

    value: Array
    delta: Array
    dtype: str
    saturate: Beyond = "either"


@dataclass(frozen=True, slots=True)
class Case:
    """A spec made real for one op: torch arguments, their exact values as float64, and the truth of each output.

    `expected` is empty unless the truth was asked for; its bounds are those of a kernel of this contract. `poison` is
    the number in all memory that a kernel must not read: gaps, guard zones and what it allocates itself.
    """

    spec: CaseSpec
    op: Op
    arguments: Mapping[str, Any]
    exact: Mapping[str, Array | None]
    expected: Mapping[str, Expected | None]
    poison: float = 0.0
    contract: Contract | None = None

    @property
    def device(self) -> str:
        """The device of its tensors."""
        return next(str(value.device) for value in self.arguments.values() if hasattr(value, "device"))


@dataclass(frozen=True, slots=True)
class Damage:
    """Memory that a kernel must not change, but did: in which buffer, and where relative to its elements."""

    buffer: str  # an argument's name, or a description of the kernel's allocation
    where: str  # "before", "after" or "between" its elements, or "in" them
    count: int  # bytes of all changed elements
    nearest: int  # bytes from them to the nearest element; 0 in them
    output: str | None = None  # the output in the buffer


@dataclass(frozen=True, slots=True)
class Output:
    """One returned output: its own type and shape, its values in float64, and its error relative to the bound.

    `ratio` is |got − want| / allowed, element by element, 0 where no bound applies; None if the shapes differ or there
    is no truth.
    """

    dtype: str
    shape: tuple[int, ...]
    got: Array
    ratio: Array | None


@dataclass(frozen=True, slots=True)
class Called:
    """What a call gave: the tensors by output, or the problem why there are none; and what Run says of them."""

    outputs: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    refused: bool = False
    limits: tuple[str, ...] = ()
    damage: tuple[Damage, ...] = ()  # of what the kernel has allocated
    overlaps: tuple[tuple[str, str], ...] = ()
    effects: tuple[str, ...] = ()
    differs_on_gpu: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    evasions: tuple[tuple[str | None, str], ...] = ()
    at_return: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a kernel on one case. A missing output was not returned; an output of None was returned as None."""

    kernel: Kernel
    case: Case
    outputs: Mapping[str, Output | None]
    damage: tuple[Damage, ...] = ()
    overlaps: tuple[tuple[str, str], ...] = ()  # an output, and an argument or output that shares its memory
    problem: str | None = None  # why there are no outputs: what the kernel raised, or what it returned instead
    refused: bool = False  # the kernel does not take the case: the problem is not its fault
    limits: tuple[str, ...] = ()  # kinds of limits that the problem speaks of: other cases tell whether it refuses
    returned: Mapping[str, Any] = field(default_factory=dict)  # the tensors: holding them keeps their memory in use
    evasions: tuple[tuple[str | None, str], ...] = ()  # what the call did to its judge: an output, if about one; words
    at_return: Mapping[str, Any] = field(default_factory=dict)  # the bytes of each output when the call returned
    effects: tuple[str, ...] = ()  # what the call changed of the process and of what its arguments are, in words
    differs_on_gpu: tuple[str, ...] = ()  # operations that ran in Triton's interpreter and differ on a GPU
    beyond: tuple[str, ...] = ()  # loads and stores of Triton's interpreter beyond all tensors, in words
    operators: tuple[str, ...] = ()  # norm operators of torch that ran inside the kernel
    seconds: float = 0.0  # from the arguments in place to the outputs read, without compilation: most of another run
    rerun_seconds: float = inf  # that another run may take
