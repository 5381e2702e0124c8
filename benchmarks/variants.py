"""Other values for the constants of our kernels' plans: layernorm_bwd@row_plan.PAIRED=1024 in run.py.

The constants are those of kernels/rows/plan.py and kernels/groups/plan.py; + joins several. So one run compares a
choice with others. Without a variant, the values of the source apply.
"""

import re
from typing import Any

from verify_norm.core.errors import UsageError, one_of
from verify_norm.kernels import launch
from verify_norm.kernels.groups import launch as group_launch
from verify_norm.kernels.groups import plan as group_plan
from verify_norm.kernels.rows import plan as row_plan

MODULES = {"row_plan": row_plan, "group_plan": group_plan}
KEPT = (
    row_plan.forward_plan,
    row_plan.backward_plan,
    row_plan.fold_plan,
    group_plan.plan,
    group_launch.forward_chain,
    group_launch.backward_chain,
)
SHIPPED: dict[tuple[Any, str], Any] = {
    (module, name): value
    for module in MODULES.values()
    for name, value in vars(module).items()
    if name.isupper()
    and not hasattr(launch, name)
    and (isinstance(value, int) or (type(value) is dict and "cuda" in value))
}
NAMES = {f"{key}.{name}": (module, name) for key, module in MODULES.items() for of, name in SHIPPED if of is module}


def parse(text: str) -> dict[str, int]:
    """Return the constants of NAME=VALUE+NAME=VALUE; raise UsageError for other text and unknown names.

    >>> parse("row_plan.PAIRED=1024+group_plan.BATCH=9437184")
    {'row_plan.PAIRED': 1024, 'group_plan.BATCH': 9437184}
    """
    found = {}
    for part in text.split("+"):
        setting = re.fullmatch(r"([\w.]+)=(\d+)", part)
        if setting is None:
            raise UsageError(f"expected a constant like row_plan.PAIRED=1024, got {part!r}")
        found[one_of("constant of the plans", setting[1], NAMES)] = int(setting[2])
    return found


def plan_by(constants: dict[str, int]) -> None:
    """Set these constants, and reset all others to the values of the source."""
    for name, (module, attribute) in NAMES.items():
        shipped = SHIPPED[module, attribute]
        value: Any = shipped
        if name in constants:
            value = dict.fromkeys(shipped, constants[name]) if type(shipped) is dict else constants[name]
        setattr(module, attribute, value)
    for kept in KEPT:
        kept.cache_clear()
