"""Every operator as a kernel: its reference, whose results are rounded once; and as a function of eager torch."""

from functools import partial
from inspect import Parameter, Signature

import numpy as np
import torch

from verify_norm.cases import contents, make, placement
from verify_norm.core import ops, promises
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.validation.policies import eager


def exact(name):
    """Return the reference as a kernel; a backward has its forward beside it."""
    forward = OPS[name].forward
    return Kernel("exact", name, run=_run(name), forward_run=_run(forward) if forward else None)


def _run(name):
    op = OPS[name]

    def run(**given):
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        dtype, weight_dtype = (
            next((contents.dtype_name(tensors[one]) for one in names if one in tensors), None)
            for names in (("x", "residual_out"), ("weight", "running_mean", "x", "residual_out"))
        )
        kinds = {out.name: promises.output_dtype(out, Contract(), dtype, weight_dtype) for out in op.outputs}
        offered = given | {key: contents.to_float64(tensor) for key, tensor in tensors.items()}
        with np.errstate(all="ignore"):
            found = make.call(op.reference, offered | promises.roundings(Contract(), dtype, kinds[op.outputs[0].name]))
        rounded = {out.name: _rounded(value, kinds[out.name]) for out, value in zip(op.outputs, found, strict=True)}
        for state in [tensor.name for tensor in op.inputs if tensor.role == "state" and tensor.name in tensors]:
            given[state].copy_(rounded.pop(state))
        return rounded

    return run


def _rounded(value, dtype):
    if value is None:
        return None
    form = FORMATS[dtype]
    beyond = form.name.startswith("float8")  # a quantized y saturates
    value = np.clip(value, -form.largest, form.largest) if beyond else value
    return placement.place(form.round(value), dtype, "contiguous", 0.0, "cpu")


def differentiated(name):
    """Return the backward that torch's autograd makes of the operator in eager torch."""
    function = partial(_eager, ops.base(name))
    forward = OPS[OPS[name].forward]
    names = (*(tensor.name for tensor in forward.inputs), *forward.attrs)
    function.__signature__ = Signature([Parameter(one, Parameter.KEYWORD_ONLY) for one in names])
    return load_directions(function, ops.base(name))[1]


def _eager(name, **given):
    shape = tuple(given["x"].shape)
    fields = {f: given[f] for f in ("eps", "num_groups", "weight_offset", "training", "momentum") if f in given}
    spec = CaseSpec(shape, normalized_ndim=len(given.get("normalized_shape", shape[:1])), **fields)
    return eager.TORCH[name](spec, given)
