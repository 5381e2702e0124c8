"""Chooses where a kernel runs: in this process, in a child, or by proxy of an untrusted process."""

from typing import TYPE_CHECKING, TypeAlias

from verify_norm.core.kernel import Kernel
from verify_norm.loading import functions
from verify_norm.running import isolate as processes
from verify_norm.running.isolate import NO_TARGET, InProcess, Isolated

if TYPE_CHECKING:
    from verify_norm.running.untrusted.runner import Untrusted

Runner: TypeAlias = "InProcess | Isolated | Untrusted"


def runner(
    kernel: Kernel, device: str, *, isolate: bool, preload: str = processes.__name__, untrusted: bool = False
) -> Runner:
    """Return where to run the kernel: in a child if `isolate` asks for it and the child can find it by its name.

    Raises UsageError if it has a name, but cannot be sent.

    `preload` names the module that the children's server imports once for all of them. An `untrusted` kernel is one of
    `verify_norm.running.untrusted.loading`.
    """
    if untrusted:
        from verify_norm.running.untrusted.runner import Untrusted  # which no other run loads

        return Untrusted(kernel, device)
    if not isolate or not kernel.target:
        import torch._dynamo  # noqa: F401 — a TorchDispatchMode imports it at its first use, and it replaces torch.manual_seed

        functions.remember(functions.Functions())
    if not isolate:
        return InProcess(kernel, device)
    if not kernel.target:
        return InProcess(kernel, device, f"none: {NO_TARGET}")
    return Isolated(kernel, device, preload)
