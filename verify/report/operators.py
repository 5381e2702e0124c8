"""An operator in words, for `verify-norm show` and the site: the shape and type of each tensor, its reference."""

import inspect
import re
import sys

from verify_norm import reference
from verify_norm.core.op import Extent, Op, Tensor, View
from verify_norm.core.ops import OPS
from verify_norm.reference.stages.quantize import BLOCKS

SHAPES: dict[View, dict[Extent, str]] = {  # by what is normalized together
    "rows": {"data": "(…, *normalized_shape)", "affine": "normalized_shape", "statistic": "(M,), one of each row"},
    "groups": {"data": "(B, C, *spatial)", "affine": "(C,)", "statistic": "(B, G), one of each group"},
    "channels": {"data": "(B, C, *spatial)", "affine": "(C,)", "statistic": "(C,), one of each channel"},
}


def shape(tensor: Tensor, op: Op) -> str:
    """Return the shape of an operator's tensor in words.

    >>> shape(OPS["layernorm_bwd"].inputs[-1], OPS["layernorm_bwd"])
    '(M,), one of each row'
    """
    if tensor.extent == "statistic" and op.view == "groups" and "num_groups" not in op.attrs:
        return "(B, C), one of each channel of each sample"
    if tensor.extent == "sample":
        return "(B, *normalized_shape), one of each sample; or as x, of each token"
    if tensor.extent == "block":
        length = BLOCKS.get(op.quantizer.granularity)
        return f"(M, K), one of each {'row' if length is None else f'{length} elements of a row'}"
    if tensor.extent == "position":
        return "(…, R/2) for x (…, H, N), one row of each token; (M, R/2) for x (M, N)"
    return "(1,)" if tensor.extent == "one" else SHAPES[op.view][tensor.extent]


def dtype(tensor: Tensor) -> str:
    """Return the type of an operator's tensor in words, as the strict contract has it.

    >>> [dtype(tensor) for tensor in (OPS["add_rmsnorm_fwd"].inputs[1], OPS["add_rmsnorm_fwd"].outputs[1])]
    ['as x, or float32', 'as residual']
    """
    if tensor.dtype == "weight":
        return "as the parameter" if tensor.role == "output" else "as x, or another one"
    if tensor.dtype == "other":
        return f"as {tensor.name.removeprefix('d')}" if tensor.role == "output" else "as x, or float32"
    if tensor.dtype == "residual":
        return "as residual" if tensor.role == "output" else "as x, or float32"
    return "as x" if tensor.dtype == "x" else tensor.dtype


def described(op: Op) -> str:
    """Return what the operator computes and what its arguments are, from the docstring of its reference.

    Names of operators stand where it names other references. A chain has the derivation of each of its stages, and the
    command that shows that of its norm; without stages it has the derivation of its norm.

    >>> described(OPS["groupnorm_bwd"]).splitlines()[-1]
    '    as in `groupnorm_fwd`; the reference computes the statistics again from x.'
    >>> described(OPS["qk_norm_rope_fwd"]).splitlines()[-1]
    'The norm is that of rmsnorm_fwd, which verify-norm show rmsnorm_fwd explains.'
    """
    names = {_place(other): name for name, other in OPS.items()}
    own = op.reference.__module__.rpartition(".")[2]

    def named(found: re.Match[str]) -> str:
        return f"`{names.get((found[1] or own, found[2]), found[0].strip('`'))}`"

    if op.chain is not None:
        stages = [type(stage).__module__ for stage in op.chain.all_stages]
        modules = stages or [f"{reference.__name__}.{op.chain.norm}"]
        derived = [inspect.getdoc(sys.modules[module]) or "" for module in modules]
        norm = f"{op.chain.norm}_{'bwd' if op.forward else 'fwd'}"
        if stages and norm in OPS:
            derived.append(f"The norm is that of {norm}, which verify-norm show {norm} explains.")
        return re.sub(r"`([^`]+)`", r"\1", "\n\n".join(derived))
    text = re.split(r"\n\n(?:(?:Returns|Raises|Notes|Examples)\n---|>>> )", inspect.getdoc(op.reference) or "")[0]
    return re.sub(r"`(?:(\w+)\.)?(\w+)`", named, text)


def _place(op: Op) -> tuple[str, str]:
    return op.reference.__module__.rpartition(".")[2], op.reference.__name__
