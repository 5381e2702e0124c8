"""Compares the outputs of a call with the operator's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.promises import output_dtype
from verify_norm.proof import field as f
from verify_norm.proof.buffers import Memory
from verify_norm.proof.memory import Buffer, NotProved
from verify_norm.proof.shapes import Affine
from verify_norm.proof.shown import Configuration, Proved
from verify_norm.proof.stages import OUTPUTS, Stage, failure, joined
from verify_norm.proof.truth import Truth
from verify_norm.proof.world import World

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


def compare(
    config: Configuration, call: Mapping[str, Any], known: Truth, memory: Memory, world: World, proved: Proved
) -> None:
    """Compare every output with the truth."""
    op = OPS[config.op]
    shapes: dict[str, Any] = {
        t.extent: call["inputs"][t.name]["shape"] for t in op.inputs if t.extent in ("data", "affine")
    }
    for tensor in op.outputs:
        if tensor.name not in call["outputs"] and (tensor is op.outputs[0] or op.forward is not None):
            raise NotProved("meaning", f"{tensor.name} is not returned")
        if tensor.name in call["outputs"]:
            place = call["outputs"][tensor.name]
            buffer, want = memory.buffers[place["buffer"]], known.outputs[tensor.name].reshape(-1)
            if world.shares is not None and buffer.kind == "call":  # a sum over lines, each times its share
                want = f.mul(want, f.total(world.shares, 0))
            dtype = output_dtype(tensor, Contract(), config.dtype, config.dtype)
            try:
                stage = _compared(tensor.name, buffer, want, place, (dtype, shapes.get(tensor.extent)), world)
            except NotProved as error:
                proved.failures.setdefault(tensor.name, error)
            else:
                before = proved.outputs.setdefault(tensor.name, stage)
                proved.outputs[tensor.name] = joined(before, stage)
                proved.degree = max(proved.degree, failure(stage.degree, stage.roots))


def _compared(
    name: str, buffer: Buffer, want: f.Field, place: Mapping[str, Any], expected: tuple[str, Any], world: World
) -> Stage:
    """Return the stage of an output that is written whole, is the operator's, and is rounded once; raises NotProved."""
    dtype, shape = expected
    if buffer.bad.any():
        why, line = world.reasons[int(buffer.bad[buffer.bad > 0][0])]
        what = "reach" if why.startswith("the host") else "meaning"
        raise NotProved(what, f"{why}, and reaches {name}", line)
    if place["offset"] != 0 or len(buffer.v) != want.size or not _contiguous(place):
        raise NotProved("reach", f"{name} is not a contiguous tensor of its own, of {want.size} elements")
    if shape is not None and list(place["shape"]) != list(shape):
        raise NotProved("meaning", f"{name} has another shape than its input")
    if place["dtype"] != dtype:
        raise NotProved("rounding", f"{name} has the type {place['dtype']}, not {dtype}")
    if not buffer.written.all():
        raise NotProved("memory", f"{name} is not written from element {int(np.argmin(buffer.written))} on", buffer.at)
    if (buffer.v != want).any():
        at = int(np.argmax(buffer.v != want))
        raise NotProved("meaning", f"{name} is not the operator's from element {at} on", buffer.at)
    stage = buffer.stage(slice(None))
    if stage.kind == "UNKNOWN":
        raise NotProved("rounding", stage.why, stage.at)
    if stage.kind not in OUTPUTS[name] or (stage.narrow and stage.narrow != SHORT[dtype]):
        raise NotProved("rounding", f"{name} is rounded as {stage.kind}, which has no bound", buffer.at)
    return stage


def _contiguous(place: Mapping[str, Any]) -> bool:
    """Return whether a tensor is contiguous; its first dimension may depend on M."""
    expected: Any = 1
    for size, stride in zip(reversed(place["shape"]), reversed(place["strides"]), strict=True):
        if size != 1 and stride != expected:
            return False
        if expected == 1:
            expected = size
        elif isinstance(size, Affine):  # no stride is known behind it
            expected = None
        else:
            expected = size * expected
    return True
