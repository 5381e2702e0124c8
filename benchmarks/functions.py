"""Right functions at many points, and wrong gradients of functions with few outputs or with corners."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from checkers import CHECKERS, DTYPES, SLOW_ELEMENTS
from torch.nn import functional

from verify_norm.core.errors import UsageError
from verify_norm.gradcheck.gradcheck import gradcheck

ERRORS = (1e-3, 1e-2, 1.0)  # relative errors of the whole gradient: 1.0 doubles it
SEEDS = 4
FEW_OUTPUTS: dict[str, Callable[..., Any]] = {
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "norm": lambda x: x.norm(dim=-1),
    "mean square": lambda x: x.square().mean(),
    "cross-entropy": lambda x: functional.cross_entropy(x, torch.arange(len(x)) % x.shape[1]),
    "variance": lambda x: x.var(-1),
    "sum of sines": lambda x: x.sin().sum(),
}
CORNERED: dict[str, Callable[..., Any]] = {
    "relu": lambda x: x.relu(),
    "maximum": lambda x: x.amax(-1),
    "clamp": lambda x: x.clamp(-1, 1),
    "absolute value": lambda x: x.abs(),
}


def scaled(error: float) -> Callable[[Any], Any]:
    return lambda g: g * (1 + error)


def row_doubled(g: Any) -> Any:
    return torch.cat([g[:1], 2 * g[1:2], g[2:]])


def element_doubled(g: Any) -> Any:
    """Double the largest element of a row: of a maximum, it is the one that counts."""
    row, column = len(g) // 2, int(g[len(g) // 2].abs().argmax())
    out = g.clone()
    out[row, column] *= 2
    return out


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "1 % off": scaled(1e-2),
    "one row doubled": row_doubled,
    "one element doubled": element_doubled,
}


def with_gradient(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of x with a changed gradient."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                (g,) = torch.autograd.grad(function(x), x, dy)
            return change(g)

    return lambda x: Changed.apply(x)


def detections() -> list[dict[str, Any]]:
    """Return at how many seeds each checker detects each wrong gradient, and at how many it accuses the right one."""
    cases = [
        (n, f, s, {f"{e:g} off": scaled(e) for e in ERRORS})
        for s in ((4, 64), (64, 1024))
        for n, f in FEW_OUTPUTS.items()
    ]
    cases += [(n, f, (256, 4096), MISTAKES) for n, f in CORNERED.items()]
    rows = []
    for name, function, shape, mistakes in cases:
        for checker, check in CHECKERS.items():
            if checker.startswith("gradcheck, slow") and math.prod(shape) > SLOW_ELEMENTS:
                continue
            seeds = range(SEEDS if math.prod(shape) < 2**20 else 1)
            wrong = {mistake: with_gradient(function, change) for mistake, change in mistakes.items()}
            flagged = {
                m: sum(not check(f, {"x": shape}, seed) for seed in seeds) for m, f in ({"": function} | wrong).items()
            }
            accused = flagged.pop("")
            rows.append({"function": name, "shape": shape, "checker": checker, "seeds": len(seeds)})
            rows[-1] |= {"detected": flagged, "accused": accused}
            print(rows[-1], flush=True)
    return rows


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


ONE: dict[str, Callable[..., Any]] = (
    FEW_OUTPUTS
    | CORNERED
    | {
        "sin": torch.sin,
        "exp": lambda x: (x / 8).exp(),
        "softplus": functional.softplus,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "square": torch.square,
        "cube": lambda x: x**3,
        "hardtanh": functional.hardtanh,
        "hardswish": functional.hardswish,
        "leaky relu": functional.leaky_relu,
        "identity": lambda x: x * 1,
        "softmax": lambda x: x.softmax(-1),
        "log-softmax": lambda x: x.log_softmax(-1),
        "softmax of columns": lambda x: x.softmax(0),
        "layernorm": lambda x: functional.layer_norm(x, x.shape[1:]),
        "layernorm in float32": lambda x: functional.layer_norm(x.float(), x.shape[1:]).to(x.dtype),
        "rmsnorm": lambda x: rms_norm(x, 1.0),
        "centred": lambda x: x - x.mean(-1, keepdim=True),
        "centred columns": lambda x: x - x.mean(0),
        "below the maximum": lambda x: x - x.amax(0),
        "cumulative sum": lambda x: x.cumsum(-1),
        "cumulative maximum": lambda x: x.cummax(-1).values,
        "sorted": lambda x: x.sort(-1).values,
        "median": lambda x: x.median(-1).values,
        "row sums": lambda x: x.sum(-1),
        "sum": lambda x: x.sum(),
        "mean": lambda x: x.mean(),
        "L1": lambda x: x.abs().mean(),
        "sum of relu": lambda x: x.relu().sum(-1),
        "squared error": lambda x: functional.mse_loss(x, torch.ones_like(x)),
        "Huber": lambda x: functional.huber_loss(x, torch.zeros_like(x)),
        "hinge": lambda x: (1 - x).clamp(min=0).mean(),
        "total variation": lambda x: (x[..., 1:] - x[..., :-1]).abs().sum(-1) + x[..., 0],
        "of one row": lambda x: x[0].sin(),
        "scalar and rows": lambda x: (x.sin().sum(), x.cos(), x.square().sum(-1)),
        "Gram": lambda x: x @ x.mT / x.shape[-1],
        "perceptron": lambda x: (x @ torch.ones(x.shape[-1], 3, dtype=x.dtype).cumsum(1).sin()).relu(),
        "relu of layernorm": lambda x: functional.layer_norm(x, x.shape[1:]).relu(),
    }
)
TWO: dict[str, Callable[..., Any]] = {
    "product": lambda x, w: x * w,
    "sum of both": lambda x, w: x + w,
    "weighted rmsnorm": rms_norm,
    "weighted layernorm": lambda x, w: functional.layer_norm(x, w.shape, w),
    "prelu": lambda x, w: torch.where(x > 0, x, x * w),
    "larger": lambda x, w: torch.maximum(x, w),
    "weighted squared error": lambda x, w: (w * x.square()).mean(),
    "gated": lambda x, w: functional.silu(x) * w,
    "dot products": lambda x, w: x @ w,
}


def points(rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Yield kinds of data without end: far from 0, constant rows, zeros, ties, few rows, one element a row, scales."""
    while True:
        M, N = (int(2 ** rng.uniform(0, 4)) for _ in range(2))
        x = rng.standard_normal((M, N))
        yield "normal", x
        for offset in (10.0, 100.0, 1000.0):
            yield f"{offset:g} from 0", x + offset
        yield "a constant row", np.where(np.arange(M)[:, None] == 0, x[:1, :1], x)
        yield "a row of zeros", np.where(np.arange(M)[:, None] == M - 1, 0.0, x)
        yield "ties", np.round(2 * x) / 2
        yield "one element a row", x[:, :1]
        yield "one row", x[:1]
        yield "large", x * 100
        yield "small", x * 1e-3
        yield "rows of all scales", x * 10.0 ** rng.integers(-3, 3, (M, 1))


