"""The cases that a callable takes, derived from its arguments: other cases are fitted, or left out with a reason."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any

from verify_norm.cases.corners import corners
from verify_norm.core import nearest, only
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.errors import UsageError, one_line, quoted
from verify_norm.core.geometry import thawed
from verify_norm.core.kernel import Kernel
from verify_norm.core.layouts import without_shared_memory
from verify_norm.core.op import Op, View
from verify_norm.core.ops import OPS
from verify_norm.core.serial import spec_text
from verify_norm.core.spec import CaseSpec, having
from verify_norm.core.specials import special_lost
from verify_norm.loading.bind import Binding, Candidate
from verify_norm.loading.targets import again

ELEMENTS = 2**17  # of x, about: a module of many features gets fewer rows
WORDS: dict[str, dict[Any, str]] = {  # field: why a case with another value than this is left out
    "bias": {False: "it takes no bias", True: "it always has a bias"},
    "weight": {False: "it takes no weight", True: "it always has a weight"},
    "weight_offset": {0.0: "it has no argument for what is added to weight; --bind weight_offset=1 if it adds 1"},
    "scale": {1.0: "it takes no scale"},
    "modulation": {
        "sample": "its scale and shift have one row a sample",
        "token": "its scale and shift have x's shape",
    },
    "rotary": {"full": "it rotates whole rows"},
    "frozen": {(): "only a backward by torch's autograd has frozen inputs, and not all of them"},
    "dresidual_out": {False: "it takes no gradient of residual_out"},
    "running": {False: "it has no running statistics", True: "it always has running statistics"},
    "normalized_ndim": {1: "it normalizes one dimension"},
    "special_in": {"x": "it does not take the input that holds the special value"},
}
# What a function does without an argument of this name: the values of fields that all cases have then.
FIXED: dict[str, dict[str, Any]] = {
    "weight_offset": {"weight_offset": 0.0},
    "momentum": {"momentum": 0.1},  # torch's default
    "training": {"training": True},
    "normalized_shape": {"normalized_ndim": 1},
    "scale": {"scale": 1.0},
}


@dataclass(frozen=True, slots=True)
class Domain:
    """The cases that a callable takes. It is pickled for the kernel's process, like the rest of a Kernel.

    `fields` are values that fields of CaseSpec must have; `affine` is the shape of an instance's weight; `ranks` are
    the allowed ranks of x, any if empty. `tied`: a bias "follows" the weight, or "needs" one, or is "untold": then only
    a weight tells its type. An argument `written` in place must not have elements that share memory. At least one of
    the `differentiated` inputs is not frozen. `own` is the `unsupported` of the kernel's record. `unset` names the
    arguments that are None in every case, since the operator does not have them, `kept` others that keep a value, and
    `constants` values of the operator that do. `only` says what else of the operator `op` it takes.
    """

    view: View = "rows"
    fields: tuple[tuple[str, Any], ...] = ()
    affine: tuple[int, ...] | None = None
    ranks: tuple[int, ...] = ()
    tied: str = ""
    written: tuple[str, ...] = ()
    differentiated: tuple[str, ...] = ()
    own: Callable[[CaseSpec], str | None] | None = None
    unset: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, Any], ...] = ()
    op: str = ""
    only: str = ""

    def fit(self, spec: CaseSpec) -> CaseSpec:
        """Return the nearest case in the domain: the case itself, if it is.

        >>> Domain(fields=(("eps", 1e-6),), affine=(64,)).fit(CaseSpec((2, 3, 8))).shape
        (2, 3, 64)
        """
        fitted = self._fitted(spec)
        return nearest.fit(self.only, fitted, OPS[self.op]) if self.only else fitted

    def _fitted(self, spec: CaseSpec) -> CaseSpec:
        held = dict(self.fields)
        shape, inner = spec.shape, spec.normalized_ndim
        if self.view == "rows":
            normalized = shape[len(shape) - inner :] if self.affine is None else self.affine
            if held.get("normalized_ndim") == 1 and self.affine is None:
                normalized = (prod(normalized),)
            lead = shape[: len(shape) - inner]
            held["shape"] = (*(lead if self.affine is None else _fewer(lead, prod(normalized))), *normalized)
            held["normalized_ndim"] = len(normalized)
        else:
            held["shape"] = self._channels(spec, held)
        fitted = having(without_shared_memory(spec, self.written), held)
        if self.tied == "untold":
            fitted = fitted if fitted.weight else replace(fitted, weight_dtype=None)
        elif self.tied:
            fitted = having(fitted, {"bias": fitted.weight and (fitted.bias or self.tied == "follows")})
        if special_lost(fitted):
            held = {"special_in": "x"} if prod(fitted.shape) else {"special": None}  # an x without elements holds none
            fitted = replace(fitted, **held)
        return thawed(fitted, self.differentiated)

    def _channels(self, spec: CaseSpec, held: dict[str, Any]) -> tuple[int, ...]:
        """Return a shape (B, C, *spatial) with an allowed number of channels and an allowed rank."""
        if len(spec.shape) < 2:
            return spec.shape  # the operator refuses it
        samples, channels, *space = spec.shape
        if self.affine is not None:
            channels = prod(self.affine)
        elif "num_groups" in held:
            channels = held["num_groups"] * max(channels // (spec.num_groups or 1), 1)
        if self.ranks and len(spec.shape) not in self.ranks:
            rank = self.ranks[-1] - 2
            space = [*space[: rank - 1], prod(space[rank - 1 :])] if len(space) > rank else space
            space += [1] * (rank - len(space))
        if self.affine is not None:
            (samples,) = _fewer((samples,), channels * prod(space))
        return (samples, channels, *space)

    def unsupported(self, spec: CaseSpec) -> str | None:
        """Return why the callable does not take the case; None if it does, with any number of rows."""
        if self.only and (reason := only.refusal(self.only, spec, OPS[self.op])) is not None:
            return reason
        fitted = self._fitted(spec)
        inner = spec.normalized_ndim if self.view == "rows" else len(spec.shape) - 1
        if self.affine is not None and spec.shape[len(spec.shape) - inner :] == fitted.shape[-inner:]:
            fitted = replace(fitted, shape=spec.shape)  # `fit` leaves rows out to save time alone
        for name in (f.name for f in fields(CaseSpec)):
            value = getattr(fitted, name)
            if value != getattr(spec, name):
                return WORDS.get(name, {}).get(value, f"it takes {name} = {value} only")
        return self.own(spec) if self.own else None


@dataclass(frozen=True, slots=True)
class Own:
    """The `unsupported` of a kernel's record, whose answers are checked.

    Another process finds what the kernel's callable declares at its target: so a lambda can be sent too.
    """

    function: Callable[[CaseSpec], str | None] = field(repr=False)  # the journal's name holds the rest
    target: str
    declared: bool

    def __call__(self, spec: CaseSpec) -> str | None:
        """Return why the kernel does not take the case; raises UsageError for other answers, and for exceptions."""
        try:
            reason: object = self.function(spec)
        except Exception as error:
            case = spec_text(self.target, spec)
            raise UsageError(f"unsupported of {self.target} raises {one_line(error)}, in the case {case}") from error
        if reason is None or (isinstance(reason, str) and reason.strip()):
            return reason
        words = f"expected a reason in words, or None, got {quoted(reason)}"
        raise UsageError(f"unsupported of {self.target}: {words}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process, which has imported the target, makes this anew."""
        return (_declared, (self.target,)) if self.declared else (Own, (self.function, self.target, False))


