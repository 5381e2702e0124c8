"""Names of accelerators, as a plan, Ray and torch write them."""

import re
from collections.abc import Iterable

CPU = "cpu"


def kind_of(device: str, accelerators: Iterable[str]) -> str:
    """Return the first of these accelerators that a device of this name is, "" if it is none.

    >>> kind_of("NVIDIA H100 80GB HBM3", ["A100", "H100"]), kind_of("NVIDIA A100-SXM4-40GB", ["A100-40G", "A10"])
    ('H100', '')
    """
    there = _words(device)
    return next((kind for kind in accelerators if _words(kind) and _words(kind) <= there), "")


def _words(name: str) -> set[str]:
    return set(re.findall(r"[0-9a-z]+", name.lower()))
