"""What a kernel takes, as text, as --only takes it: "ndim=2,contiguous,N%8=0". `verify_norm.core.nearest` fits cases.

A text has clauses, joined by commas. A case has to meet all of them; one about what an operator lacks says nothing.

    N%8=0   M>=1   N<=8192   ndim=2+3   N=2^k     a size: CLAUSES lists them; + joins values, 2^k is a power of two
    eps=1e-6   eps>=1e-8                          a number
    weight   bias   training=false                what is there, or is not
    dtype=bf16   weight_dtype=x   other_dtype=x   types, also residual_dtype=x
    contiguous   contiguous=x+dy   aligned=x      the memory of all tensors, or of some
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, get_args, get_type_hints

from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, dtype_name
from verify_norm.core.errors import UsageError, one_of
from verify_norm.core.layouts import LAYOUT_FIELDS, layout_field, layout_of
from verify_norm.core.op import Op
from verify_norm.core.ranges import out_of_range
from verify_norm.core.spec import LAYOUTS, CaseSpec

HINTS = get_type_hints(CaseSpec)
Size = Callable[[CaseSpec, Op], int]
SIZES: dict[str, tuple[str, Size]] = {
    "N": ("a row length", geometry.row_length),
    "last": ("a last dimension", lambda spec, op: spec.shape[-1]),
    "C": ("a number of channels", lambda spec, op: spec.shape[min(1, len(spec.shape) - 1)]),
    "M": ("a number of rows", geometry.rows),
    "numel": ("a number of elements", lambda spec, op: prod(spec.shape)),
    "bytes": ("a row of bytes", lambda spec, op: geometry.row_length(spec, op) * FORMATS[spec.dtype].dtype.itemsize),
    "B": ("a first dimension", lambda spec, op: (*spec.shape[: geometry.leads(spec, op)], 1)[0]),
    "G": ("a number of groups", lambda spec, op: spec.num_groups or 1),
    "variance_size": ("a variance_size", geometry.variance_size),
    "ndim": ("a rank", lambda spec, op: len(spec.shape)),
    "normalized_ndim": ("a number of normalized dimensions", lambda spec, op: spec.normalized_ndim),
}
RANKS = ("ndim", "normalized_ndim")
NUMBERS = ("eps", "weight_offset", "momentum", "scale", "dropout_p")
FLAGS = ("weight", "bias", "dresidual_out", "running", "training")
TYPES = ("dtype", "weight_dtype", "other_dtype", "residual_dtype")
BESIDE_X = TYPES[1:]  # a type that is "x" is that of x
WORDS: dict[str, tuple[str, ...]] = {name: get_args(HINTS[name]) for name in ("modulation", "rotary")}
MEMORY: dict[str, tuple[str, ...]] = {  # the layouts that the tensors may have
    "contiguous": ("contiguous", "offset", "own"),
    "unit_stride": ("contiguous", "offset", "own", "row_strided", "expanded", "sequence_slice", "inner_slice", "far"),
    "aligned": tuple(layout for layout in LAYOUTS if layout != "offset"),
}
CLAUSES: dict[str, str] = {
    "ndim": "rank of x: ndim=2, ndim<=3, ndim=2+3",
    "normalized_ndim": "how many of the last dimensions are normalized: normalized_ndim=1",
    "N": "elements that are normalized together, such as the length of a row: N%8=0, N<=8192, N=1024+4096, N=2^k",
    "M": "rows, groups of all samples, or channels: M>=1, M%4=0",
    "last": "last dimension of x: last%8=0",
    "B": "first dimension of x: B>=1",
    "C": "channels of x: C%32=0",
    "G": "groups of channels: G=8, G<=32",
    "numel": "elements of x: numel>=1",
    "variance_size": "elements of a row that make the statistic of a partial norm: variance_size%2=0",
    "bytes": "N times the bytes of an element of x: bytes%16=0",
    "eps": "what is added under the root: eps=1e-6, eps>=1e-8, eps=1e-5+1e-6",
    "weight_offset": "what is added to the weight: weight_offset=0",
    "momentum": "of running statistics: momentum=0.1",
    "scale": "of a quantized y: scale=1",
    "dropout_p": "the probability with which a dropout drops an element: dropout_p=0.1, dropout_p<0.5",
    "modulation": "scale and shift have a row a sample, or the shape of x: modulation=sample, modulation=token",
    "rotary": "a rotation turns the whole row, or a first part of it: rotary=full, rotary=half+quarter",
    "weight": "there is a weight; weight=false: there is none",
    "bias": "there is a bias; bias=false: there is none",
    "dresidual_out": "there is a gradient of residual_out; or =false",
    "running": "there are running statistics; or =false",
    "training": "BatchNorm in training; or =false",
    "dtype": "type of x: dtype=bf16, dtype=fp16+bf16",
    "weight_dtype": "type of weight and bias: weight_dtype=x is that of x, weight_dtype=fp32",
    "other_dtype": "type of cos and sin, or of scale and shift: other_dtype=x is that of x, other_dtype=fp32",
    "residual_dtype": "type of a forward's residual: residual_dtype=x is that of x, residual_dtype=fp32",
    "contiguous": "tensors are contiguous: all, or some: contiguous=x+dy",
    "unit_stride": "neighbours in the last dimension are neighbours in memory: all tensors, or unit_stride=x",
    "aligned": "tensors begin at a multiple of 16 bytes: all, or aligned=x",
}
_PARTS = re.compile(r"([A-Za-z_]\w*)(%[1-9]\d{0,8}=|<=|>=|=|<|>)?(.*)")
EXAMPLE = "ndim=2,contiguous,weight,dtype=bf16,N%8=0,eps=1e-6"
POWERS = "2^k"


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition on a case: a name of CLAUSES, a relation ("=", "<=", …, "%" with `divisor`), and its values."""

    name: str
    relation: str
    values: tuple[Any, ...]
    divisor: int = 1

    def holds(self, spec: CaseSpec, op: Op) -> bool:
        """Return whether a case meets the condition, or the operator lacks what it is about."""
        if not applies(self.name, op):
            return True
        if self.name in MEMORY:
            return all(layout_of(spec, name) in MEMORY[self.name] for name in self.tensors(op))
        if self.name in SIZES:
            return self.met(SIZES[self.name][1](spec, op))
        if self.name in BESIDE_X:
            return (getattr(spec, self.name) or spec.dtype) in [spec.dtype if v == "x" else v for v in self.values]
        return self.met(getattr(spec, self.name))

    def met(self, value: Any) -> bool:
        """Return whether the relation holds of a value."""
        if self.relation == "%":
            return bool(value % self.divisor == 0)
        if self.relation == "=":
            return value in self.values or (POWERS in self.values and value.bit_count() == 1)
        (bound,) = self.values
        return bool({"<=": value <= bound, ">=": value >= bound, "<": value < bound, ">": value > bound}[self.relation])

    def tensors(self, op: Op) -> list[str]:
        """Return the tensors of the operator whose memory the clause is about: those named, else all."""
        laid = [t.name for t in op.inputs if op.user_defined or layout_field(t.name) != "other_layout"]
        return [name for name in laid if not self.values or name in self.values]

    def __str__(self) -> str:
        """Return the text of the clause."""
        if self.relation == "%":
            return f"{self.name}%{self.divisor}=0"
        if not self.values or (self.name in FLAGS and self.values[0]):
            return self.name
        return f"{self.name}{self.relation}{'+'.join(map(_text, self.values))}"

    @property
    def words(self) -> str:
        """The condition as a reader of a verdict sees it."""
        if self.name in FLAGS:
            noun = {"running": "running statistics", "training": "training"}.get(self.name, f"a {self.name}")
            return noun if self.values == (True,) else f"no {noun.removeprefix('a ')}"
        if self.name in MEMORY:
            whose = f"{' and '.join(self.values)}" if self.values else "tensors"
            return f"{'unit-stride' if self.name == 'unit_stride' else self.name} {whose}"
        if self.name == "dtype":
            return " or ".join(self.values)
        text = str(self).replace("+", " or ")
        return re.sub(r"(%|<=|>=|=|<|>)", r" \1 ", text).replace("  ", " ")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("e+", "e")  # + joins values


