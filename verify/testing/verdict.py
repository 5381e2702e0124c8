"""The verdict on the results of one call, in the words of a finding, with the contract that would explain it."""

from collections.abc import Iterator, Mapping

import numpy as np

from verify_norm.cases import make
from verify_norm.core import contract_fields, geometry, judge, promises
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.excess import element, excess, unlike
from verify_norm.core.known import declared
from verify_norm.core.op import Op
from verify_norm.core.ops import forward_of
from verify_norm.core.promises import Truths
from verify_norm.core.run import Expected, Output
from verify_norm.testing import explanation
from verify_norm.testing.arguments import Call, Values
from verify_norm.testing.truth import ratios, truths


def promised(contract: object, op: Op) -> Contract:
    """Return the contract that a text stands for, or the Contract itself; raises UsageError for what it cannot read."""
    if isinstance(contract, Contract):
        return contract_fields.checked(contract)
    if not isinstance(contract, str):
        raise UsageError(f'contract: expected a Contract or a text as "xhat=x", got {contract!r:.60}')
    return declared(Contract(), contract, op)


def judged(
    call: Call, passed: Mapping[str, Values | None], expected: Truths, contract: Contract, *, check_dtype: bool = True
) -> dict[str, Output | None]:
    """Return each output with its errors relative to the bound; without `check_dtype` it has the type it must have."""
    found: dict[str, Output | None] = {}
    extents = {tensor.name: tensor.extent for tensor in call.op.outputs}
    for name, one in passed.items():
        truth, got = expected[name], None if one is None else one.values
        if one is None or got is None or truth is None:
            found[name] = None if one is None or got is None else Output(one.dtype, got.shape, got, None)
            continue
        one = _decoded(call, name, one, contract)
        got = one.values
        if extents[name] in ("statistic", "block", "one") and got.size == truth.value.size:
            got = got.reshape(truth.value.shape)
        ratio = ratios(got, truth) if got.shape == truth.value.shape else None
        found[name] = Output(one.dtype if check_dtype else truth.dtype, got.shape, got, ratio)
    return found


def _decoded(call: Call, name: str, one: Values, contract: Contract) -> Values:
    """Return the values of an output of few bits, of the bytes that hold them; other ones as they are."""
    if one.dtype not in ("uint8", "float4_e2m1fn_x2"):
        return one
    import torch

    from verify_norm.running import packed

    raw = torch.from_numpy(one.values).to(torch.uint8)
    dtype, held = packed.values(name, raw, call.spec, call.op, contract)
    return Values(held.double().numpy(), dtype)


def of(call: Call, passed: Mapping[str, Values | None], contract: Contract, check_dtype: bool) -> str:
    """Return what is wrong with the outputs, and with the statistics that a backward was given; "" if nothing is."""
    own = _problems(call, passed, contract, check_dtype)
    summed = call.exact.get("residual_out")  # a fused addition saves the statistics of the sum
    if call.given and (call.op.view != "channels" or call.spec.training):
        sums = {} if summed is None else make.summed_alone(call.op, summed)
        forward = Call(forward_of(call.op), call.spec, {**call.exact, **sums}, {})
        given = [f"given {text}" for text in _problems(forward, call.given, contract, check_dtype)]
    else:
        given = []
    return "\n".join((*given, *own))


def _problems(call: Call, passed: Mapping[str, Values | None], contract: Contract, check_dtype: bool) -> Iterator[str]:
    """Yield what is wrong with each output, a text of some lines."""
    y = passed.get("y")
    expected = promises.promoted(truths(call, contract), None if y is None else y.dtype, contract, call.spec)
    for name, output in judged(call, passed, expected, contract, check_dtype=check_dtype).items():
        truth, one = expected[name], passed[name]
        told = list(_wrong(call, name, output, truth, contract))
        if not told:
            continue
        rows = {"case": _case(call)}
        if one is not None and one.dtype != call.spec.dtype:
            rows["type"] = f"{name} is {one.dtype}, x is {call.spec.dtype}"
        if output is not None and truth is not None and output.ratio is not None:
            rows |= explanation.of(call, name, output, truth, contract)
        yield "\n".join((*told, *(f"  {key:<9} {value}" for key, value in rows.items())))


def _wrong(
    call: Call, name: str, output: Output | None, expected: Expected | None, contract: Contract
) -> Iterator[str]:
    """Yield how an output is wrong: in presence, shape, type and values."""
    yield from unlike(name, output, expected, call.spec)
    if output is None or expected is None or output.ratio is None:
        return
    over = excess(name, output.got, output.ratio, expected, call.spec, call.op, contract)
    if over is not None:
        yield over.message
        yield f"  {'got':<9} {over.got!r}"
        yield f"  {'expected':<9} {over.want!r}"
    looked = judge.judged(expected)
    if not np.isfinite(expected.value).all() and (infinite := _passes_on(call, name)) is not None:
        looked = looked | ~np.isfinite(expected.value)
        hidden = judge.hidden(name, output.got, expected.value, not infinite)
        if hidden.any():
            index = judge.worst(hidden.astype(np.float64))
            yield (
                f"{element(name, index)}: expected {expected.value[index]} because the input is not finite, got "
                f"{output.got[index]:.6g}; {int(hidden.sum())} elements are wrong"
            )
    if output.got.size and not looked.any():
        yield f"{name}: nothing was compared: no element has a finite bound; for example a sum in float32 may overflow"


def _passes_on(call: Call, name: str) -> bool | None:
    """Return whether an input is infinite; None if what is not finite need not reach the output: `checks.nonfinite`."""
    values = [values for values in call.exact.values() if values is not None]
    infinite = any(bool(np.isinf(one).any()) for one in values)
    skipped = name == "amax" or (name.startswith("running_") and call.spec.momentum in (0, 1))
    skipped |= geometry.constant_output(name, call.spec, call.op)
    skipped |= call.op.quantizer is not None  # y or its scale tells it
    if skipped or call.spec.eps == 0 or (infinite and (call.op.stages or call.op.before)):
        return None
    return infinite if infinite or any(bool(np.isnan(one).any()) for one in values) else None


def _case(call: Call) -> str:
    """Return the call in a few words."""
    spec = call.spec
    words = [f"{call.op.name}, x {'×'.join(map(str, spec.shape))} {spec.dtype}"]
    words += [f"weight {spec.weight_dtype}"] * (spec.weight_dtype is not None)
    words += [f"{name} {spec.other_dtype}" for name in call.op.other_inputs[:1] if spec.other_dtype is not None]
    words += [f"residual {spec.residual_dtype}"] * (spec.residual_dtype is not None)
    words += [f"{name} {getattr(spec, name)}" for name in call.op.attrs if name != "normalized_shape"]
    return ", ".join(words)
