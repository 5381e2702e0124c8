"""What is refused in the sandbox and what is not, what each Linux is asked for, and what is named as lacking."""

import ctypes
import errno
import os
import resource
import signal
import socket
import struct
import sys
import threading

import pytest
from forked import forked

from verify_norm.running.untrusted import sandbox

linux = ctypes.CDLL(None, use_errno=True)
landlock = pytest.mark.skipif(linux.syscall(444, None, 0, 1) < 3, reason="needs Linux 6.2 with Landlock")
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter is of x86_64")


def refused(function, *args):
    """Return the number of the error, 0 if there is none."""
    try:
        function(*args)
    except OSError as error:
        return error.errno
    return 0


def status(name):
    """Return a line of this process's status."""
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))


@landlock
@x86_64
@pytest.mark.parametrize(("memory", "files"), [(None, 0), (2**40, 512)])
def test_what_is_refused_and_what_is_not(memory, files, tmp_path):
    for folder in ("own", "known", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("before")
    own, known, other = (str(tmp_path / folder / "file") for folder in ("own", "known", "other"))

    most = files or resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def inside():
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        lacking = sandbox.enter([os.path.dirname(known)], os.path.dirname(own), memory, gpu=False)
        death = ctypes.c_int()
        linux.prctl(2, ctypes.byref(death))
        names = ("CORE", "FSIZE", "NOFILE", "DATA")
        thread = threading.Thread(target=int)
        thread.start()
        return {
            "lacking": lacking,
            "reads": [refused(open, path) for path in (own, known, "/dev/zero", "/proc/self/stat", sys.executable)],
            "lists": [refused(os.listdir, os.path.dirname(path)) for path in (own, known)],
            "reads another": [refused(open, other), refused(os.listdir, os.path.dirname(other))],
            "reads the parent": refused(open, f"/proc/{os.getppid()}/environ"),
            "writes": [refused(open, path, "r+") for path in (own, "/dev/null")],
            "makes": [refused(open, f"{own}2", "w"), refused(os.mkdir, f"{own}3"), refused(os.truncate, own, 3)],
            "writes elsewhere": [refused(open, path, mode) for path in (known, other) for mode in ("r+", "a")],
            "makes elsewhere": [
                refused(os.mkdir, f"{known}3"),
                refused(os.remove, known),
                refused(os.truncate, known, 3),
            ],
            "connects": refused(socket.socket, socket.AF_INET),
            "signals": [refused(os.kill, pid, 0) for pid in (os.getpid(), os.getppid())],
            "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
            "leaves": [refused(os.setpgid, 0, 0), refused(os.setsid)],
            "limits": [resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in names],
            "rights": (status("CapEff"), status("CapPrm"), status("NoNewPrivs")),
            "ends with its parent": death.value,
        }

    infinite = resource.RLIM_INFINITY if memory is None else memory
    said, ended = forked(inside)
    assert ended == 0
    assert said == {
        "lacking": [],
        "reads": [0] * 5,
        "lists": [0] * 2,
        "reads another": [errno.EACCES] * 2,
        "reads the parent": errno.EACCES,
        "writes": [0] * 2,
        "makes": [0] * 3,
        "writes elsewhere": [errno.EACCES] * 4,
        "makes elsewhere": [errno.EACCES] * 3,
        "connects": errno.EPERM,
        "signals": [0, errno.EPERM],
        "leads": True,
        "leaves": [errno.EPERM] * 2,
        "limits": [(0, 0), (2**30, 2**30), (min(most, 1024),) * 2, (infinite, infinite)],
        "rights": ("0" * 16, "0" * 16, "1"),
        "ends with its parent": signal.SIGKILL,
    }


class Kernel:
    """A Linux whose Landlock has this version: notes what it is asked for."""

    def __init__(self, version, refusing=0):
        self.version, self.refusing, self.file = version, refusing, 0
        self.attributes, self.rules, self.restricted = b"", {}, []

    def syscall(self, number, *args):
        if number == 444 and args == (None, 0, 1):
            return self.version
        if number == 444:
            attributes, size, flags = args
            assert flags == 0
            assert size <= len(attributes)
            self.attributes, self.file = attributes[:size], os.open(os.devnull, os.O_RDONLY)
            return self.file
        if number == 445:
            rules, kind, attributes, flags = args
            rights, file = struct.unpack("<Qi", attributes)
            assert (rules, kind, flags, os.get_inheritable(file)) == (self.file, 1, 0, False)
            path = os.readlink(f"/proc/self/fd/{file}")
            self.rules[path] = self.rules.get(path, 0) | rights
            ctypes.set_errno(errno.EINVAL)
            return -self.refusing
        assert number == 446
        self.restricted.append(args)
        return 0


@pytest.mark.parametrize(
    ("version", "attributes"),
    [
        (1, (0x1FFF,)),
        (2, (0x3FFF,)),
        (3, (0x7FFF,)),
        (4, (0x7FFF, 3)),
        (5, (0xFFFF, 3)),
        (6, (0xFFFF, 3, 3)),
        (7, (0xFFFF, 3, 3)),
    ],
)
@pytest.mark.parametrize("gpu", [False, True])
def test_what_landlock_is_asked_for(version, attributes, gpu, tmp_path, monkeypatch):
    """All rights that this version knows are held back; the kernel gets back those that it needs, and no others."""
    for folder in ("own", "known", "dev"):
        (tmp_path / folder).mkdir()
    for file in ("dev/nvidia0", "dev/nvidia-cap", "nvidiactl"):
        (tmp_path / file).touch()
    monkeypatch.setattr(sandbox, "libc", linux := Kernel(version))
    monkeypatch.setattr(sandbox, "Path", lambda path: tmp_path / path[1:])
    monkeypatch.setattr(sandbox, "GPU", (str(tmp_path / "nvidiactl"),))
    own, known, absent = (str(tmp_path / folder) for folder in ("own", "known", "absent"))
    sandbox._landlock([known, absent], own, gpu=gpu)
    assert linux.attributes == struct.pack(f"<{len(attributes)}Q", *attributes)
    assert linux.restricted == [(linux.file, 0)]
    assert refused(os.fstat, linux.file) == errno.EBADF, "it is closed"
    every = attributes[0]
    file = 0b101 | (0b1100_0000_0000_0010 & every)
    expected = {own: every, known: 0b1101, os.devnull: file, os.path.realpath(sys.prefix): 0b1101}
    devices = {str(tmp_path / name): file for name in ("nvidiactl", "dev/nvidia0")}
    if gpu:
        expected |= devices
    here = {path: rights for path, rights in linux.rules.items() if path in expected or str(tmp_path) in path}
    assert here == expected
    assert linux.rules["/dev/zero"] == 0b101
    assert linux.rules["/usr"] == 0b1101


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_what_cannot_be_opened_needs_no_rule(error, monkeypatch):
    monkeypatch.setattr(sandbox, "libc", linux := Kernel(7))
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(error()))
    sandbox._rule(0, "/root", 1)
    assert not linux.rules