def _declared(target: str) -> Own:
    declared = declaration(again(target))
    assert declared is not None
    assert declared.unsupported is not None
    return Own(declared.unsupported, target, True)


DECLARED: dict[str, tuple[Callable[[Any], bool], str]] = {  # of a record: whether a value is right, what is
    "op": (lambda value: isinstance(value, str), "the name of an operator"),
    "contract": (lambda value: isinstance(value, Contract), "a verify_norm.Contract"),
    "bind": (lambda value: isinstance(value, str), "a text, as --bind takes it"),
    "only": (lambda value: isinstance(value, str), "a text, as --only takes it"),
    "forward": (lambda value: value is None or isinstance(value, str), "the name of a kernel"),
    "unsupported": (lambda value: value is None or callable(value), "a function of a case"),
}


def declaration(target: Any) -> Kernel | None:
    """Return the record that a callable declares by `verify_norm.kernel`; None if it declares none.

    Raises UsageError if a field of it has a value of another type.
    """
    declared = getattr(target, "__verify_norm__", None)
    return right(declared) if isinstance(declared, Kernel) else None


def right(record: Kernel) -> Kernel:
    """Return the record; raises UsageError for its first field with a value of another type."""
    for name, (accepts, expected) in DECLARED.items():
        if not accepts(value := getattr(record, name)):
            raise UsageError(f"the declaration of {record.name}: {name}: expected {expected}, got {quoted(value)}")
    return record


