"""What runs in a Ray cluster: an actor that examines units. Importing this module loads neither Ray nor torch.

Ray's own processes import it too, to know the class: torch has no place in them.
"""

import importlib
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import verify_norm
from verify_norm.campaign import worker
from verify_norm.campaign.model import Outcome, Unit
from verify_norm.core import packages

SAME = ("numpy", "torch", "triton", "hypothesis")  # packages whose versions are those of the campaign on each host
OURS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # else Ray ends a driver without a head before we do
}
Examine = Callable[[Unit, Mapping[str, Any], str], Outcome]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor is: its host, its GPU, and the versions there."""

    host: str
    gpu: str
    versions: Mapping[str, str]


class Actor:
    """The process of one worker in the cluster. Ray shows it its GPU alone."""

    def __init__(self, examine: Examine) -> None:
        worker.begin("")
        self._examine = examine

    def place(self) -> Place:
        """Return where it is."""
        ray = imported()
        return Place(ray.util.get_node_ip_address(), ",".join(map(str, ray.get_gpu_ids())), versions())

    def examine(self, unit: Unit, settings: Mapping[str, Any], name: str) -> Outcome:
        """Return the outcome of a unit."""
        return self._examine(unit, settings, name)


def imported() -> Any:
    """Return the package as `OURS` sets it; raises UsageError if it is not installed."""
    packages.need("--on ray", "ray")
    for name, value in OURS.items():
        os.environ.setdefault(name, value)
    return importlib.import_module("ray")


def versions() -> dict[str, str]:
    """Return the versions that all hosts of a campaign share; builds of one version, as for CPU and CUDA, are equal."""
    found = {"verify-norm": verify_norm.__version__, "python": platform.python_version()}
    for name in SAME:
        present = packages.present(name)
        found[name] = metadata.version(name).partition("+")[0] if present else "none"
    return found
