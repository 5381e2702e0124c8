"""What a process of a fork server is asked to do in tests: it finds this module by its name."""

import os
import time

from verify_norm.core.errors import UsageError

LONG = 600.0  # seconds, for which no test waits


def refuse(words):
    raise UsageError(words)


def leave(status):
    os._exit(status)


def close_all():
    os.closerange(3, 64)
    time.sleep(LONG)


def start_another(leaving):
    """Start a process that holds the channel open, and return its number."""
    pid = os.fork()
    if not pid:
        time.sleep(LONG)
    if leaving:
        os._exit(0)
    return pid
