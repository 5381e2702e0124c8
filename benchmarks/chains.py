"""Test whether the error bounds of chains are sound and tight, on float32 kernels.

    python benchmarks/chains.py [--cases 6000] [--seed 0] [--jobs 2] [--out benchmarks/results/chains.json]

As `bounds.py`, for operators that are a chain: every case draws one, types, a shape, data and a method for the norm,
and for the stages whether their factors meet the weight before x̂ (`folded`), and whose exponential they use. Some
kernels round each result between two operations to the type of x, as the contract z=x has it. One case in four also
runs a plain kernel that rounds z to bfloat16 before each stage or, as a control, one that does not. Exit status as of
`bounds.py`.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import bounds
import emulate
import numpy as np
import torch
from bounds import CONTROL, FAMILIES, SINGLE, WANTED, data, draw_method, draw_shape, log_uniform
from emulate import F32, F, Method, quantized, reduced

from verify_norm.cases.make import named, summed_alone
from verify_norm.core import promises
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import ratio
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.chain import Chain, Function

NAMES = (
    *sorted(
        {
            op.forward.removesuffix("_fwd")
            for op in OPS.values()
            if op.forward and op.lawful and isinstance(op.reference, Function)
        }
    ),
    *(
        "layernorm | gate(gelu)",
        "layernorm | rotate(interleaved)",
        "gate(gelu) | layernorm | modulate",
        "add | layernorm | modulate",
        "add | rmsnorm | sigmoid",
    ),
)
BUG = "z_bf16"
# An activation may have intrinsics that err more than these kernels' exponentials, and a chain has few cases.
LEAST = {"float32": 0.05, "float16": 0.9, "bfloat16": 0.9}
LEAST_Y = 0.15


@dataclass(frozen=True)
class Draw:
    """A case: the operator, its arguments in float64, and the method that computes them."""

    name: str
    dtype: str
    wdtype: str
    method: Method
    arithmetic: Arithmetic
    arrays: dict[str, Any]
    options: dict[str, Any]
    kind: str
    words: str
    folded: bool = False  # factors meet the weight before x̂ does
    exp2: bool = False  # e^t as 2^(t·log₂e)
    bug: bool = False
    between: str | None = None  # the type of results between two operations

    @property
    def chain(self) -> Chain:
        """The chain of the operator."""
        chain: Chain = OPS[f"{self.name}_fwd"].chain
        return chain

    @property
    def z_type(self) -> str | None:
        """The type that z is rounded to before each stage, by contract or by mistake."""
        return "bfloat16" if self.bug else self.between

    @property
    def stages(self) -> tuple[Any, ...]:
        """The stages that make z: all but a quantization, which `quantized_chains` has."""
        stages = self.chain.stages
        return stages if self.chain.quantizer is None else stages[:-1]

    @property
    def rows(self) -> int:
        """How many rows, or groups, are normalized."""
        shape = self.arrays["x"].shape
        grouped = self.chain.norm == "groupnorm"
        return shape[0] * self.options["num_groups"] if grouped else math.prod(shape[:-1])


@dataclass
class Rows:
    """A float32 kernel's rows: x̂, and the factors and summands that z = x̂·a + b has collected."""

    xhat: F
    a: Any
    b: Any

    def z(self) -> F:
        """Return z, in which nothing is left to collect."""
        z = np.asarray(self.xhat if self.a is None else self.xhat * self.a, F32)
        z = z if self.b is None else z + self.b
        self.xhat, self.a, self.b = z, None, None
        return z


def last(name: str) -> Op:
    """Return the backward of a chain, whose inputs are those of both directions; the forward of what is quantized."""
    forward = OPS[f"{name}_fwd"]
    return forward if forward.quantizer is not None else OPS[f"{name}_bwd"]


