"""What would make a wrong result right: another option, a weaker contract, or the type that the kernel gave it."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np

from verify_norm.core import contract_fields, judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.known import NAMES, WEAKER, Known, caution, doubtful, write
from verify_norm.core.run import Expected, Output
from verify_norm.testing.arguments import Call
from verify_norm.testing.truth import ratios, truths

ELEMENTS = 2**21  # of x: in a larger case each weaker contract takes a second
TYPES = frozenset(("output", "weight_grad", "stats"))  # fields of a contract that say which type an output has


def of(call: Call, name: str, output: Output, expected: Expected, contract: Contract) -> dict[str, str]:
    """Return one row of the message: "option", "contract" or "help"; nothing where no value and no type is wrong."""
    right = output.ratio is not None and not output.ratio.max(initial=0.0) > 1
    if right and output.dtype == expected.dtype:
        return {}
    if prod(call.spec.shape) > ELEMENTS:
        return {"contract": "not looked for in so large a case: a smaller one tells which weaker contract explains it"}
    if option := "" if right else _option(call, name, output, contract):
        return {"option": option}
    if found := list(_explaining(call, name, output, expected, contract, types_alone=right)):
        least = min(found, key=lambda one: (doubtful(one[1], [call.spec.dtype]), float(judge.allowed(one[2]).mean())))
        return {"contract": _words(*least, expected)}
    if right:
        values = f"its values are right as {expected.dtype}: pass what the kernel returned, or check_dtype=False"
        return {"help": values}
    return {"contract": "no weaker contract that verify-norm knows explains it"}


def _option(call: Call, name: str, output: Output, contract: Contract) -> str:
    """Return the values of an option with which the result is right; "" if there is none."""
    from verify_norm.checks.hints import EPS

    tried = {"weight_offset": (0.0, 1.0), "eps": EPS if call.op.forward is None else ()}
    for option, values in tried.items():
        right = []
        for value in values if option in call.op.attrs else ():
            changed: dict[str, Any] = {option: value}
            expected = truths(replace(call, spec=replace(call.spec, **changed)), contract)[name]
            if expected is not None and _keeps(output, expected):
                right.append(f"{value:g}")
        if right:
            return f"right with {option}={' or '.join(right)}, not with {option}={getattr(call.spec, option):g}"
    return ""


def _explaining(
    call: Call, name: str, output: Output, expected: Expected, contract: Contract, *, types_alone: bool
) -> Iterator[tuple[Known, dict[str, Any], Expected]]:
    """Yield the weaker contracts that the output keeps in this case, their fields, and what they allow.

    One that promises the output's type is joined with the others.
    """
    known = [(one, fields) for one in (*WEAKER, *NAMES.values()) if (fields := one.of(contract, call.op))]
    typed = [(one, fields) for one, fields in known if fields.keys() <= TYPES]
    if types_alone:
        known = typed
    elif expected.dtype != output.dtype:
        known = [*typed, *((one, f | more) for one, f in known for _, more in typed if not f.keys() & more.keys())]
    for one, fields in known:
        allowed = truths(call, contract_fields.make(asdict(contract) | fields))[name]
        if allowed is not None and _keeps(output, allowed):
            yield one, fields, allowed


def _keeps(output: Output, expected: Expected) -> bool:
    """Return whether an output has the type and the values of a contract, and one of them can be judged."""
    seen = judge.judged(expected)
    same = expected.dtype == output.dtype and output.got.shape == expected.value.shape
    return same and bool(seen.any()) and bool(ratios(output.got, expected).max() <= 1)


def _words(known: Known, fields: dict[str, Any], allowed: Expected, expected: Expected) -> str:
    """Return what a contract means, whose it is, how it is declared and what it costs."""
    ulp = FORMATS[expected.dtype].ulp(expected.value)
    after, before = (float(np.median(judge.allowed(one) / ulp)) for one in (allowed, expected))
    whose = f" ({known.whose})" if known.whose else ""
    costs = f"It allows {after:.3g} ULP here, {before:.3g} without it (median)"
    return f'contract="{write(fields)}" explains this case: {known.words}{whose}. {costs}{caution(fields)}'
