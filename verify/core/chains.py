"""Operators that are a chain: their records, and the text of a user's own, such as "add | rmsnorm | modulate".

    [add, or gate |] layernorm, rmsnorm(weight_offset=1), l2norm or groupnorm [| silu | gate(sigmoid) | modulate …]
        [| quantize(e4m3fn, per_token)]

Stages stand in the order in which they are applied. `STAGES` has their names; a stage with tensors of its own may occur
once. A text is the name of both directions; "_fwd" or "_bwd" behind it is that of one, as of any operator.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from verify_norm.core.errors import UsageError, alternatives, one_of, quoted, texts
from verify_norm.core.op import Op, Tensor, View
from verify_norm.core.tensors import (
    BIAS,
    DRESIDUAL_OUT,
    DX,
    DY,
    GATE,
    GLOBAL_SCALE,
    MASK,
    MEAN,
    MODULATION,
    OF_FEW_BITS,
    RESIDUAL,
    RESIDUAL_OUT,
    ROTATION,
    RSTD,
    SAVED_MEAN,
    SAVED_RSTD,
    SAVED_SUM,
    SCALE_OF_Y,
    SCALE_UB,
    WEIGHT,
    Y_SCALE,
    X,
    Y,
    gradient,
)
from verify_norm.reference.bases import BASES
from verify_norm.reference.chain import Chain, Function
from verify_norm.reference.stages.activate import Activate
from verify_norm.reference.stages.block_scale import BINADES
from verify_norm.reference.stages.dropout import Dropout
from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.modulate import Modulate
from verify_norm.reference.stages.quantize import GRANULARITIES, SCALE_TYPES, Quantize
from verify_norm.reference.stages.rotate import Rotate
from verify_norm.reference.stages.stage import Stage

BESIDE_X = (RESIDUAL, MASK, WEIGHT, BIAS, GATE, *MODULATION, *ROTATION, Y_SCALE, SCALE_UB, GLOBAL_SCALE, MEAN, RSTD)
TENSORS = {tensor.name: tensor for tensor in BESIDE_X}
QUANTIZED = {
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "int8": "int8",
    "e2m1": "float4_e2m1fn",
}  # the types of y, as `quantize` has them
WIDE = ("float8_e4m3fn", "float8_e5m2", "int8")  # those whose scales may be float32
VIEWS: dict[str, View] = {"groupnorm": "groups"}  # the others normalize rows
STAGES: dict[str, dict[str, Stage]] = {  # by name, and by what stands in parentheses; "" where nothing does
    "silu": {"": Activate("silu")},
    "gelu": {"": Activate("gelu")},
    "sigmoid": {"": Activate("sigmoid")},
    "gate": {"": Gate("silu"), "silu": Gate("silu"), "sigmoid": Gate("sigmoid"), "gelu": Gate("gelu")},
    "modulate": {"": Modulate()},
    "quantize": {},  # `_quantize` reads what stands in its parentheses
    "rotate": {"": Rotate("neox"), "neox": Rotate("neox"), "interleaved": Rotate("interleaved")},
}
EXAMPLE = "add | rmsnorm(weight_offset=1) | modulate"
QUANTIZED_EXAMPLE = "rmsnorm | quantize(e4m3fn, per_token)"
PART = re.compile(r"\s*(\w+)\s*(?:\(\s*([^()]*?)\s*\))?\s*")


class ParsedChain(NamedTuple):
    """A chain that a text names, its text in one spelling, and the constants that it gives to `--bind`."""

    chain: Chain
    text: str
    constants: str


def operators(name: str, chain: Chain, summary: str) -> tuple[Op, ...]:
    """Return the forward and the backward operator of a chain; what is quantized has no backward."""
    tensors = tuple(TENSORS[one] for one in chain.tensors)
    statistics = tuple(TENSORS[one] for one in chain.statistics)
    saved = (SAVED_MEAN, SAVED_RSTD) if chain.base.centred else (SAVED_RSTD,)
    summed = (DY, DRESIDUAL_OUT, SAVED_SUM) if chain.adds else (DY, X)

    def record(
        way: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], forward: str | None, words: str
    ) -> Op:
        return Op(
            f"{name}_{'bwd' if forward else 'fwd'}",
            inputs,
            outputs,
            chain.options,
            Function(chain, way),
            Function(chain, f"{way}_error"),
            forward=forward,
            view=VIEWS.get(chain.norm, "rows"),
            summary=words,
            chain=chain,
            centred=chain.base.centred,
            averages=chain.base.averages,
        )

    sum_in, sum_out = ((X, RESIDUAL), (Y, RESIDUAL_OUT)) if chain.adds else ((X,), (Y,))
    if chain.quantizer is not None:
        scale = replace(SCALE_OF_Y, dtype=chain.quantizer.scale_dtype)  # type: ignore[arg-type]
        made = (OF_FEW_BITS[chain.quantizer.dtype], *[scale] * len(chain.scales), *sum_out[1:], *statistics)
        return (record("forward", (*sum_in, *tensors), made, None, summary),)
    gradients = (DX, *(gradient(TENSORS[one]) for one in chain.differentiated))
    shared = chain.adds and chain.dropout is None
    words = f"the gradients of {name}_fwd" + "; dx is also the gradient of residual" * shared
    return (
        record("forward", (*sum_in, *tensors), (*sum_out, *statistics), None, summary),
        record("backward", (*summed, *tensors, *saved), gradients, f"{name}_fwd", words),
    )


def chain(*stages: str) -> str:
    """Return the name of the operator that applies these stages in their order, for `op=` and `--op`.

    Raises UsageError, in one line, for an unknown stage or an impossible order.

    Examples
    --------
    >>> chain("add", "rmsnorm(weight_offset=1)", "modulate")
    'add | rmsnorm(weight_offset=1) | modulate'
    """
    for stage in stages:
        texts(stage=stage)
    text = " | ".join(stage.strip() for stage in stages)
    parse(text)
    return text


def is_chain(text: str) -> bool:
    """Return whether a text is that of a chain, right or wrong, rather than an operator's name.

    >>> is_chain("rmsnorm | silu"), is_chain("rmsnorm(weight_offset=1)"), is_chain("rmsnorm")
    (True, True, False)
    """
    return "|" in text or "(" in text


def parse(text: str) -> ParsedChain:
    """Return the chain that a text names, which may end in a direction; raises UsageError if it names none.

    >>> parse("add|rmsnorm( weight_offset = 1 )|gate(sigmoid)")[1:]
    ('add | rmsnorm | gate(sigmoid)', 'weight_offset=1')
    >>> parse("rmsnorm | modulate(2)")
    Traceback (most recent call last):
    verify_norm.core.errors.UsageError: modulate takes nothing in parentheses, got '2'
    """
    parts = [_part(part, text) for part in re.sub(r"_[fb]wd\s*$", "", text).split("|")]
    drops = parts[0][0] == "dropout"
    if drops:
        _empty(*parts.pop(0))
        if not parts or parts[0][0] != "add":
            raise UsageError(f"--op {quoted(text)}: expected add behind dropout, such as 'dropout | add | rmsnorm'")
    adds = parts[0][0] == "add"
    if adds:
        _empty(*parts.pop(0))
    first = parts.pop(0) if not adds and parts[0][0] == "gate" and len(parts) > 1 else None
    if not parts or parts[0][0] not in BASES:
        name = parts[0][0] if parts else "nothing"
        if name not in STAGES and name not in ("add", "nothing"):
            one_of("norm of a chain", name, BASES)
        raise UsageError(f"--op {quoted(text)}: expected {alternatives([*BASES])} before {name}, such as {EXAMPLE!r}")
    (norm, options), *rest = parts
    if adds and norm in VIEWS:
        raise UsageError(f"add needs rows: expected layernorm or rmsnorm behind it, got {norm}")
    stages, before = tuple(_stage(*one, norm) for one in rest), None if first is None else _stage(*first, norm)
    if any(isinstance(stage, Quantize) for stage in stages[:-1]):
        raise UsageError(f"--op {quoted(text)}: quantize stands last in a chain, as in {QUANTIZED_EXAMPLE!r}")
    chain = Chain(norm, stages, adds=adds, before=before, dropout=Dropout() if drops else None)
    own = [name for name in chain.tensors if name not in chain.base.parameters]
    twice = next((name for name in own if own.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--op {quoted(text)}: expected one stage that takes {twice}, got {own.count(twice)}")
    if chain.quantizer is not None and text.strip().endswith("_bwd"):
        raise UsageError(f"--op {quoted(text)}: what is quantized has no backward; expected its forward")
    spelled = [_spelled(name, option, stage) for (name, option), stage in zip(rest, stages, strict=True)]
    gated = [] if first is None or before is None else [_spelled(*first, before)]
    first_words = [*["dropout"] * drops, *["add"] * adds, *gated]
    return ParsedChain(chain, " | ".join([*first_words, norm, *spelled]), _constants(norm, options))


@lru_cache(None)
def operators_of(name: str) -> Sequence[Op]:
    """Return both operators of the name of a chain, in its one spelling; none of another name."""
    if not is_chain(name):
        return ()
    try:
        chain, text, _ = parse(name)  # with constants it is not the one spelling
    except UsageError:
        return ()
    bare = re.sub(r"_[fb]wd$", "", name)
    words = f"your own chain: {text}, with each stage's own inputs"
    named = chain.stages or chain.before or chain.dropout
    return () if bare != text or not named else operators(text, chain, words)


def _part(part: str, text: str) -> tuple[str, str]:
    """Return the name of a part and what stands in its parentheses."""
    match = PART.fullmatch(part)
    if match is None:
        raise UsageError(f"--op {quoted(text)}: cannot read {quoted(part.strip())}; expected stages as in {EXAMPLE!r}")
    return match[1], match[2] or ""


def _empty(name: str, option: str) -> None:
    if option:
        raise UsageError(f"{name} takes nothing in parentheses, got {quoted(option)}")


def _stage(name: str, option: str, norm: str) -> Stage:
    if name in ("dropout", "add", *BASES):
        wrong = f"{name} stands behind {norm}" if name in ("dropout", "add") else f"{norm} and {name} are two norms"
        raise UsageError(f"{wrong}: a chain begins with add or its one norm, such as {EXAMPLE!r}")
    one_of("stage", name, STAGES)
    if name == "quantize":
        stage: Stage = _quantize(option)
    else:
        stage = _among(name, option)
    if not stage.of_x and norm == "groupnorm":
        raise UsageError(f"{name} needs rows: expected layernorm or rmsnorm before it, got {norm}")
    return stage


def _among(name: str, option: str) -> Stage:
    """Return the stage of `STAGES` that stands for a name and what is in its parentheses."""
    if "" in STAGES[name] and len(STAGES[name]) == 1:
        _empty(name, option)
    return STAGES[name][option and one_of(f"option of {name}", option, filter(None, STAGES[name]))]


def _quantize(option: str) -> Quantize:
    """Return the stage of a type, a granularity, which is static if not given, and scale_ub where it stands."""
    form, granularity, *bound = [part.strip() for part in option.split(",")] + ["static"] * ("," not in option)
    kind = QUANTIZED[one_of("type of quantize", form, QUANTIZED)]
    one_of("granularity of quantize", granularity, GRANULARITIES)
    kinds = {"mx": [*BINADES], "nvfp4": ["float4_e2m1fn"]}.get(granularity, [*WIDE])
    if kind not in kinds:
        wanted = alternatives([short for short, name in QUANTIZED.items() if name in kinds])
        raise UsageError(f"quantize({option}): expected {wanted} for {granularity}, got {form}")
    bare = granularity in ("static", *SCALE_TYPES)
    if bound not in ([], ["scale_ub"]) or (bound and bare):
        wanted = "nothing" if bare else "scale_ub or nothing"
        raise UsageError(f"quantize({option}): expected {wanted} behind {granularity}, got {', '.join(bound)}")
    return Quantize(kind, granularity, bool(bound))


def _spelled(name: str, option: str, stage: Stage) -> str:
    """Return the text of a stage in its one spelling."""
    if isinstance(stage, Quantize):
        form = next(short for short, kind in QUANTIZED.items() if kind == stage.dtype)
        option = ", ".join([form, *[stage.granularity] * stage.dynamic, *["scale_ub"] * stage.bounded])
    return f"{name}({option})" if option not in ("", "silu", "neox") else name


def _constants(norm: str, options: str) -> str:
    """Return what stands in the parentheses of a norm, as `--bind` takes it: constants of the operator."""
    for option in filter(None, (one.strip() for one in options.split(","))):
        name, _, value = (part.strip() for part in option.partition("="))
        one_of(f"option of {norm}", name, [n for n in BASES[norm].options if n != "normalized_shape"])
        if not re.fullmatch(r"[-+0-9.eE]+", value):
            raise UsageError(f"{norm}({options}): expected a number for {name}, got {quoted(value)}")
    return re.sub(r"\s", "", options)
