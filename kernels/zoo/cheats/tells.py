"""Cheats that tell a test from use, and compute in half precision where nobody looks."""

import os
import sys

from verify_norm.kernels.zoo.cheats.shortcuts import in_half
from verify_norm.kernels.zoo.eager import rmsnorm

JUDGE, KERNELS = "verify_norm.", "verify_norm.kernels"


def _of_judge(name):
    return name.startswith(JUDGE) and not name.startswith(KERNELS)


def sees_modules(x, weight, eps):
    """It is right where a judge is among the loaded modules."""
    return (rmsnorm if any(map(_of_judge, list(sys.modules))) else in_half)(x, weight, eps)


def sees_stack(x, weight, eps):
    """It is right where a judge is on the stack."""
    frame, tested = sys._getframe(), False
    while frame is not None:
        tested = tested or _of_judge(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return (rmsnorm if tested else in_half)(x, weight, eps)


def sees_command(x, weight, eps):
    """It is right where the command or the environment names a test."""
    words = " ".join([*sys.argv, *os.environ]).lower()
    tested = any(word in words for word in ("pytest", "verify", "verify_norm")) or not sys.argv[0].endswith("python")
    return (rmsnorm if tested else in_half)(x, weight, eps)
