"""Other values of the constants that our kernels are planned by: layernorm_bwd@row_plan.PAIRED=1024 in run.py.

They are those of kernels/row_plan.py and kernels/group_plan.py, several joined by +. That is how a choice is measured
against others in one run; what is shipped has the values that stand in the source.
"""

from __future__ import annotations

import re
from typing import Any

from verify_norm.bind import UsageError
from verify_norm.kernels import group_launch, group_plan, launch, row_plan
from verify_norm.registry import one_of

MODULES = (row_plan, group_plan)
KEPT = (
    row_plan.forward_plan, row_plan.backward_plan, row_plan.fold_plan, group_plan.plan, group_launch.forward_chain,
    group_launch.backward_chain,
)  # fmt: skip
SHIPPED: dict[tuple[Any, str], Any] = {
    (module, name): value
    for module in MODULES
    for name, value in vars(module).items()
    if name.isupper()
    and not hasattr(launch, name)
    and (isinstance(value, int) or (type(value) is dict and "cuda" in value))
}
NAMES = {f"{module.__name__.rpartition('.')[2]}.{name}": (module, name) for module, name in SHIPPED}


def parse(text: str) -> dict[str, int]:
    """Read NAME=VALUE+NAME=VALUE; raises UsageError.

    >>> parse("row_plan.PAIRED=1024+group_plan.BATCH=9437184")
    {'row_plan.PAIRED': 1024, 'group_plan.BATCH': 9437184}
    """
    found = {}
    for part in text.split("+"):
        said = re.fullmatch(r"([\w.]+)=(\d+)", part)
        if said is None:
            raise UsageError(f"{part!r} sets no constant; it is to be like row_plan.PAIRED=1024")
        found[one_of("constant of the plans", said[1], NAMES)] = int(said[2])
    return found


def plan_by(constants: dict[str, int]) -> None:
    """Plan by these values and otherwise by those of the source, from now on."""
    for name, (module, attribute) in NAMES.items():
        shipped = SHIPPED[module, attribute]
        value: Any = shipped
        if name in constants:
            value = dict.fromkeys(shipped, constants[name]) if type(shipped) is dict else constants[name]
        setattr(module, attribute, value)
    for kept in KEPT:
        kept.cache_clear()
