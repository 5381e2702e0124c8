"""verify-norm: tells whether a normalization kernel is correct, and how accurate it is.

Importing it loads neither torch nor Triton nor Hypothesis: the public names are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "CaseSpec": "spec",
    "Contract": "spec",
    "Finding": "spec",
    "FindingsError": "report.model",
    "Kernel": "spec",
    "Report": "report.model",
    "Reports": "api",
    "Settings": "report.model",
    "UlpStats": "ulp",
    "UsageError": "bind",
    "audit": "api",
    "kernel": "api",
    "load": "registry",
    "parametrize_checks": "pytest_plugin",
    "replay": "api",
}
__all__ = [
    "CaseSpec", "Contract", "Finding", "FindingsError", "Kernel", "Report", "Reports", "Settings", "UlpStats",
    "UsageError", "__version__", "audit", "kernel", "load", "parametrize_checks", "replay",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'verify_norm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"verify_norm.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
