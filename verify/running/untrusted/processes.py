"""The judge's side of the processes: starts a worker, sends it requests, reads its answers, and ends it."""

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from verify_norm.core.errors import UsageError, visible
from verify_norm.loading.bind_option import parse
from verify_norm.loading.targets import folders_of
from verify_norm.running.child import MEMORY, memory
from verify_norm.running.fork_server import ending
from verify_norm.running.isolate import LOADING
from verify_norm.running.patience import LostError
from verify_norm.running.untrusted import wire, zygote
from verify_norm.running.untrusted.arena import Arena

# Variables that a worker gets, if they are set: where programs and libraries are, and which GPUs there are.
PASSED = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot be forked
STARTING = 120.0  # seconds that the import of torch may take
CHUNK = 2**20  # bytes that are read at once


class Zygote:
    """The process that workers are forked from."""

    def __init__(self, interpret: str | None) -> None:
        ours, theirs = socket.socketpair()
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
        environment = passed | THREADS | {"PYTHONPATH": path, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"TRITON_INTERPRET": interpret} if interpret else {}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", zygote.__name__, str(theirs.fileno())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the judge alone
        )
        theirs.close()
        ours.settimeout(STARTING)
        self._control = ours
        atexit.register(self.close)

    def fork(self, *files: int) -> int:
        """Return the process of a new worker, which gets these files."""
        return self._request(zygote.FORK, 0, files)

    def reap(self, pid: int, *, waiting: bool) -> int:
        """End a worker, and all that it has started; return its exit status if it ends by itself, `waiting` for it."""
        return self._request(zygote.REAP if waiting else zygote.KILL, pid)

    def _request(self, what: int, number: int, files: Sequence[int] = ()) -> int:
        """Send the zygote a request, and return its answer; raises UsageError if it has ended."""
        try:
            socket.send_fds(self._control, [zygote.REQUEST.pack(what, number)], files)
            data = self._control.recv(zygote.REPLY.size)
        except OSError:
            data = b""
        if len(data) != zygote.REPLY.size:
            started.cache_clear()
            raise UsageError("--untrusted: the process that starts workers has ended; see the lines above")
        return int(zygote.REPLY.unpack(data)[0])

    def close(self) -> None:
        """End it, and with it its workers."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(zygote.GRACE)
        self._process.kill()
        self._process.wait()


@cache
def started(owner: int, interpret: str | None) -> Zygote:
    """Return the zygote of the process `owner`, started once; `interpret` is the value of TRITON_INTERPRET."""
    return Zygote(interpret)


@cache
def linked(entry: str) -> tuple[str, ...]:
    """Return the folders whose files a strict editable install links from an entry of the import path."""
    if not Path(entry).name.startswith("__editable__."):
        return ()
    files = (file for file in Path(entry).rglob("*.py") if file.is_symlink())
    return tuple(sorted({str(file.resolve().parent) for file in files}))


class Worker:
    """A process that runs a kernel, in its sandbox. `lacking` says in words what this system's sandbox lacks."""

    def __init__(self, target: str, bind: str, device: str) -> None:
        ours, theirs = socket.socketpair()
        self.arena, self._socket, self._number = Arena(), ours, 0
        self._zygote = started(os.getpid(), os.environ.get("TRITON_INTERPRET"))
        self._own = tempfile.mkdtemp(prefix="verify-norm-")
        self.pid = self._zygote.fork(theirs.fileno(), self.arena.file)
        theirs.close()
        files = [where for where in (target.rpartition(":")[0], *constants(bind)) if where.endswith(".py")]
        readable = [str(folder) for file in files for folder in folders_of(Path(file).absolute())]
        path = [str(Path(entry).absolute()) for entry in sys.path if entry]
        readable += [folder for entry in path for folder in linked(entry)]
        answer = self.ask(
            "enter",
            LOADING,
            device=device,
            own=self._own,
            memory=int(MEMORY * memory()) if device == "cpu" else None,
            folder=os.getcwd(),
            folders=[*path, *readable, os.getcwd()],
        )
        self.lacking = answer.notes.sandbox

    def ask(self, what: str, seconds: float, *, most: int = 0, names: Sequence[str] = (), **fields: Any) -> wire.Answer:
        """Return the answer to a request; raises LostError if none comes in time, or one that is malformed.

        The outputs are those of `names`, at most `most` bytes of them.
        """
        self._number += 1
        deadline = time.monotonic() + seconds
        line = json.dumps({"what": what, "number": self._number, **fields}).encode() + b"\n"

        def receive(size: int) -> bytearray:
            data = bytearray(size)
            view, at = memoryview(data), 0
            while at < size:
                self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                got = self._socket.recv_into(view[at:], min(size - at, CHUNK))
                if not got:
                    raise EOFError
                at += got
            return data

        try:
            self._require_silence()
            self._socket.settimeout(seconds)
            self._socket.sendall(line)
            return wire.read(receive, self._number, most, names)
        except TimeoutError:
            raise LostError(f"it did not return after {seconds:.3g} s", hung=True) from None
        except wire.MalformedError as error:
            raise LostError(f"malformed answer: {error}") from None
        except (EOFError, OSError):
            raise LostError(self.end(waiting=True)) from None

    @property
    def number(self) -> int:
        """The number of the last request."""
        return self._number

    def _require_silence(self) -> None:
        """Raise MalformedError if there is an answer before the request is sent."""
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            size = len(self._socket.recv(CHUNK, socket.MSG_PEEK))
            if size:
                raise wire.MalformedError(f"expected no answer before the request, got {size} bytes")

    def end(self, *, waiting: bool = False) -> str:
        """End the process, and return in words how it ended by itself, if the caller is `waiting` for that."""
        if not self.pid:
            return ""
        self._socket.close()
        pid, self.pid = self.pid, 0
        try:
            status = self._zygote.reap(pid, waiting=waiting)
        finally:
            self.arena.close()
            shutil.rmtree(self._own, ignore_errors=True)
        return ending(None if status == zygote.RUNNING else status)


def constants(bind: str) -> list[str]:
    """Return the arguments that a --bind sets to a text, such as the file of a submission."""
    return [value for value in parse(bind).constants.values() if isinstance(value, str)]


def load(worker: Worker, request: Mapping[str, Any]) -> tuple[wire.Described, ...]:
    """Let a worker load the kernel, and return what it says of it; raises UsageError if it cannot."""
    name = visible(str(request["target"]))
    try:
        notes = worker.ask("load", LOADING, **request).notes
    except LostError as error:
        worker.end()
        raise UsageError(f"{name} cannot be loaded in a process of its own: {error}") from None
    if notes.problem is not None:
        worker.end()
        raise UsageError(visible(notes.problem))
    return notes.kernels
