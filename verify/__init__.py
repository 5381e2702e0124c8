"""verify-norm: tells whether a normalization kernel is correct, and how accurate it is.

Importing it loads neither torch nor Triton nor Hypothesis: the public names are resolved when they are first used.
"""

import importlib
from typing import Any

__version__ = "0.9.0"

_NAMES = {
    "api": ("audit", "exhaust", "replay", "run_campaign", "same", "verify"),
    "core.chains": ("chain",),
    "core.user_operators": ("operator",),
    "core.contract": ("Contract",),
    "core.declaration": ("kernel",),
    "core.errors": ("FindingsError", "UsageError"),
    "core.finding": ("Finding",),
    "core.kernel": ("Kernel",),
    "core.reports": ("Reports",),
    "core.results": ("Report",),
    "core.settings": ("Settings",),
    "core.spec": ("CaseSpec",),
    "core.ulp": ("UlpStats",),
    "equality.model": ("Equality",),
    "exhaustive.model": ("Exhausted",),
    "loading.registry": ("load",),
    "pytest_plugin.marking": ("parametrize_checks",),
    "testing": ("assert_norm_close", "assert_norm_gradients_close", "bound"),
    "scoring.reward": ("Reward", "reward"),
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_LAZY, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("verify_norm.testing")
    if name not in _LAZY:
        raise AttributeError(f"module 'verify_norm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"verify_norm.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
