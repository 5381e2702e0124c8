"""A function in a fork of the test's process, which may give up its rights there, or end it."""

import os
import pickle
import select
import signal
import traceback
import warnings

LONG = 10.0  # seconds that none of these functions takes


def fork(function, *args):
    """Return the process that calls the function, and ends with status 0 if it returns, by a signal if it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads hold no lock here
        pid = os.fork()
    if not pid:
        status = 70
        signal.alarm(int(2 * LONG))
        try:
            function(*args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def ended(pid):
    """Wait for a process, and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(function, *args):
    """Return what the function returns in a fork, None if it does not, and the exit status there."""
    reading, writing = os.pipe()
    pid = fork(lambda: os.write(writing, pickle.dumps(function(*args))))
    os.close(writing)
    with open(reading, "rb", buffering=0) as file:
        if not select.select([file], [], [], LONG)[0]:
            os.kill(pid, signal.SIGKILL)
        data = file.read(2**16)
    return (pickle.loads(data) if data else None), ended(pid)