def draw(seed: int, index: int, names: Sequence[str] = NAMES) -> Draw:
    """Return case number `index` of these chains."""
    rng = np.random.default_rng((seed, index))
    name, dtype = names[index % len(names)], str(rng.choice(list(WANTED)))
    wdtype = dtype if rng.random() < 0.6 else "float32"
    op = last(name)
    norm = op.chain.norm
    grouped = op.view == "groups"
    shape, G = draw_shape(rng, "groupnorm" if grouped else norm)
    shape = shape if len(shape) > 2 or rng.random() < 0.3 else (*_divided(rng, shape[0]), shape[1])
    method, arithmetic, kind = draw_method(rng, norm if op.centred else "rmsnorm")
    scale, relative = log_uniform(rng, 1e-3, 1e2), 0.0 if rng.random() < 0.4 else log_uniform(rng, 0.1, 1e3)
    if dtype == "float16":
        scale, relative = min(scale, 20.0), min(relative, 100.0)
    family, dy_family = (str(rng.choice(FAMILIES, p=[0.28, *[0.08] * 9])) for _ in range(2))
    rows = (math.prod(shape[: 1 if grouped else -1]) * G, -1)
    rows = (rows[0], math.prod(shape) // max(rows[0], 1))

    tokens = shape[:-1][:-1] or shape[:1]
    angle = 8 * rng.standard_normal((*tokens, shape[-1] // int(rng.choice([2, 4, 8]))))

    def values(tensor: Any) -> Any:
        if tensor.extent == "position":
            return {"cos": np.cos, "sin": np.sin}[tensor.name](angle)
        own = VALUES.get(tensor.name)
        if own is not None:
            return own(rng, shape)
        if tensor.extent == "affine":
            return None if rng.random() < 0.1 else rng.standard_normal(shape[1 if grouped else -1])
        if tensor.role == "cotangent":
            return (log_uniform(rng, 1e-3, 1e2) * data(rng, rows, dy_family)).reshape(shape)
        return (scale * (data(rng, rows, family) + relative)).reshape(shape)

    def rounded(tensor: Any) -> Any:
        value, form = values(tensor), FORMATS[tensor.among(dtype, wdtype)]
        return None if value is None else form.round(np.clip(value, -form.largest, form.largest))

    arrays = {t.name: rounded(t) for t in op.inputs if t.role != "saved"}
    if "residual_out" in arrays:
        arrays |= {"x": arrays["residual_out"], "residual": np.zeros(shape)}
    offset = float("weight_offset" in op.attrs and kind == "strict" and rng.random() < 0.3)
    options = {"eps": log_uniform(rng, 1e-12, 1e-1), "weight_offset": offset, "num_groups": G}
    if op.dropout is not None:
        options["dropout_p"] = float(rng.choice([0.0, 0.1, 0.5, rng.uniform(0.0, 0.99)]))
        form = FORMATS[dtype]
        arrays["residual"] = form.round(rng.standard_normal(shape) * abs(arrays["x"]).max(initial=0.0) * rng.random())
        h = op.dropout.value(arrays["x"], {**arrays, **options}) + arrays["residual"]
        arrays["residual_out"] = form.round(np.clip(h, -form.largest, form.largest))
    words = f"{shape} {family}, offset {relative:.3g}, scale {scale:.3g}, {options}; dy {dy_family}; {method}"
    folded, exp2 = (bool(rng.random() < 0.4) for _ in range(2))
    return Draw(name, dtype, wdtype, method, arithmetic, arrays, options, kind, words, folded, exp2)


def _divided(rng: np.random.Generator, count: int) -> tuple[int, int]:
    """Return two factors of a number of rows: samples, and tokens of each."""
    some = [n for n in range(1, min(count, 64) + 1) if count % n == 0]
    one = int(rng.choice(some))
    return count // one, one


VALUES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "gate": lambda rng, shape: 2 * rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 8, 1),
    "mask": lambda rng, shape: rng.random(shape) < 0.7,
    "scale": lambda rng, shape: np.where(rng.random(_samples(shape)) < 0.1, -1.0, rng.standard_normal(_samples(shape))),
    "shift": lambda rng, shape: rng.standard_normal(_samples(shape)),
}


def _samples(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1][:1], shape[-1])


