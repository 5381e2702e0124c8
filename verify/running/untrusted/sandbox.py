"""Takes the rights of this process away, for good: files, network, signals, other processes, memory. Linux only.

Call it in a process of one thread, before any of the kernel's modules is imported. Parts that the system does not have
are left out and named. It imports the standard library alone.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

FILE = 2**30  # bytes of the largest file that it may write
FILES = 1024  # open files
# What a process needs besides the import path: libraries, the clock's zone, what torch asks about the processor.
READABLE = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/nix", "/sys", "/run/opengl-driver")
KNOWN = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/self", "/proc/sys", "/proc/driver", "/proc/devices")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
GPU = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps", "/dev/nvidia-modeset")

# Landlock (linux/landlock.h): rights by the bit, and since which version of its interface there are so many.
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every machine
_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
_READ, _WRITE = 0b1101, 1 << 1 | 1 << 14 | 1 << 15  # execute, read a file, read a folder; write, truncate, ioctl
_FOLDER_ALONE = 0x3FF8  # bits 3 to 13: what a rule about a file may not name
# Seccomp (linux/seccomp.h, linux/filter.h): what fails with EPERM, by its number on x86_64.
DENIED = {
    "other processes": (101, 310, 311, 312, 424, 434, 438, 440),  # ptrace, process_vm_*, kcmp, pidfd_*, madvise
    "the network": (41,),  # socket; a socketpair remains
    "a group of its own": (109, 112),  # setpgid, setsid: who ends the group ends all
    "ways around this filter": (425, 426, 427, 321, 298, 323),  # io_uring, bpf, perf_event_open, userfaultfd
    "memory by a key": (29, 30, 31, 64, 68, 240, 248, 249, 250),  # shm*, semget, msgget, mq_open, keys
    "namespaces and mounts": (155, 161, 165, 166, 272, 303, 304, 308, 428, 429, 430, 431, 432, 433, 442),
    "the machine": (103, 135, 153, 159, 163, 164, 167, 168, 169, 170, 171, 172, 173, 175, 176, 179, 227, 246, 305),
    "modules of the system": (313, 320),
}
_KILLS = {62: 0, 200: None, 234: 0, 129: 0, 297: 0}  # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: the pid
_X86_64, _CLONE, _CLONE3, _PRLIMIT = 0xC000003E, 56, 435, 302
_NAMESPACES = 0x7E020000  # flags of clone for namespaces
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_IS_DUMPABLE, _DUMPABLE, _DEATHSIG, _NO_NEW_PRIVS, _SECCOMP = 3, 4, 1, 38, 22  # of prctl

libc = ctypes.CDLL(None, use_errno=True)


def enter(folders: Iterable[str], own: str, memory: int | None, *, gpu: bool) -> list[str]:
    """Enter the sandbox, which cannot be left; return in words the parts that this system does not have.

    The process may then read `folders` and what any process needs, write into the folder `own` alone, and allocate
    `memory` bytes; None: no limit.
    """
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    lacking = []
    libc.prctl(_DEATHSIG, signal.SIGKILL)
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("no_new_privs", lambda: _succeeded(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))),
        ("Landlock, which limits files, signals and TCP", lambda: _landlock(folders, own, gpu=gpu)),
        ("dropped capabilities", _without_capabilities),
        ("seccomp, which limits system calls and the network", lambda: _seccomp(signals=_abi() < 6)),
    )
    for name, part in parts:
        try:
            part()
        except OSError as error:
            lacking.append(f"no {name}: {error.strerror or error}")
    return lacking


def undumpable() -> Callable[[], None]:
    """Let no other process of this user read this one's memory; return what allows it again."""
    before = libc.prctl(_IS_DUMPABLE)
    libc.prctl(_DUMPABLE, 0)

    def again() -> None:
        libc.prctl(_DUMPABLE, before)

    return again


