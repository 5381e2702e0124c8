"""The special value of a spec: which input holds it, and where."""

from typing import get_args

from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec, Special


def specials(op: Op) -> list[str]:
    """Return the inputs that may hold a special value."""
    return [tensor.name for tensor in op.inputs if tensor.name in get_args(Special) and tensor.extent != "one"]


def special_input(spec: CaseSpec, op: Op) -> Special:
    """Return the name of the input that holds the special value; the sum stands for x in a fused addition's backward.

    >>> from verify_norm.core.ops import OPS
    >>> special_input(CaseSpec((2, 3), special="nan"), OPS["add_rmsnorm_bwd"])
    'residual_out'
    """
    fused = spec.special_in == "x" and all(tensor.name != "x" for tensor in op.inputs)
    return "residual_out" if fused else spec.special_in


def special_words(spec: CaseSpec, op: Op | None = None) -> str:
    """Return the special value and its place in words; "" for a case without one.

    >>> special_words(CaseSpec((2, 3), special="-inf", special_in="dy", special_at="last"))
    '-inf in the last element of dy'
    """
    if spec.special is None:
        return ""
    places = {"rows": "every other row", "row": "all of the middle row"}
    where = places.get(spec.special_at, f"the {spec.special_at} element")
    values, name = spec.special.replace("+", " and "), spec.special_in if op is None else special_input(spec, op)
    return f"{values} in {where} of {name}"


def special_lost(spec: CaseSpec) -> bool:
    """Return whether the spec itself leaves out the input that holds the special value.

    In training a running statistic is moved by (1 − momentum)·old + momentum·new. Where one of these factors is 0, a
    kernel may skip the product or make NaN of it, so such a case has no special value there.

    >>> special_lost(CaseSpec((2, 3), special="nan", special_in="bias", bias=False))
    True
    """
    if spec.special is None:
        return False
    if spec.special_in.startswith("running_"):
        return not spec.running or (spec.training and spec.momentum in (0, 1))
    return getattr(spec, spec.special_in, True) is False
