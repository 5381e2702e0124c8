"""A Ray cluster as a driver meets it: where it is, what its hosts have and are given, whether its head is still there.

Ray is an optional package, which `actor.imported` imports.
"""

import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import verify_norm
from verify_norm.campaign.accelerators import CPU
from verify_norm.campaign.actor import imported
from verify_norm.campaign.local import ONE_EACH
from verify_norm.campaign.model import LostError
from verify_norm.campaign.plan import Plan
from verify_norm.core.errors import UsageError, first_line, one_of

UNSHIPPED = [".git", "*.campaign", "*.campaign-*", "*.campaign.lock", "__pycache__"]  # of the working folder
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # the variable in which `ray job submit` says what its job has
REFUSED = "Failed to connect"  # what Ray says where something answers and does not take us
HINT = "; it needs the version of Ray that is here, and RAY_AUTH_MODE=token if it asks for a token"
CONNECTING = 10.0  # seconds
LOOKING = 5.0  # seconds until the head is looked for again
LOST = 60.0  # seconds after which a head is lost; until then another one may take its place


class Head:
    """The head of the cluster that this process has joined.

    Without it Ray starts no worker, waits in most calls and, after some time, ends this process with status 1. From
    outside of the cluster, with ray://, Ray's client raises an error itself.
    """

    def __init__(self, ray: Any) -> None:
        outside = ray.util.client.ray.is_connected()
        self._address = "" if outside else ray.get_runtime_context().gcs_address
        self._seen = self._looked = time.monotonic()

    def silent(self) -> str:
        """Return why it does not answer, "" if it does."""
        return _silent(self._address) if self._address else ""

    def look(self) -> None:
        """Raise LostError if it has not answered for LOST seconds."""
        now = time.monotonic()
        if now - self._looked < LOOKING:
            return
        self._looked = now
        said = self.silent()
        if not said:
            self._seen = now
        elif now - self._seen >= LOST:
            raise LostError(f"--on ray: the head at {self._address} has not answered for {LOST:g} s: {said}")


def why(error: Exception) -> str:
    """Return what Ray says of an error, on one line: in what it raised it quotes the error of the worker last."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return lines[-1] if lines and type(error).__module__.startswith("ray") else first_line(error)


def connect(address: str) -> None:
    """Join a cluster, and give its workers this package and the working folder. Raises UsageError."""
    _reach(address)
    job = json.loads(os.environ.get(JOB, "{}")).get("runtime_env", {})
    ships: dict[str, Any] = {}
    if "working_dir" not in job:
        package = str(Path(verify_norm.__file__).parent)
        ships = {"py_modules": [package], "working_dir": os.getcwd(), "excludes": UNSHIPPED}
    try:
        imported().init(address or None, runtime_env=ships, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        option = f"--on ray={address}" if address else "--on ray"
        hint = HINT if REFUSED in why(error) else ""
        raise UsageError(f"{option}: {why(error)}{hint}") from error


def _reach(address: str) -> None:
    """Raise UsageError if nothing answers at an address: Ray would try for minutes, and end this process."""
    address = address or os.environ.get("RAY_ADDRESS", "")
    place = address.partition("://")[2] if "://" in address else address
    if not place.rpartition(":")[2].isdecimal():  # Ray says what is wrong with it
        return
    said = _silent(place)
    if said:
        raise UsageError(f"--on ray: there is no cluster at {address}: {said}")


def _silent(place: str) -> str:
    """Return why nothing answers at HOST:PORT, "" if something does."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECTING).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def places(plan: Plan, jobs: int | None, nodes: list[Any]) -> tuple[bool, dict[str, int]]:
    """Return whether workers are on GPUs, and how many of each kind the cluster has; raises UsageError."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    if ":" in plan.device:
        raise UsageError(f"--on ray: Ray chooses the GPUs; take --device cuda, not {plan.device}")
    if plan.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {plan.device!r}; there are: cpu, cuda")
    gpus = int(sum(host.get("GPU", 0) for host in resources))
    asks_for_gpus = plan.device == "cuda" or (plan.device == "auto" and gpus > 0)
    if asks_for_gpus and plan.accelerators != (CPU,):
        return True, _gpu_places(plan, jobs, resources, gpus)
    return False, _cpu_places(plan, jobs, resources)


def _gpu_places(plan: Plan, jobs: int | None, resources: list[Any], gpus: int) -> dict[str, int]:
    """Return how many GPUs of each of the plan's accelerators there are; "" stands for any. Raises UsageError."""
    if jobs is not None:
        raise UsageError(ONE_EACH)
    if not gpus:
        raise UsageError("--on ray: the cluster has no GPU")
    if not plan.accelerators:
        return {"": gpus}
    counts: dict[str, int] = {}
    for host in resources:
        for name in host:
            mark, _, kind = name.partition(":")
            if mark == "accelerator_type":
                counts[kind] = counts.get(kind, 0) + int(host.get("GPU", 0))
    return {kind: counts[one_of("accelerator of the cluster", kind, counts)] for kind in plan.accelerators}


def _cpu_places(plan: Plan, jobs: int | None, resources: list[Any]) -> dict[str, int]:
    """Return how many workers on cores there are, `jobs` at most. Raises UsageError."""
    if plan.accelerators not in ((), (CPU,)):
        raise UsageError(f"accelerators: expected cpu for a cluster without GPUs, got {', '.join(plan.accelerators)}")
    cores = int(sum(host.get("CPU", 0) for host in resources))
    if not cores:
        raise UsageError("--on ray: the cluster has no core for a worker")
    return {plan.accelerators[0] if plan.accelerators else "": min(cores, jobs or cores)}
