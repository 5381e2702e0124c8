"""What a worker does in place of a search: it loads no torch, and ends its process where the kernel's name says so."""

import os
import signal
import time
from pathlib import Path

from verify_norm.campaign.model import Outcome


def examine(unit, settings, worker):
    name, _, where = unit.kernel.partition(":")
    if name == "killed" or (name == "once" and not Path(where).exists()):
        Path(where).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "prints":
        print("the kernel prints")
    return Outcome(unit.id, worker, 1.0, 2.0, problem=f"{os.getppid()} {settings['device']}")


def wait(seconds):
    time.sleep(seconds)
