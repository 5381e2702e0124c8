"""The process from which workers are forked: it has imported torch and this package, and nothing of any kernel.

It was started anew, with an empty environment, so nothing of the judge's memory is in it. Its parent sends "fork" with
the worker's socket and the arena's file, or "reap" or "kill" with a process. When the parent ends, it ends its workers
and itself.
"""

import gc
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

REQUEST = struct.Struct("<Bi")
REPLY = struct.Struct("<i")
FORK, REAP, KILL = 1, 2, 3
GRACE = 2.0  # seconds that a process has to end by itself, once it has closed its socket
RUNNING = 2**16  # a reply: it did not end, and was killed


def main(fd: int) -> None:
    """Serve the parent on this socket."""
    from verify_norm.running.untrusted import worker  # torch and all that a worker needs

    gc.freeze()  # what all workers share stays shared
    control, workers = socket.socket(fileno=fd), set[int]()
    try:
        while True:
            data, files, _, _ = socket.recv_fds(control, REQUEST.size, 2)
            if len(data) != REQUEST.size:
                return
            what, number = REQUEST.unpack(data)
            if what != FORK:
                workers.discard(number)
                control.sendall(REPLY.pack(_reaped(number, GRACE if what == REAP else 0.0)))
                continue
            pid = os.fork()
            if not pid:
                control.close()
                worker.main(*files)
            for file in files:
                os.close(file)
            workers.add(pid)
            control.sendall(REPLY.pack(pid))
    finally:
        for pid in workers:
            _kill(pid)


def _reaped(pid: int, grace: float) -> int:
    """Return the status of a worker that ends within so many seconds, else RUNNING; end it and all that it started."""
    deadline, status = time.monotonic() + grace, RUNNING
    while status == RUNNING and time.monotonic() < deadline:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.002)
    _kill(pid)
    if status == RUNNING:
        os.waitpid(pid, 0)
    return status


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # a worker leads a group of its own, once it has begun
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