def right_functions(count: int) -> dict[str, Any]:
    """Return the false alarms on so many right functions × points × types, and how many could be judged."""
    rng = np.random.default_rng(11)
    data = points(rng)
    every = list((ONE | TWO).items())
    total: dict[str, Any] = {"functions": len(every), "cases": 0, "accused": 0, "judged": 0, "refused": 0, "alarms": []}
    case = 0
    while total["cases"] < count:
        name, function = every[case % len(every)]
        kind, x = next(data)
        for dtype in DTYPES:
            arguments = {"x": torch.from_numpy(x)}
            if name in TWO:
                arguments["w"] = torch.from_numpy(1.5 + rng.standard_normal(x.shape[-1]))

            def called(*values: Any, function: Callable[..., Any] = function) -> Any:
                return function(*values)

            called.make_inputs = lambda arguments=arguments: tuple(arguments.values())  # type: ignore[attr-defined]
            try:
                report = gradcheck(called, dtypes=(dtype,), seed=case)
            except UsageError:  # its value is not finite there, as the variance of one element
                total["refused"] += 1
                continue
            total["cases"] += 1
            total["judged"] += report.checked
            total["accused"] += bool(report.findings)
            for finding in report.findings:
                total["alarms"].append(f"{name}, {kind}, {tuple(x.shape)}, {dtype}, seed {case}: {finding.message}")
                print(total["alarms"][-1], flush=True)
        case += 1
    return total
