"""The command line: `verify-norm --kernel K`, and its commands."""

import atexit
import os
import signal
import sys
import threading

from verify_norm.core import packages

USAGE, INTERRUPTED = 2, 3  # Exit.NOTHING, Exit.INCOMPLETE


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
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python ends, it would print a traceback
