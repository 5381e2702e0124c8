"""A plain layernorm with chosen mistakes, and runs of it that are compared with each other."""

from dataclasses import replace

import numpy as np
import torch

from verify_norm.auditing.model import Audit, Ladder, Rung
from verify_norm.auditing.survey import survey, typical
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.core.ulp import UlpStats
from verify_norm.report.compare.compare import compare
from verify_norm.search.search import search


def norm(
    x, weight, bias, eps, normalized_shape, weight_offset=0.0, *, early=False, one_pass=False, reverse=False, ddof=0
):
    """Return y, mean and rstd of a layernorm.

    `early` rounds x̂ before the weight, `one_pass` computes the variance as E[x²] − E[x]², `reverse` sums backwards,
    and `ddof` is subtracted from the divisor N.
    """
    n = int(np.prod(normalized_shape))
    r = x.float().reshape(-1, n) if x.numel() else x.float().reshape(0, n)
    r = r.flip(-1) if reverse else r
    mean = r.mean(-1, keepdim=True)
    if one_pass:
        var = r.square().mean(-1, keepdim=True) - mean.square()
    else:
        var = (r - mean).square().sum(-1, True) / (n - ddof)
    rstd = torch.rsqrt(var + eps)
    xhat = ((r - mean) * rstd).flip(-1) if reverse else (r - mean) * rstd
    y = xhat.to(x.dtype).float() if early else xhat
    y = y if weight is None else y * (weight.float().reshape(1, n) + weight_offset)
    y = y if bias is None else y + bias.float().reshape(1, n)
    return y.to(x.dtype).reshape(x.shape), mean.reshape(-1), rstd.reshape(-1)


def kernel(contract=None, **how):
    """Return the layernorm with these mistakes as a Kernel."""

    def run(x, weight, bias, eps, weight_offset, normalized_shape):
        return norm(x, weight, bias, eps, normalized_shape, weight_offset, **how)

    return Kernel("plain", "layernorm_fwd", run=run, contract=contract or Contract())


EARLY = kernel(Contract(xhat="x"), early=True)  # declared, so that no check finds anything


def ran(what, seed=0, examples=0, **settings):
    """Return the report of a search."""
    options = {"checks": ("accuracy", "statistics", "distribution"), "seconds": 60.0, "isolate": False}
    return search(what, Settings(examples=examples, seed=seed, **(options | settings)))


def changes(old, new, *way, limits=None):
    """Return the changes from one document to another by their subject; by default those that are worse."""
    (pair,) = compare([old], [new], limits).pairs
    return {change.what: change for change in pair.changes if change.way in (way or ("worse",))}


def tally(ulps, dtype="float16", ratio=0.9, cases=1):
    """Return a tally of these signed errors of numbers near 1.25."""
    form, steps = FORMATS[dtype], np.rint(ulps)
    unit = form.ulp(np.array(1.25))
    stats = UlpStats.of(1.25 + steps * unit, 1.25 + (steps - np.asarray(ulps)) * unit, form)
    return Tally("y", dtype, cases, len(steps), ulp=stats, ratio=ratio)


def with_tallies(report, *tallies, **other):
    """Return the report with these tallies and no finding."""
    return replace(report, tallies=tallies, findings=(), **other)


def surveyed(report, what, seed, count=60):
    """Return an audit with nothing but the errors in typical data of this seed."""
    settings = replace(report.settings, seed=seed)
    found = survey(what, typical(OPS["layernorm_fwd"], ("float16",), "cpu", seed, count))
    return Audit(replace(report, settings=settings, tallies=(), contract=what.contract), found)


def finding(check="accuracy", output="y", dtype="float16"):
    """Return a finding that three cases show."""
    return Finding("plain", check, output, "fail", f"{output} is off", CaseSpec((2,), dtype=dtype), cases=3)


def ladder(errors, over=None, like=("two_pass",), output="y"):
    """Return a ladder over the offset, one step a power of ten."""
    values = [10.0**k for k in range(len(errors))]
    rungs = tuple(Rung(value, error, 0.5, {}) for value, error in zip(values, errors, strict=True))
    return Ladder("offset", "offset/scale", output, "float32", rungs, over, like)