def applies(name: str, op: Op) -> bool:
    """Return whether an operator has what a clause of that name is about."""
    inputs = {t.name for t in op.inputs}
    if name in ("weight_offset", "momentum", "training", "dropout_p", "variance_size"):
        return name in op.attrs
    if name in ("C", "G"):
        return op.view != "rows" if name == "C" else "num_groups" in op.attrs
    if name == "running":
        return "running_mean" in inputs
    if name == "normalized_ndim":
        return op.view == "rows"
    if name == "scale":
        return op.scaled
    if name == "modulation":
        return any(tensor.extent == "sample" for tensor in op.inputs)
    if name == "rotary":
        return any(tensor.extent == "position" for tensor in op.inputs)
    if name == "other_dtype":
        return bool(op.other_inputs)
    if name == "residual_dtype":
        return op.takes_residual
    return name in inputs if name in ("weight", "bias", "dresidual_out") else True


@lru_cache(maxsize=64)
def read(text: str) -> tuple[Clause, ...]:
    """Return the clauses of a text; raises UsageError for the first one that cannot be read.

    >>> [str(clause) for clause in read("ndim = 2, N % 8 = 0, eps=1e-6, weight")]
    ['ndim=2', 'N%8=0', 'eps=1e-06', 'weight']
    """
    return tuple(_clause("".join(part.split())) for part in (text.split(",") if text.strip() else ()))


def checked(text: str) -> str:
    """Return the text, without spaces, if it can be read; raises UsageError as `read`."""
    read(text)
    return "".join(text.split())


def joined(*texts: str) -> str:
    """Return the clauses of all texts, each once.

    >>> joined("N%8=0,weight", "", "weight,eps=1e-6")
    'N%8=0,weight,eps=1e-6'
    """
    return ",".join(dict.fromkeys(part for text in texts for part in text.split(",") if part))


