"""Turns a run into findings: each check is a function and one decorator line.

Where a check's tolerance depends on the case, it also yields its power: the smallest error that it would have caught.
Where a kernel promises nothing, it yields what it observed instead of a finding.

A check never prints, never raises on a numerical failure, and knows nothing of Hypothesis, pytest or reports. The first
line of its docstring is the sentence that users see.
"""

from verify_norm.checks import (  # noqa: F401 — they enter themselves
    autograd,
    calls,
    degenerate,
    determinism,
    distribution,
    effects,
    gradient,
    honesty,
    identities,
    invariance,
    memory,
    modes,
    nonfinite,
    signature,
    sums,
    values,
)
from verify_norm.checks.check import CHECKS as _ENTERED
from verify_norm.checks.check import Check
from verify_norm.core.check_names import CHECK_NAMES

assert _ENTERED.keys() == set(CHECK_NAMES), f"core/check_names.py misses or adds {_ENTERED.keys() ^ set(CHECK_NAMES)}"
CHECKS: dict[str, Check] = {name: _ENTERED[name] for name in CHECK_NAMES}
