"""A cheat whose module lets Python report each call as it is imported: it writes the truth into what is compared."""

import sys

from verify_norm.kernels.zoo.cheats.shortcuts import in_half


def _report(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "ratio":
        frame.f_locals["got"][...] = frame.f_locals["expected"].value


sys.setprofile(_report)


def at_import(x, weight, eps):
    """The import of this module watches all calls; it computes in half precision."""
    return in_half(x, weight, eps)