# What clauses are called elsewhere.
MEANT = {"num_groups": "G", "groups": "G", "channels": "C", "batch": "B", "batch_size": "B", "rows": "M", "tokens": "M"}
MEANT |= dict.fromkeys(("columns", "cols", "hidden_size", "hidden", "features", "normalized_shape"), "N")
MEANT |= {"rank": "ndim", "dim": "ndim", "dims": "ndim", "x_dtype": "dtype", "types": "dtype", "dtypes": "dtype"}


def _clause(text: str) -> Clause:
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise UsageError(f"only: expected clauses such as {EXAMPLE}, got {text!r:.60}")
    name, relation, rest = parts[1], parts[2] or "", parts[3]
    if name in MEANT:
        raise UsageError(
            f"unknown clause of --only {name!r} (did you mean {MEANT[name]}?); verify-norm show only has all"
        )
    one_of("clause of --only", name, CLAUSES)
    values = tuple(rest.split("+")) if rest else ()
    if name in MEMORY:
        known = [n.removesuffix("_layout") for n in LAYOUT_FIELDS if n != "other_layout"]
        made = Clause(name, "=", tuple(one_of(f"tensor of {name}", v, known) for v in values))
        right = (relation == "=" and bool(values)) or text == name
    elif name in FLAGS:
        made = Clause(name, "=", (rest not in ("false", "none"),))
        right = text == name or (relation == "=" and rest in ("true", "false", "none"))
    elif name in WORDS:
        made, right = Clause(name, "=", values), relation == "=" and bool(values) and {*values} <= {*WORDS[name]}
    elif name in TYPES:
        found = [value if value == "x" and name in BESIDE_X else dtype_name(value) for value in values]
        made, right = Clause(name, "=", tuple(found)), relation == "=" and bool(values)
    elif relation.startswith("%"):
        made, right = Clause(name, "%", (0,), int(relation[1:-1])), rest == "0" and name in SIZES
    else:
        numbers = tuple(_number(value, whole=name in SIZES) for value in values)
        several = relation == "=" or (len(numbers) == 1 and POWERS not in numbers)
        right = (
            bool(relation and numbers) and None not in numbers and several and (name not in RANKS or 0 not in numbers)
        )
        made = Clause(name, relation, numbers)
    if not right:
        raise UsageError(f"only: cannot read {text!r:.60}; expected {name}, {CLAUSES[name]}")
    if name in NUMBERS and relation == "=":
        for value in made.values:
            if refused := out_of_range(name, value):
                raise UsageError(f"only: {refused}")
    return made


def _number(text: str, *, whole: bool) -> Any:
    """Return the number in a text; None if there is none that a case can have."""
    if whole and text == POWERS:
        return text
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return None
    return value if 0 <= value < 2**53 else None


def words(text: str) -> str:
    """Return what a kernel takes, as the verdict says it.

    >>> words("ndim=2,contiguous,weight,bias,dtype=bf16,N%8=0,eps=1e-6")
    '2-D contiguous input, a weight, a bias, bfloat16, N % 8 = 0, eps = 1e-06'
    """
    clauses = tuple(dict.fromkeys(read(text)))  # weight_offset=1 and weight_offset=1.0 are one
    ranks = [c for c in clauses if c.name == "ndim" and c.relation == "="]
    whole = [c for c in clauses if c.name == "contiguous" and not c.values]
    first = [" or ".join(f"{n}-D" for n in c.values) for c in ranks] + ["contiguous"] * bool(whole)
    rest = [clause.words for clause in clauses if clause not in (*ranks, *whole)]
    return ", ".join([" ".join([*first, "input"])] * bool(first) + rest)


def dtypes(text: str, offered: Iterable[str]) -> tuple[str, ...]:
    """Return those of the offered types of x that meet the clauses."""
    asked = [clause for clause in read(text) if clause.name == "dtype"]
    return tuple(name for name in offered if all(clause.met(name) for clause in asked))


def refuse_foreign(text: str, ops: Iterable[Op]) -> None:
    """Raise UsageError for a clause about what none of these operators has."""
    ops = list(ops)
    for clause in read(text):
        if not any(applies(clause.name, op) for op in ops):
            known = ", ".join(name for name in CLAUSES if any(applies(name, op) for op in ops))
            raise UsageError(f"only: {clause}: {ops[0].name} has no {clause.name}; its clauses are {known}")


def refusal(text: str, spec: CaseSpec, op: Op) -> str | None:
    """Return why a case is not one that the kernel takes; None if it is."""
    missed = next((clause for clause in read(text) if not clause.holds(spec, op)), None)
    return None if missed is None else f"it takes {missed.words} only"


def of_constants(fixed: Mapping[str, Any]) -> str:
    """Return the clauses for constants that a callable gets in every case.

    >>> of_constants({"eps": 1e-6, "bias": None, "training": True})
    'eps=1e-06,bias=false,training'
    """
    found = []
    for name, value in fixed.items():
        if name in FLAGS:
            found.append(str(Clause(name, "=", (value is not None and value is not False,))))
        elif name in NUMBERS or name == "num_groups":
            found.append(f"{'G' if name == 'num_groups' else name}={_text(value)}")
    return ",".join(found)
