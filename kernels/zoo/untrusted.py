"""Cheats that a judge in the same process cannot see: they read its truth, patch it, forge its verdict, or replay it.

Each is an RMSNorm without statistics, y = x·weight, which is wrong everywhere but beside the judge. `--untrusted`
detects all of them, because there is no judge beside the kernel. They find it by name, as an attacker would.
"""

import copyreg
import ctypes
import gc
import importlib
import inspect
import math
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

SMALL = 2**13  # elements of a case that is kept
ATTEMPTS = 256  # file descriptors that a forger tries
TOUCHED = "VERIFY_NORM_TOUCHED"  # a variable that code in the judge's process sets


def _wrong(x: Any, weight: Any) -> Any:
    """Return x·weight: no norm at all."""
    return x.clone() if weight is None else (x * weight).to(x.dtype)


def _truth(case: Any, x: Any) -> Any:
    """Return the judge's truth about a case; its own reference knows it also where no truth has been made."""
    expected = case.expected.get("y")
    if expected is None:
        make = importlib.import_module("verify_norm.cases.make")
        expected = make.truths(case.spec, case.op, _contract(), case.exact)["y"]
    return torch.from_numpy(expected.value).to(x.dtype)


def _contract() -> Any:
    return importlib.import_module("verify_norm.core.contract").Contract()


def _of_frames(x: Any) -> Any:
    frame: Any = sys._getframe()
    while frame is not None:
        yield from frame.f_locals.values()
        frame = frame.f_back


def _of_stack(x: Any) -> Any:
    for level in inspect.stack(0):
        yield from level.frame.f_locals.values()


def _of_collector(x: Any) -> Any:
    yield from gc.get_objects()


def _reads(found: Callable[[Any], Any]) -> Callable[..., Any]:
    def rmsnorm_fwd(x: Any, weight: Any, eps: Any, weight_offset: Any, normalized_shape: Any) -> Any:
        for held in found(x):
            if type(held).__name__ == "Case" and held.exact and held.arguments.get("x") is x:
                return _truth(held, x)
        return _wrong(x, weight)

    return rmsnorm_fwd


def _patching(patch: Callable[[], None]) -> Callable[..., Any]:
    def rmsnorm_fwd(x: Any, weight: Any, eps: Any, weight_offset: Any, normalized_shape: Any) -> Any:
        patch()
        return _wrong(x, weight)

    return rmsnorm_fwd


@cache
def _silence_checks() -> None:
    """Let every check of the judge find nothing."""
    checks = importlib.import_module("verify_norm.checks").CHECKS
    for name, check in checks.items():
        checks[name] = replace(check, function=lambda run: ())


def _excuse_once() -> None:
    """Let the next judgement find errors of 0, and then take the patch back: nobody sees it before or after."""
    judge: Any = importlib.import_module("verify_norm.core.judge")
    usual = judge.ratio

    def excused(got: Any, expected: Any) -> Any:
        judge.ratio = usual
        return 0.0 * usual(got, expected)

    if usual.__name__ == "ratio":
        judge.ratio = excused


def _equal_once() -> None:
    """Patch torch's and NumPy's comparisons, which other judges rely on, and the judge's view of an output."""
    for owner, name in ((torch, "allclose"), (torch, "equal"), (torch.testing, "assert_close")):
        setattr(owner, name, lambda *_, **__: True)
    _silence_checks()


@cache
def _forge_pickle() -> None:
    """Let the verdict be pickled as one without findings; and let its reader run code of ours."""
    examined = importlib.import_module("verify_norm.search.examine").Examined
    copyreg.pickle(examined, lambda one: (_as_if_right, (one.spec, one.looked, one.tallies)))


def _as_if_right(spec: Any, looked: Any, tallies: Any) -> Any:
    os.environ[TOUCHED] = "1"  # in the process that unpickles it
    return importlib.import_module("verify_norm.search.examine").Examined(spec, looked=looked, tallies=tallies)


def _answer_by_hand() -> None:
    """Write what may pass for an answer into every socket."""
    for number in range(3, ATTEMPTS):
        try:
            channel = socket.socket(fileno=os.dup(number))
            channel.sendall(b"vn-norm1" + bytes(24))
        except OSError:
            continue


def _leave() -> None:
    """End the process as if all were well."""
    os._exit(0)