def refuse_only(text: str, ops: Sequence[Op]) -> None:
    """Raise UsageError for clauses of --only that none of the operators knows, or that no case can meet."""
    only.refuse_foreign(text, ops)
    refuse_impossible(text, ops)


def refuse_impossible(text: str, ops: Sequence[Op]) -> None:
    """Raise UsageError for clauses that no case of the operators can meet together."""
    nearest.refuse_impossible(text, ops, lambda op: corners(op, KERNEL_DTYPES))


def _fewer(lead: tuple[int, ...], each: int) -> tuple[int, ...]:
    """Return the leading dimensions; one dimension of fewer rows, if they hold too many rows of `each` elements."""
    rows = max(ELEMENTS // max(each, 1), 3)
    return lead if prod(lead) <= rows else (rows,)


def of_function(candidate: Candidate, binding: Binding, *, autograd: bool) -> Domain:
    """Return the domain of a function, from its arguments; raises UsageError if it lacks an essential one."""
    name, op = candidate.name, candidate.op
    takes, inputs, backward = {*binding.sources, *binding.fixed}, {t.name: t for t in op.inputs}, op.forward is not None
    for n, tensor in inputs.items():
        if not tensor.optional and tensor.extent in ("data", "sample", "position") and n not in takes:
            bind = f"--bind {n}=<its argument>"
            raise UsageError(f"{name} has no argument for {n}; {op.name} offers {', '.join(inputs)}: {bind}")
    if not backward or binding.sources:
        for n, example in (("eps", "1e-5"), ("num_groups", "8"), ("variance_size", "64"), ("dropout_p", "0.1")):
            if n in op.attrs and n not in takes and (n in ("variance_size", "dropout_p") or "rstd" not in takes):
                rest = f", or pass it to **{binding.rest} by --bind {n}={n}" if binding.rest else ""
                raise UsageError(f"{name} has no argument for {n}: give its value, such as --bind {n}={example}{rest}")
    held: dict[str, Any] = {n: v is not None if n in ("weight", "bias") else v for n, v in binding.fixed.items()}
    for n in ("weight", "bias", "dresidual_out"):
        if n in inputs and n not in takes:
            held[n] = backward and n == "bias"  # a backward needs no bias, only whether there is one
    if op.view == "channels" and "running_mean" not in takes:
        held |= {"running": False, "training": True}
    for n, values in FIXED.items():
        if n in (*op.attrs, *inputs) and n not in takes:
            held |= values
    if not autograd:
        held["frozen"] = ()
    untold = backward and "bias" in inputs and "bias" not in takes
    tied = "untold" if untold else ""
    constants = tuple((n, value) for n, value in binding.fixed.items() if n in (*op.attrs, *inputs))
    flag = any(one.source == "weight_offset" and one.form is bool for one in binding.arguments)
    return Domain(
        op.view,
        tuple(held.items()),
        tied=tied,
        unset=binding.unset,
        kept=binding.kept,
        constants=constants,
        only="weight_offset=0+1" * (flag and "weight_offset" not in binding.fixed),
    )
