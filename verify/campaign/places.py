"""Chooses where the units of a campaign run: on this machine, or in a Ray cluster."""

from verify_norm.campaign import local
from verify_norm.campaign.plan import Plan
from verify_norm.core.errors import UsageError

ON = "local, ray or ray=ADDRESS"


def here(on: str) -> bool:
    """Return whether units run on this machine alone; raises UsageError for what is no place.

    >>> here("local"), here("ray=10.0.0.1:6379")
    (True, False)
    """
    name = on.partition("=")[0]
    if name not in ("local", "ray") or (name == "local" and on != name) or on.endswith("="):
        raise UsageError(f"--on: expected {ON}, got {on}")
    return name == "local"


def executor(on: str, plan: Plan, jobs: int | None) -> local.Executor:
    """Return what examines units; raises UsageError where the device, the package or the cluster is not there."""
    if here(on):
        return local.Local(plan, jobs)
    from verify_norm.campaign.on_ray import OnRay

    return OnRay(plan, on.partition("=")[2], jobs)
