"""One axis of an operator's cases: its values by name, and how they are made of a field."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verify_norm.cases.sizes import Classes
from verify_norm.core.spec import CaseSpec

Read = Callable[[CaseSpec], str | None]
Choices = Mapping[str, Sequence[Any]]  # by value


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its values by name, each with the `choices` that give it, of which a case takes one.

    A choice is a number for an axis of the shape, else fields of a CaseSpec. Values of an axis that is not `free`
    follow from those of others: their choice is a tuple of these. `read` returns the value of a case, None if the axis
    does not apply to it. Values `of_memory` say where elements lie. Each value meets those of the axes `beside`, or of
    all axes if that is empty.
    """

    name: str
    choices: Choices
    read: Read
    of_memory: bool = False
    beside: tuple[str, ...] = ()
    free: bool = True


def of_field(field: str, values: Iterable[Any]) -> Axis:
    """Return the axis of a field of CaseSpec, with a value for each of these."""
    return Axis(field, {f"{field} {value}": [{field: value}] for value in values}, _reader(field))


def _reader(field: str) -> Read:
    return lambda spec: f"{field} {getattr(spec, field)}"


def of_classes(numbers: Classes, field: str) -> Axis:
    """Return the axis of the classes of a field's magnitude."""
    choices = {name: [{field: value} for value in examples] for name, examples in numbers.items()}
    return Axis(numbers.of_what, choices, lambda spec: numbers.of(abs(getattr(spec, field))))