def activated(name: str, t: F, d: Draw) -> tuple[F, F]:
    """Return a(t) and a'(t) in float32."""
    if name == "gelu":
        one = torch.from_numpy(np.ascontiguousarray(t))
        phi = (0.5 * (1 + torch.erf(one * 0.7071067811865476))).numpy()
        return t * phi, phi + t * (F32(0.3989422804014327) * np.exp(F32(-0.5) * t * t))
    power = np.exp2(t * F32(-1.4426950408889634)) if d.exp2 else np.exp(-t)
    s = F32(1) / (F32(1) + power)
    return (s, s * (1 - s)) if name == "sigmoid" else (t * s, s * (1 + t * (1 - s)))


def activate(stage: Any, r: Rows, d: Draw) -> None:
    r.xhat = activated(stage.name, r.z(), d)[0]


def activate_pull(stage: Any, dy: F, z: F, d: Draw) -> tuple[F, dict[str, F]]:
    return dy * activated(stage.name, z, d)[1], {}


def between(d: Draw, v: F) -> F:
    """Return the result of an operation as the next one gets it."""
    return quantized(v, d.between)


def gate(stage: Any, r: Rows, d: Draw) -> None:
    _times(r, between(d, activated(stage.activation, single(d, "gate").reshape(r.xhat.shape), d)[0]), d)


def gate_pull(stage: Any, dy: F, z: F, d: Draw) -> tuple[F, dict[str, F]]:
    value, slope = activated(stage.activation, single(d, "gate").reshape(dy.shape), d)
    return dy * between(d, value), {"gate": dy * (z * slope) if d.folded else between(d, dy * z) * slope}


def modulate(stage: Any, r: Rows, d: Draw) -> None:
    _times(r, between(d, F32(1) + _served(d, "scale", r.xhat)), d)
    if d.between:
        r.xhat = between(d, r.z())
    shift = _served(d, "shift", r.xhat)
    r.b = shift if r.b is None else r.b + shift