def _succeeded(status: int) -> int:
    """Return the status of a system call; raises OSError if it failed."""
    if status < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(status)


def _abi() -> int:
    """Return the version of Landlock's interface; 0 if this system has none."""
    return max(int(libc.syscall(_CREATE, None, 0, 1)), 0)


def _landlock(folders: Iterable[str], own: str, *, gpu: bool) -> None:
    abi = _abi()
    if not abi:
        raise OSError(errno.ENOSYS, "this system has none")
    rights = (1 << max(bits for since, bits in _RIGHTS.items() if since <= abi)) - 1
    attributes = struct.pack("<QQQ", rights, 3, 3)  # files, TCP, scopes: each version reads what it knows
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _succeeded(libc.syscall(_CREATE, attributes, size, 0))
    readable = {*folders, *READABLE, *KNOWN, *DEVICES, sys.prefix, sys.base_prefix, sys.exec_prefix}
    writable = ["/dev/null", *(GPU if gpu else ()), *(map(str, Path("/dev").glob("nvidia[0-9]*")) if gpu else ())]
    for path in readable:
        _rule(rules, path, _READ & rights)
    for path in writable:
        _rule(rules, path, (_READ | _WRITE) & rights)
    _rule(rules, own, rights)
    _succeeded(libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)


def _rule(rules: int, path: str, rights: int) -> None:
    """Allow these rights below a path, or of a file; nothing where there is none."""
    with suppress(FileNotFoundError, PermissionError):
        fd = os.open(path, os.O_PATH)
        if not os.path.isdir(path):
            rights &= ~_FOLDER_ALONE
        status = libc.syscall(_ADD, rules, 1, struct.pack("<Qi", rights, fd), 0)
        os.close(fd)
        _succeeded(status)


def _without_capabilities() -> None:
    header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
    _succeeded(libc.capset(header, none))


def _seccomp(*, signals: bool) -> None:
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"its table is of x86_64, and this is {platform.machine()}")
    program = b"".join(_program(signals=signals))
    buffer = ctypes.create_string_buffer(program)
    _succeeded(libc.prctl(_SECCOMP, 2, struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))))


def _program(*, signals: bool) -> Iterator[bytes]:
    """Yield the filter, one instruction at a time; `signals`: it holds them back too, as Landlock does from 6 on."""

    def step(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
        return struct.pack("<HBBI", code, jt, jf, k)

    def load(offset: int) -> bytes:  # of struct seccomp_data: the number at 0, the machine at 4, arguments from 16 on
        return step(0x20, offset)

    def fails(number: int) -> bytes:
        return step(0x06, _ERRNO | number)

    yield load(4)
    yield step(0x15, _X86_64, 1, 0)
    yield step(0x06, _KILL)
    yield load(0)
    yield step(0x35, 0x40000000, 0, 1)  # x32
    yield step(0x06, _KILL)
    for number in (number for numbers in DENIED.values() for number in numbers):
        yield step(0x15, number, 0, 1)
        yield fails(errno.EPERM)
    yield step(0x15, _CLONE3, 0, 1)  # its flags are out of a filter's reach: the C library takes clone then
    yield fails(errno.ENOSYS)
    for number, argument, jump in ((_CLONE, _NAMESPACES, 0x45), (_PRLIMIT, 0xFFFFFFFF, 0x45)):
        yield step(0x15, number, 0, 4)  # flags of clone; prlimit of another process
        yield load(16)
        yield step(jump, argument, 0, 1)  # any of these bits
        yield fails(errno.EPERM)
        yield load(0)
    for number, place in _KILLS.items() if signals else ():
        if place is None:
            yield step(0x15, number, 0, 1)
            yield fails(errno.EPERM)
            continue
        yield step(0x15, number, 0, 4)
        yield load(16)
        yield step(0x15, os.getpid(), 1, 0)  # abort() signals its own process
        yield fails(errno.EPERM)
        yield load(0)
    yield step(0x06, _ALLOW)
