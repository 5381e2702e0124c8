"""The command line: `verify-norm --kernel K`, and its commands."""

import atexit
import os
import signal
import sys
import threading
import time

from verify_norm.core import packages

USAGE, INTERRUPTED = 2, 3  # Exit.NOTHING, Exit.INCOMPLETE
PATIENCE = 1.0  # seconds for threads that end by themselves


def main() -> None:
    """Run the console script, and exit with its status. Ctrl-C at any moment is one line, also before it is loaded."""
    status: list[int] = []
    atexit.register(lambda: os._exit(status[0]) if status else None)  # the first entered comes last
    if reason := packages.missing("the command line", "typer", "rich"):
        print(f"verify-norm: {reason}", file=sys.stderr)
        sys.exit(USAGE)
    try:
        from verify_norm.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("verify-norm: interrupted before there was a report", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        status += [INTERRUPTED] * (ended.code == INTERRUPTED)  # after some interrupted imports Python would kill itself
        if _others(PATIENCE):  # Python would wait for the threads of a kernel's file without end
            print("verify-norm: ended without a thread that the kernel's code has started", file=sys.stderr)
            atexit._run_exitfuncs()
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else USAGE)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python ends, it would print a traceback


def _others(patience: float) -> bool:
    """Return whether threads for which Python would wait still run after some seconds."""
    until = time.monotonic() + patience
    others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    for thread in others:
        thread.join(max(until - time.monotonic(), 0.0))
    return any(thread.is_alive() for thread in others)