def modulate_pull(stage: Any, dy: F, z: F, d: Draw) -> tuple[F, dict[str, F]]:
    M, N = dy.shape
    S = single(d, "scale").size // max(N, 1)

    def sums(v: F) -> F:
        each = v.reshape(S, M // S, N).swapaxes(1, 2).reshape(S * N, M // S)
        return reduced(np.ascontiguousarray(each), None, d.method)

    m = between(d, F32(1) + _served(d, "scale", dy))
    return dy * m, {"scale": sums(between(d, dy * z)), "shift": sums(dy)}


def _pairs(stage: Any, z: F, d: Draw) -> tuple[F, F, F, F, F]:
    """Return cos and sin for each row, both elements of each pair, and what follows."""
    *tokens, half = d.arrays["cos"].shape
    cos, sin = (single(d, name).reshape(math.prod(tokens), half) for name in ("cos", "sin"))
    cos, sin = (v.repeat(len(z) // max(len(v), 1), 0) for v in (cos, sin))
    R = 2 * cos.shape[1]
    first, second = (z[:, : R // 2], z[:, R // 2 : R]) if stage.style == "neox" else (z[:, 0:R:2], z[:, 1:R:2])
    return cos, sin, first, second, z[:, R:]


def _paired(stage: Any, a: F, b: F, rest: F) -> F:
    turned = np.concatenate([a, b], 1) if stage.style == "neox" else np.stack([a, b], -1).reshape(len(a), -1)
    return np.concatenate([turned, rest], 1)


def rotate(stage: Any, r: Rows, d: Draw) -> None:
    cos, sin, a, b, rest = _pairs(stage, r.z(), d)
    if d.folded:  # one rounding of a fused multiply and add
        wide = a.astype(np.float64), b.astype(np.float64)
        pair = (wide[0] * cos - b * sin).astype(F32), (wide[1] * cos + a * sin).astype(F32)
    else:
        first, second = (between(d, a * cos), between(d, b * sin)), (between(d, b * cos), between(d, a * sin))
        pair = first[0] - first[1], second[0] + second[1]
    r.xhat = _paired(stage, *pair, rest)


def rotate_pull(stage: Any, dy: F, z: F, d: Draw) -> tuple[F, dict[str, F]]:
    cos, sin, a, b, rest = _pairs(stage, dy, d)
    first = between(d, a * cos) + between(d, b * sin)
    return _paired(stage, first, between(d, b * cos) - between(d, a * sin), rest), {}


def single(d: Draw, name: str) -> F:
    return np.asarray(d.arrays[name], F32)


def _served(d: Draw, name: str, z: F) -> F:
    """Return a row of scale or shift for each row of z."""
    rows = single(d, name).reshape(-1, z.shape[1])
    return rows.repeat(len(z) // len(rows), 0)


def _times(r: Rows, factor: F, d: Draw) -> None:
    if not d.folded:
        r.z()
    r.a = factor if r.a is None else r.a * factor
    r.b = None if r.b is None else r.b * factor


Pull = Callable[[Any, F, F, Draw], tuple[F, dict[str, F]]]
STAGES: dict[str, tuple[Callable[[Any, Rows, Draw], None], Pull]] = {
    **dict.fromkeys(("silu", "gelu", "sigmoid"), (activate, activate_pull)),
    "gate": (gate, gate_pull),
    "modulate": (modulate, modulate_pull),
    "rotate": (rotate, rotate_pull),
}


def dropped(d: Draw, v: F) -> F:
    """Return x, or the gradient of the sum, behind the dropout: a quotient, or a product with a reciprocal."""
    p = d.options["dropout_p"]
    factor = F32(1) / (F32(1) - F32(p)) if d.folded else F32(1 / (1 - p))
    v = v * factor if d.folded or d.exp2 else v / (F32(1) - F32(p))
    return np.where(d.arrays["mask"].reshape(v.shape) != 0, v, F32(0))


def before(d: Draw, x: F) -> F:
    """Return what is normalized in place of x."""
    gate = d.chain.before
    if d.chain.adds:
        left = x if d.chain.dropout is None else quantized(dropped(d, x), d.z_type)
        return left + single(d, "residual").reshape(x.shape)
    if gate is None:
        return x
    g = single(d, "gate").reshape(x.shape)
    if d.folded and gate.activation == "silu":  # x·gate first
        h = (x * g) * activated("sigmoid", g, d)[0]
    else:
        h = x * between(d, activated(gate.activation, g, d)[0])
    return quantized(h, d.z_type)


def l2norm(x: F, eps: float, m: Method) -> tuple[F, F, F]:
    """Return x·r, 0 and r = 1/√(Σx² + eps)."""
    r = emulate.reciprocal_root(emulate.total(x, x, m) + F32(eps), m)
    return quantized(x * r, m.xhat), np.zeros_like(r), r


def l2norm_backward(dy: F, x: F, w: None, eps: float, m: Method, *, given: tuple[F, F]) -> tuple[F, F, F]:
    """Return dx, dy and x̂; with `sums` in a form without x̂."""
    r = quantized(given[1] if m.given else l2norm(x, eps, m)[2], m.stats)
    xhat, g = quantized(x * r, m.xhat), quantized(dy, m.xhat)
    if m.sums and not m.xhat:
        return r * g - x * (emulate.total(g, x, m) * (r * r * r)), dy, xhat
    return r * (g - xhat * emulate.total(g, xhat, m)), dy, xhat


def through(d: Draw, r: Rows) -> list[F]:
    """Return z before each stage, and y."""
    zs = []
    for stage in d.stages:
        zs.append(Rows(r.xhat, r.a, r.b).z())
        if d.z_type:
            r = Rows(quantized(zs[-1], d.z_type), None, None)
        STAGES[stage.name][0](stage, r, d)
    return [*zs, r.z()]


def affine(d: Draw, name: str) -> Any:
    """Return weight + offset, or the bias, for each element of each row, in float32; None where there is none."""
    x, values, grouped = d.arrays["x"], d.arrays.get(name), last(d.name).view == "groups"
    if values is None:
        return None
    values = values.astype(F32) + (F32(d.options["weight_offset"]) if name == "weight" else F32(0))
    values = values.reshape((1, x.shape[1], *(1,) * (x.ndim - 2)) if grouped else (-1,))
    return np.ascontiguousarray(np.broadcast_to(values, x.shape)).reshape(d.rows, -1)


def forwarded(d: Draw) -> tuple[dict[str, Any], F]:
    """Return the outputs of a float32 kernel's forward, before the final rounding, and what it normalizes."""
    m, eps, op = d.method, d.options["eps"], OPS[f"{d.name}_fwd"]
    w, b = affine(d, "weight"), affine(d, "bias")
    rows = before(d, single(d, "x").reshape(d.rows, -1))
    if d.folded and not m.expanded and op.averages:
        xhat, mean, rstd = emulate.forward(rows, None, None, eps, m, centred=op.centred)
        y = through(d, Rows(xhat, w, b))[-1]
    else:
        z, mean, rstd = emulate.forward(rows, w, b, eps, m, centred=op.centred) if op.averages else l2norm(rows, eps, m)
        y = through(d, Rows(z, None, None))[-1]
    statistics = {"mean": quantized(mean, m.stats)} if op.centred else {}
    return {"y": y, "rstd": quantized(rstd, m.stats), **statistics}, rows


def computed(d: Draw, saved: list[F]) -> dict[str, Any]:
    """Return the outputs of a float32 kernel of both directions, before the final rounding."""
    m, x, eps, K = d.method, d.arrays["x"], d.options["eps"], d.rows
    op = OPS[f"{d.name}_bwd"]

    def by_weight(v: F) -> F:
        v = np.moveaxis(v.reshape(x.shape), 1 if op.view == "groups" else -1, 0)
        return np.ascontiguousarray(v).reshape(v.shape[0], -1)

    w, b = affine(d, "weight"), affine(d, "bias")
    out, rows = forwarded(d)
    given, centred = single(d, "x").reshape(K, -1), op.centred
    dy = single(d, "dy").reshape(K, -1)
    if d.chain.dropout is not None:
        out["residual_out"], rows = rows, single(d, "residual_out").reshape(K, -1)
    back = partial(emulate.backward, centred=centred) if op.averages else l2norm_backward
    _, _, xhat = back(dy, rows, None, eps, m, given=(saved[0], saved[1]))
    zs = through(d, Rows(xhat, w, b))
    dz, own = dy, {}
    for stage, z in zip(reversed(d.chain.stages), reversed(zs[:-1]), strict=True):
        z = quantized(z, d.z_type)
        dz, mine = STAGES[stage.name][1](stage, dz, z, d)
        dz = between(d, dz)
        own |= {f"d{name}": value for name, value in mine.items()}
    dx, _, xhat = back(dz, rows, w, eps, m, given=(saved[0], saved[1]))
    passed = d.arrays.get("dresidual_out")
    out |= own | {"dx": dx if passed is None else between(d, dx) + passed.astype(F32).reshape(dx.shape)}
    if d.chain.dropout is not None:
        out |= {"dresidual": out["dx"], "dx": dropped(d, between(d, out["dx"]))}
    if d.chain.before is not None:
        out["dx"], own = gate_pull(d.chain.before, between(d, out["dx"]), given, d)
        out["dgate"] = own["gate"]
    if w is not None:
        out["dweight"] = reduced(by_weight(dz), by_weight(xhat), m)
    if b is not None:
        out["dbias"] = reduced(by_weight(dz), None, m)
    return out


def measured(d: Draw) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield for each output its name, its type, the ratios of its elements, and the mask of bounded elements."""
    offered = {**d.arrays, **d.options, "arithmetic": d.arithmetic}

    def both(op: Op) -> tuple[Any, Any]:
        return tuple(function(**named(function, offered)) for function in (op.reference, op.error))  # type: ignore[return-value]

    forward, backward = OPS[f"{d.name}_fwd"], OPS[f"{d.name}_bwd"]
    with np.errstate(all="ignore"):
        pairs = [both(op) for op in (forward, backward)]
        truth, K = pairs[0][0], pairs[0][0].rstd.size
        if d.chain.dropout is not None:  # a backward has the statistics of the rounded sum
            alone = summed_alone(backward, d.arrays["residual_out"])
            truth = forward.reference(**named(forward.reference, {**offered, **alone}))
        saved = [np.asarray(getattr(truth, n, np.zeros(K)), F32).reshape(K, 1) for n in ("mean", "rstd")]
        torch.set_flush_denormal(d.method.flush)
        out = computed(d, saved)
        torch.set_flush_denormal(False)
    for op, (values, deltas) in zip((forward, backward), pairs, strict=True):
        for tensor in op.outputs:
            if tensor.name not in out:
                continue
            want, delta = (getattr(v, tensor.name) for v in (values, deltas))
            dtype = (d.method.stats or "float32") if tensor.extent == "statistic" else tensor.among(d.dtype, d.wdtype)
            rounded = FORMATS[dtype].round(out[tensor.name].astype(np.float64).reshape(want.shape))
            yield tensor.name, dtype, ratio(rounded, Expected(want, delta, dtype)), np.isfinite(delta)


def plain(d: Draw, *, bug: bool) -> Draw:
    """Return the case with the strict method, wrong or as its control."""
    given: dict[str, Any] = {"kind": "", "folded": False, "exp2": False, "between": None, "bug": bug}
    return replace(d, method=Method(), arithmetic=Arithmetic(**SINGLE), **given)


def in_turn(d: Draw, rng: np.random.Generator) -> Draw:
    """Return the case with results between operations in 16 bits, in a third of those in which that is a contract."""
    if d.kind != "strict" or d.dtype == "float32" or rng.random() > 1 / 3:
        return d
    arithmetic = replace(d.arithmetic, **promises.between(FORMATS[d.dtype]))
    return replace(d, arithmetic=arithmetic, kind="z", folded=False, between=d.dtype)


def studied(
    draws: Iterable[tuple[int, Draw]],
    measured: Callable[[Draw], Iterator[tuple[str, str, Any, Any]]],
    plain: Callable[..., Draw],
    key: Callable[[Draw, str], str],
) -> bounds.Tables:
    """Return the tables of some cases: strict kernels, kernels with a weaker contract, and wrong kernels.

    `plain` makes the wrong one of a case in four, or its control; `key` says to which type of output it belongs.
    """
    torch.set_num_threads(1)
    strict: bounds.Table = {}
    weaker: bounds.Table = {}
    wrong: bounds.Table = {}
    for index, d in draws:
        op = d.name.replace(" ", "")
        for name, dtype, ratios, judged in measured(d):
            table, kind = (strict, "") if d.kind == "strict" else (weaker, f" ({d.kind})")
            bounds.note(table, f"{op} {name}{kind} {dtype}", f"case {index}: {name}", ratios, judged, d.words)
        if index % 4 == 0:
            bug = index // 4 % 2 == 0
            for name, dtype, ratios, judged in measured(plain(d, bug=bug)):
                row = f"{BUG if bug else CONTROL} {key(d, dtype)}"
                bounds.note(wrong, row, f"case {index}: {op} {name} {dtype}", ratios, judged, d.words)
    return strict, weaker, wrong


def study(seed: int, indices: range) -> bounds.Tables:
    """Return the tables of these cases; a wrong kernel belongs to the type of x."""
    draws = ((index, in_turn(draw(seed, index), np.random.default_rng((seed, index, 1)))) for index in indices)
    return studied(draws, measured, plain, lambda d, _: d.dtype)


if __name__ == "__main__":
    sys.exit(bounds.main(study, "chains", 6000, least=LEAST, least_y=LEAST_Y))
