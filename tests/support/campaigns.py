"""Units and outcomes of a campaign, made here, and an executor that returns them."""

import threading
from collections import Counter
from functools import cache

import norms

from verify_norm.campaign.model import Outcome, Unit
from verify_norm.campaign.plan import checked
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.search.search import replay

FACTS = {"plan": {"examples": 10, "seed": 0}, "units": "abc", "versions": {"torch": "2"}}
PLAN = checked({"kernels": ["k"], "seconds": 5.0})


def units(number, kernels=("k",)):
    """So many units of each kernel, in two types."""
    dtypes = ("float32", "bfloat16")
    named = [(kernel, dtypes[n % 2], n // 2) for n in range(number) for kernel in kernels]
    return tuple(
        Unit(f"{place:04}", place, kernel, "layernorm_fwd", "", "", "", dtype, block, block, 10, "")
        for place, (kernel, dtype, block) in enumerate(named)
    )


def norm_of_n_minus_1(x, weight, bias, eps, normalized_shape):
    n = x[..., :1].numel() and x.shape[-1]
    xc = x.double() - x.double().mean(-1, keepdim=True)
    y = xc * (xc.square().sum(-1, keepdim=True) / max(n - 1, 1) + eps).rsqrt()
    return (y if weight is None else y * weight.double() + (0 if bias is None else bias.double())).to(x.dtype)


@cache
def report(dtype="float32", seed=0, wrong=False, kernel="k"):
    """The report of one case of a right or a wrong kernel."""
    run = norm_of_n_minus_1 if wrong else norms.layernorm()
    spec = CaseSpec((4, 8), dtype=dtype, seed=seed)
    return replay(
        Kernel(kernel, "layernorm_fwd", run=run), spec, Settings(isolate=False, checks=("signature", "accuracy"))
    )


def outcome(unit, wrong=False, **other):
    """The outcome of a unit: of one case, whose seed is the unit's; or another one."""
    found = {} if other else {"report": report(unit.dtype, unit.seed, wrong, unit.kernel)}
    return Outcome(unit.id, "here", 100.0, 102.0, **found, **other)


class Canned:
    """Returns outcomes that `of` makes of a unit and of how often it was examined before."""

    def __init__(self, of=lambda unit, times: outcome(unit), number=2):
        self.of, self.places, self.times, self.closed = of, {"": number}, Counter(), False
        self._lock = threading.Lock()

    def examine(self, unit):
        with self._lock:
            times = self.times[unit.id]
            self.times[unit.id] += 1
            return self.of(unit, times)

    def close(self):
        self.closed = True


def contents(store):
    """All that a store says of its units, whatever worker examined them and when."""
    kept = {
        "outcomes": "unit, verdict, problem, cases, corners, corners_done, refused, compared",
        **dict.fromkeys(("errors", "findings", "checks", "coverage"), "*"),
    }
    return {name: sorted(map(repr, store.query(f"SELECT {what} FROM {name}"))) for name, what in kept.items()}
