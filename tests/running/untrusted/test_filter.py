"""Which system calls the sandbox's filter lets through, and how the others fail."""

import ctypes
import errno
import os
import signal
import struct

import pytest
from forked import forked

from verify_norm.running.untrusted import sandbox

EPERM, ENOSYS = (0x50000 | number for number in (errno.EPERM, errno.ENOSYS))
ALLOW, KILL = 0x7FFF0000, 0x80000000
X86_64, I386 = 0xC000003E, 0x40000003
OWN = 200  # a process whose number is that of a system call too
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*


def signals(pid):
    """Return whether this process may send signals to another."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    return True


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter is of x86_64")
def test_the_filter_holds_signals_back_where_landlock_does_not():
    def inside():
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
        sandbox._seccomp(signals=True)
        return [signals(pid) for pid in (os.getpid(), os.getppid())]

    assert forked(inside) == ([True, False], 0)


def verdict(number, argument=0, *, machine=X86_64, signals=True):
    """Return what the filter says of a system call, as the kernel computes it."""
    words = {0: number, 4: machine, 16: argument}
    program = [struct.unpack("<HBBI", step) for step in sandbox._program(signals=signals)]
    value = at = 0
    while True:
        code, then, otherwise, k = program[at]
        if code == 0x06:
            return k
        if code == 0x20:
            value, at = words[k], at + 1
        else:
            right = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += 1 + (then if right else otherwise)


@pytest.mark.parametrize(
    ("name", "said", "call"),
    [
        ("getpid", ALLOW, (39,)),
        ("connect", ALLOW, (42,)),
        ("execve", ALLOW, (59,)),
        ("socket", EPERM, (41,)),
        ("ptrace", EPERM, (101,)),
        ("setsid", EPERM, (112,)),
        ("bpf", EPERM, (321,)),
        ("mount_setattr", EPERM, (442,)),
        ("finit_module", EPERM, (313,)),
        ("delete_module, the last of the table", EPERM, (176,)),
        ("clone3", ENOSYS, (435,)),
        ("fork", ALLOW, (56, signal.SIGCHLD)),
        ("a fork whose end is told by signal 62", ALLOW, (56, 62)),
        ("a thread", ALLOW, (56, 0x3D0F00)),
        *((f"a namespace, {flag:#x}", EPERM, (56, flag | signal.SIGCHLD)) for flag in NAMESPACES),
        ("prlimit of itself", ALLOW, (302, 0)),
        *((f"prlimit of {pid}", EPERM, (302, pid)) for pid in (1, 2**31)),
        ("tkill", EPERM, (200, OWN)),
        *((f"kill {pid}", EPERM, (62, pid)) for pid in (0, 1, 2**32 - 1)),
        *((f"{number} of itself", ALLOW, (number, OWN)) for number in (62, 234, 129, 297)),
        *((f"{number} of another", EPERM, (number, OWN + 1)) for number in (62, 234, 129, 297)),
        ("x32", KILL, (0x40000000 + 39,)),
        ("the first of x32", KILL, (0x40000000,)),
    ],
)
def test_a_system_call(name, said, call, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: OWN)
    own = {62, 200, 234, 129, 297}
    assert verdict(*call) == said, name
    assert verdict(*call, signals=False) == (ALLOW if call[0] in own else said), "Landlock holds signals back"
    assert verdict(*call, machine=I386) == KILL


def test_every_denied_call_fails():
    for numbers in sandbox.DENIED.values():
        for number in numbers:
            assert verdict(number) == EPERM, number