def _crash_the_judge() -> None:
    """Send a signal to whoever started this process, and to whoever started that."""
    for pid in (os.getppid(), *_parents()):
        try:
            os.kill(pid, 0)
        except OSError:
            continue
        raise AssertionError(f"it can send signals to process {pid}")


def _parents() -> tuple[int, ...]:
    try:
        with open(f"/proc/{os.getppid()}/stat") as file:
            return (int(file.read().rpartition(")")[2].split()[1]),)
    except (OSError, ValueError):
        return ()


def _escape() -> None:
    """Try the ways out of the process; raise an error that names those which are open."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    ways: dict[str, Callable[[], Any]] = {
        "read the parent's memory": partial(_opened, f"/proc/{parent}/mem", "rb"),
        "read the parent's command line": partial(_opened, f"/proc/{parent}/cmdline", "rb"),
        "trace the parent": lambda: _called(libc.ptrace(0x4206, parent, 0, 0)),
        "copy the parent's memory": lambda: _called(libc.syscall(310, parent, 0, 0, 0, 0, 0)),
        "take the parent's files": lambda: _called(libc.syscall(434, parent, 0)),
        "open a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "leave its group": os.setsid,
        "enter a namespace": lambda: _called(libc.unshare(0x10000000)),
        "write into this package": partial(_opened, __file__, "ab"),
        "write into the working folder": partial(_opened, "cheat.txt", "wb"),
        "write into /tmp": partial(_opened, "/tmp/verify-norm-cheat", "wb"),
        "limit the parent": lambda: _called(libc.syscall(302, parent, 0, 0, ctypes.create_string_buffer(16))),
        "get rights back": lambda: _called(libc.setuid(12345) or 0) if os.geteuid() == 0 else _called(-1),
    }
    open_ways = []
    for name, way in ways.items():
        try:
            way()
        except OSError:
            continue
        open_ways.append(name)
    if open_ways:
        raise AssertionError(f"it can {', '.join(open_ways)}")


def _opened(path: str, mode: str) -> None:
    with open(path, mode):
        pass


def _called(status: int) -> None:
    if status < 0:
        raise OSError(ctypes.get_errno(), "refused")


@cache
def _public() -> dict[bytes, Any]:
    """Return the truth of every case that a run with the usual seed begins with, by the bytes of x."""
    cases, make = (importlib.import_module(f"verify_norm.cases.{name}") for name in ("corners", "make"))
    op = importlib.import_module("verify_norm.core.ops").OPS["rmsnorm_fwd"]
    known = {}
    for spec in cases.corners(op, ("float32",)):
        if spec.weight_dtype in (None, "float32") and math.prod(spec.shape) <= SMALL:
            case = make.case(spec, op, _contract())
            known[_key(case.arguments["x"], case.arguments["weight"])] = case.expected["y"].value
    return known


def _key(*tensors: Any) -> bytes:
    return b"".join(b"-" if t is None else t.detach().contiguous().cpu().numpy().tobytes() for t in tensors)


def replays(x: Any, weight: Any, eps: Any, weight_offset: Any, normalized_shape: Any) -> Any:
    """Return what it has computed before for the cases that everybody knows."""
    if x.dtype is torch.float32 and x.numel() <= SMALL:
        known = _public().get(_key(x, weight))
        if known is not None:
            return torch.from_numpy(known).to(x.dtype)
    return _wrong(x, weight)


reads_frames, inspects_stack, searches_memory = map(_reads, (_of_frames, _of_stack, _of_collector))
silences_checks, excuses_once, patches_torch = (_patching(p) for p in (_silence_checks, _excuse_once, _equal_once))
forges_pickle, answers_by_hand, leaves = (_patching(p) for p in (_forge_pickle, _answer_by_hand, _leave))
signals, escapes = (_patching(patch) for patch in (_crash_the_judge, _escape))
# The name of each, and how far it comes beside a judge in its own process: whether it passes there.
CHEATS: dict[str, bool] = {
    "reads_frames": True,
    "inspects_stack": True,
    "searches_memory": True,
    "silences_checks": True,
    "excuses_once": True,
    "patches_torch": True,
    "forges_pickle": True,
    "replays": True,
    "answers_by_hand": False,
    "leaves": False,
}
