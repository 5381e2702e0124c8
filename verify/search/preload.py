"""Imported once by the fork server, for all its children: torch, the checks, Triton in its interpreter."""

import os

import scipy.special  # noqa: F401 — `cases.draw` imports it at its first use
import torch._dynamo  # noqa: F401 — a TorchDispatchMode would import it at its first use, for a second

import verify_norm.search.examine  # noqa: F401
from verify_norm.running.interpreter import patch

if os.environ.get("TRITON_INTERPRET") == "1":  # with a GPU the kernel imports Triton
    patch.enable()