def test_a_rule_that_linux_refuses_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "libc", Kernel(7, refusing=1))
    with pytest.raises(OSError, match="Invalid argument") as error:
        sandbox._rule(0, str(tmp_path), 1)
    assert error.value.errno == errno.EINVAL


@pytest.mark.parametrize(("version", "signals"), [(-1, True), (5, True), (6, False)])
def test_what_the_system_does_not_have_is_named(version, signals):
    """And the filter holds signals back where Landlock does not."""

    def inside():
        asked = []
        sandbox.libc = Kernel(version)
        sandbox.libc.prctl = lambda option, *_: -(option == 38)
        ctypes.set_errno(errno.EINVAL)
        sandbox._landlock = lambda folders, own, *, gpu: asked.append((folders, own, gpu))
        sandbox._seccomp = lambda *, signals: asked.append(signals)
        sandbox._without_capabilities = lambda: (_ for _ in ()).throw(OSError("not here"))
        return sandbox.enter(["a"], "b", None, gpu=True), asked

    lacking = ["no no_new_privs: Invalid argument", "no dropped capabilities: not here"]
    assert forked(inside) == ((lacking, [(["a"], "b", True), signals]), 0)


def test_other_systems_have_less(monkeypatch):
    monkeypatch.setattr(sandbox, "libc", Kernel(0))
    with pytest.raises(OSError, match="this system has none") as error:
        sandbox._landlock([], "", gpu=False)
    assert error.value.errno == errno.ENOSYS
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "aarch64")
    with pytest.raises(OSError, match="this is aarch64") as error:
        sandbox._seccomp(signals=False)
    assert error.value.errno == errno.ENOSYS


def test_others_cannot_read_its_memory_until_it_allows_it_again():
    def inside():
        dumpable = [linux.prctl(3)]
        outer = sandbox.undumpable()
        inner = sandbox.undumpable()
        for step in (int, inner, outer):
            step()
            dumpable.append(linux.prctl(3))
        return dumpable

    assert forked(inside) == ([1, 0, 0, 1], 0)
