"""The certificate of a proof: what is fixed, what is symbolic, the theorems, and how each value was found."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from verify_norm import __version__
from verify_norm.core.known import whole
from verify_norm.core.op import Tensor
from verify_norm.core.ops import OPS
from verify_norm.proof.device import DEVICE
from verify_norm.proof.field import P
from verify_norm.proof.promise import OVER_ROWS, depths, growing
from verify_norm.proof.prove import Asked, Outcome, prove
from verify_norm.proof.prover import SEEDS
from verify_norm.proof.replay.check import check
from verify_norm.proof.replay.reading import Rejected
from verify_norm.proof.shapes import Affine, Form
from verify_norm.running.fork_server import context, end_server, end_with_caller
from verify_norm.search.crew import cores

SCHEMA = 1
TRUSTED = (
    "Triton and ptxas below TTIR: they keep its meaning, and the GPU does what PTX says",
    "tt.reduce adds in a thread's run of adjacent elements, then in a tree over threads: no deeper than `depth` says",
    "a product and a sum may become one fma, which has one rounding less",
    "div.full.f32 errs by 2 ulp, sqrt.approx.ftz.f32 by 2^-23, rsqrt.approx.ftz.f32 by 2^-22.9 (PTX ISA 8.5, 9.7.3)",
    "libdevice's rsqrt errs by 2 ulp, its sqrt by half an ulp (CUDA C++ programming guide, mathematical functions)",
    "the host's launches for every M are affine in M, and in the number G of programs that share tiles, at most one a "
    "tile; how G depends on M enters depths alone: read from calls of 24 sizes, 1 to 70001",
    "hints of alignment (tl.multiple_of), and prefetches, which change no value",
    "a call's host code: what it keeps from call to call is not seen",
    "assembly that the kernels here use to widen 16-bit numbers, to prefetch, and to wait for a launch",
    "the formulas of verify_norm.reference.rounding, which turn the contract into a bound",
)
FORMULAS = {
    "y": "w·r·(x − μ) + b, or w·r·x, with r = 1/√(var + eps)",
    "mean": "Σx/N",
    "rstd": "1/√(var + eps)",
    "residual_out": "x + residual",
    "dx": "r·(g − mean g − x̂·mean(g·x̂)) with g = w·dy, in RMSNorm without mean g; plus dresidual_out",
    "dweight": "Σ dy·x̂ over the rows",
    "dbias": "Σ dy over the rows",
}


def certificates(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Return the certificate of each configuration, as `certificate`; each core proves a part of them.

    Raises UsageError if a kernel cannot be loaded.
    """
    parts = [asked[k :: cores()] for k in range(min(cores(), len(asked)))]
    if len(parts) < 2:
        return _in_turn(asked)
    try:
        with ProcessPoolExecutor(len(parts), context(__name__), end_with_caller) as pool:
            results = [iter(part) for part in pool.map(_in_turn, parts)]
    except KeyboardInterrupt:
        end_server()  # it would start a process that finds nothing of this one, and prints a traceback
        raise
    return [next(results[k % len(parts)]) for k in range(len(asked))]


def _in_turn(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    return [certificate(outcome) for outcome in prove(asked)]


def certificate(outcome: Outcome) -> dict[str, Any]:
    """Return the certificate of a proof, replayed, or what stands in its way, as JSON."""
    document = _document(outcome)
    if not document["proved"]:
        return document
    try:
        return document | {"replayed": check(document)}
    except Rejected as error:
        outcome.reasons.append({"what": "replay", "why": str(error), "line": ""})
        return _document(outcome)


def _document(outcome: Outcome) -> dict[str, Any]:
    """Return the certificate as JSON, before it is replayed; without a proof only why there is none."""
    asked, config = outcome.asked, outcome.asked.config
    fixed: dict[str, Any] = {"N": config.columns, "dtype": config.dtype, "eps": config.eps, "layout": "contiguous"}
    fixed |= {
        "weight_offset": config.offset,
        "weight and bias": "given, of the same type",
        "alignment": "16 bytes",
        "device": DEVICE,
    }
    fixed |= {"groups": config.groups, "positions": config.positions} if config.groups else {}
    head = {"schema": SCHEMA, "kernel": asked.kernel, "bind": asked.bind, "op": config.op, "proved": outcome.holds}
    if not outcome.holds:
        return {**head, "fixed": fixed, "reasons": outcome.reasons, "alone": outcome.alone, "versions": versions()}
    assert outcome.contract is not None
    outputs = {tensor.name: tensor for tensor in OPS[config.op].outputs}
    return {
        **head,
        "domain": outcome.domain,
        "alone": outcome.alone,
        "fixed": fixed,
        "symbolic": "every input that is finite and in which nothing overflows",
        "contract": whole(outcome.contract),
        "outputs": {name: _theorem(outcome, outputs[name]) for name in outcome.proved.outputs},
        "depths": depths(outcome.proved) | {kind: str(one) for kind, one in growing(outcome.proved, outcome.forms)},
        "probability": _probability(outcome),
        "asked": {"rows": asked.rows, "most_rows": asked.most_rows},
        "values": outcome.proved.values,
        "forms": plain_forms(outcome.forms),
        "kernels": outcome.kernels,
        "versions": versions(),
        "trusted": list(TRUSTED),
    }


def _probability(outcome: Outcome) -> str:
    """Return in words how likely a false identity holds at every point, by the Schwartz–Zippel lemma.

    A point is drawn until var + eps is a square, which doubles the probability; a quotient may equal that of any row.
    """
    tries = 2 * outcome.proved.degree * outcome.proved.rows
    return f"at most ({tries}/{P})^{len(SEEDS)} that an identity is false"


def _theorem(outcome: Outcome, tensor: Tensor) -> dict[str, str]:
    """Return what has been proved of an output, in words and as a formula."""
    config, name = outcome.asked.config, tensor.name
    words = (
        f"For {outcome.domain}, N = {config.columns}, {config.dtype}, contiguous: every element of {name} is written "
        f"once, is {FORMULAS[name]} over the reals, and differs from it by at most δ and half an ulp of its type. δ is "
        f"the error of {config.op} for the contract, before the last rounding."
    )
    for kind, depth in growing(outcome.proved, outcome.forms):
        if kind == OVER_ROWS.get(name):
            words += f" No term of a sum over rows meets more roundings than {depth}."
    return {"meaning": outcome.proved.outputs[name].kind, "formula": FORMULAS[name], "theorem": words}


def plain_forms(forms: Sequence[tuple[str, Form]]) -> list[dict[str, Any]]:
    """Return forms of launches as JSON."""
    return [
        {
            "M": words,
            "rows": form.rows,
            "each": form.each,
            "programs": None if form.programs is None else list(form.programs),
            "call": _as_json(form.call),
        }
        for words, form in forms
    ]


def _as_json(value: Any) -> Any:
    """Return a call as JSON, each `Affine` as {"times M": …, "plus": …}, or "times G"."""
    if isinstance(value, Affine):
        return {f"times {value.of}": value.slope, "plus": value.base}
    if isinstance(value, Mapping):
        return {key: _as_json(one) for key, one in value.items()}
    return [_as_json(one) for one in value] if isinstance(value, list) else value


def versions() -> dict[str, str]:
    """Return the versions that a certificate rests on."""
    return {"verify-norm": __version__} | {name: importlib.metadata.version(name) for name in ("triton", "torch")}
