"""The channel of an untrusted kernel's answers: every length is checked before it is used, and nothing is unpickled.

An answer is a header, a record for each output, notes in JSON, and the raw bytes of the outputs, in this order. What
does not fit is a MalformedError, never a verdict. Requests go the other way, to a process that need not doubt them.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any

import numpy as np
from annotated_types import Len
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from verify_norm.core.dtypes import FORMATS

MAGIC = b"vn-norm1"
HEADER = struct.Struct("<8sQHHIQ")  # magic, number of the request, count of records, zero, bytes of notes, of outputs
RECORD = struct.Struct("<BBBBIQ8Q")  # output, dtype, rank, whether it is a tensor, zero, bytes, dimensions
RANK = 8  # dimensions of an output, at most
RECORDS = 16  # outputs of a call, at most: no operator has more
NOTES = 2**16  # bytes
BYTES = 2**36  # of the outputs, whatever the arguments are
MARGIN = 2**20  # bytes of outputs that are always allowed
WIDER = 16  # … besides this multiple of the bytes of the arguments: float64 for bfloat16, in four outputs
KINDS = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
SIZES = {name: np.dtype(form.dtype).itemsize for name, form in FORMATS.items()} | KINDS  # bytes of an element
DTYPES = tuple(SIZES)  # by their code

Text = Annotated[str, Len(0, 2000)]
Texts = Annotated[tuple[Text, ...], Len(0, 64)]
Value = bool | int | float | Text | None | tuple[int, ...]


class MalformedError(Exception):
    """An answer that no worker of ours gives; the message says what was expected and what came."""


@checked(config=ConfigDict(extra="forbid", strict=True), frozen=True, slots=True)
class Described:
    """What a worker says of a kernel that it has loaded: only what a signature can say, and no contract.

    `takes` are the names of its arguments, `forward` those of its forward pass, if it has one. The others are fields of
    `verify_norm.loading.domain.Domain`.
    """

    op: Text
    takes: Texts
    forward: Texts | None = None
    autograd: bool = False
    fields: Annotated[tuple[tuple[Text, Value], ...], Len(0, 64)] = ()
    affine: Annotated[tuple[int, ...], Len(0, RANK)] | None = None
    ranks: Annotated[tuple[int, ...], Len(0, RANK)] = ()
    tied: Text = ""
    unset: Texts = ()
    kept: Annotated[tuple[tuple[Text, Text], ...], Len(0, 64)] = ()
    constants: Annotated[tuple[tuple[Text, Value], ...], Len(0, 64)] = ()


@checked(config=ConfigDict(extra="forbid", strict=True), frozen=True, slots=True)
class Notes:
    """What a worker says besides the outputs. Of a call, the fields of `verify_norm.core.run.Called`.

    The judge believes of it only what speaks against the kernel. `evaluated`: a module ran in the call. `kernels`
    answers a request to load; `sandbox`, the answer to the first request, has in words what the sandbox lacks.
    """

    problem: Text | None = None
    refused: bool = False
    limits: Texts = ()
    effects: Texts = ()
    operators: Texts = ()
    differs_on_gpu: Texts = ()
    beyond: Texts = ()
    overlaps: Annotated[tuple[tuple[Text, Text], ...], Len(0, 64)] = ()
    damage: Annotated[tuple[tuple[Text, Text, int, int, Text | None], ...], Len(0, 64)] = ()
    evaluated: bool = False
    kernels: Annotated[tuple[Described, ...], Len(0, 2)] = ()
    sandbox: Texts = ()


_NOTES = TypeAdapter(Notes)


@dataclass(frozen=True, slots=True)
class Raw:
    """One output as it came: the name of its type, its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: the outputs by their number among those of the operator, None for None, and the notes."""

    outputs: Mapping[int, Raw | None] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)


def allowed(arguments: int) -> int:
    """Return how many bytes the outputs may have, given those of the arguments."""
    return min(WIDER * arguments + MARGIN, BYTES)


def packed(number: int, outputs: Mapping[int, Raw | None], notes: Mapping[str, Any]) -> list[bytes | bytearray]:
    """Return an answer to the request of that number, as pieces to send."""
    text = _NOTES.dump_json(Notes(**notes))
    records, pieces = [], []
    for code, raw in outputs.items():
        if raw is None:
            records.append(RECORD.pack(code, 0, 0, 0, 0, 0, *[0] * RANK))
            continue
        shape = (*raw.shape, *[0] * (RANK - len(raw.shape)))
        records.append(RECORD.pack(code, DTYPES.index(raw.dtype), len(raw.shape), 1, 0, len(raw.data), *shape))
        pieces.append(raw.data)
    header = HEADER.pack(MAGIC, number, len(records), 0, len(text), sum(map(len, pieces)))
    return [header, *records, text, *pieces]


def read(receive: Callable[[int], bytearray], number: int, most: int, names: Sequence[str] = ()) -> Answer:
    """Return the answer to the request of that number; raises MalformedError.

    `receive(n)` returns exactly n bytes, or raises. The outputs are those of `names`, at most `most` bytes of them.
    """
    magic, answered, count, zero, notes_size, outputs_size = HEADER.unpack(receive(HEADER.size))
    _require(magic == MAGIC, f"the magic number {MAGIC!r}", bytes(magic))
    _require(answered == number, f"an answer to request {number}", answered)
    _require(count <= min(RECORDS, len(names)), f"at most {min(RECORDS, len(names))} outputs", count)
    _require(zero == 0, "zero in a reserved field", zero)
    _require(notes_size <= NOTES, f"at most {NOTES} bytes of notes", notes_size)
    _require(outputs_size <= most, f"at most {most} bytes of outputs", outputs_size)
    records = [_record(receive(RECORD.size), len(names)) for _ in range(count)]
    codes, sizes = [code for code, *_ in records], [size for *_, size in records]
    _require(len(set(codes)) == count, "each output once", codes)
    _require(sum(sizes) == outputs_size, "the bytes of all records together", outputs_size)
    text = bytes(receive(notes_size))
    try:
        notes = _NOTES.validate_json(text)
    except ValidationError as error:
        raise MalformedError(f"expected notes in our form, got {error.error_count()} errors in them") from None
    outputs = {
        code: None if dtype is None else Raw(dtype, shape, receive(size)) for code, dtype, shape, size in records
    }
    return Answer(outputs, notes)


def _record(data: bytearray, outputs: int) -> tuple[int, str | None, tuple[int, ...], int]:
    """Return an output's number, below `outputs`, the name of its type (None for None), its shape and its bytes."""
    code, dtype, rank, tensor, zero, size, *dims = RECORD.unpack(data)
    _require(code < outputs, f"an output below {outputs}", code)
    _require(tensor <= 1 and zero == 0, "flags of 0 or 1", (tensor, zero))
    _require(dtype < len(DTYPES), f"a dtype below {len(DTYPES)}", dtype)
    _require(rank <= RANK, f"at most {RANK} dimensions", rank)
    _require(not any(dims[rank:]), f"zeros behind {rank} dimensions", dims)
    shape = tuple(dims[:rank])
    if not tensor:
        _require(not (dtype or rank or size), "nothing in an output of None", (dtype, rank, size))
        return code, None, (), 0
    _require(max(shape, default=0) < 2**62, "dimensions below 2^62", shape)  # torch counts in 63 bits
    _require(size == prod(shape) * SIZES[DTYPES[dtype]], f"{prod(shape)} elements of {DTYPES[dtype]}", f"{size} bytes")
    return code, DTYPES[dtype], shape, size


def _require(condition: bool, expected: str, got: object) -> None:
    """Raise MalformedError, which says what was expected and what came, unless the condition holds."""
    if not condition:
        raise MalformedError(f"expected {expected}, got {got!r:.100}")
