"""The command line: `verify-norm --kernel K`, and its commands."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from verify_norm.core import packages
from verify_norm.search import PRELOAD

GPUS = "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"  # by NVIDIA's, AMD's and WSL's drivers
# With these no server of processes examines cases.
WITHOUT_SERVER = {"--in-process", "--untrusted", "--sanitize", "--help", "-h"}
USAGE, INTERRUPTED = 2, 3  # Exit.NOTHING, Exit.INCOMPLETE
PATIENCE = 1.0  # seconds for threads that end by themselves


def main() -> None:
    """Run the console script, and exit with its status. Ctrl-C at any moment is one line, also before it is loaded."""
    status, before = list[int](), threading.enumerate()
    atexit.register(lambda: os._exit(status[0]) if status else None)  # the first entered comes last
    if reason := packages.missing("the command line", "typer", "rich"):
        print(f"verify-norm: {reason}", file=sys.stderr)
        sys.exit(USAGE)
    try:
        start_ahead(sys.argv[1:])
        from verify_norm.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("verify-norm: interrupted before there was a report", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # after some interrupted imports Python would kill itself
            status.append(INTERRUPTED)
        started = [one for one in threading.enumerate() if one not in before and not one.daemon]
        if started:
            # Before Python waits for them, if it ends at all: whoever calls this function may catch SystemExit.
            threading._register_atexit(_leave, started, ended.code)  # type: ignore[attr-defined]
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python ends, it would print a traceback


def start_ahead(arguments: Sequence[str]) -> None:
    """Start the server of processes if a command line will need it: torch is imported there and here at the same time.

    Its environment says whether Triton interprets kernels. This is a guess, by the device files, for torch would tell.
    """
    named = {argument.partition("=")[0] for argument in arguments}
    runs = arguments[:1] == ["replay"] or ("--kernel" in named and arguments[0].startswith("-"))
    if not runs or named & WITHOUT_SERVER:
        return
    from verify_norm.running import fork_server

    on_cpu = "--device=cpu" in arguments or ("--device", "cpu") in pairwise(arguments)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(map(os.path.exists, GPUS))
    interpreted = (on_cpu or not seen) and not packages.without_triton()
    fork_server.start_ahead(PRELOAD, TRITON_INTERPRET="1" if interpreted else os.environ.get("TRITON_INTERPRET"))


def _leave(threads: Sequence[threading.Thread], code: object) -> None:
    """End the process without these threads, of the kernel's code, where they do not end by themselves."""
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    if any(thread.is_alive() for thread in threads):
        print("verify-norm: ended without a thread that the kernel's code has started", file=sys.stderr)
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else USAGE)
