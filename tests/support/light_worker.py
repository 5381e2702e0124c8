"""What a worker does in place of a search: it loads no torch, and ends its process where the kernel's name says so."""

import os
import pickle
import signal
import subprocess
import threading
import time
from pathlib import Path

from verify_norm.campaign.model import Outcome


def examine(unit, settings, worker):
    name, _, where = unit.kernel.partition(":")
    if name == "killed" or (name == "once" and not Path(where).exists()):
        Path(where).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "starts":
        threading.Thread(target=wait, args=(60,)).start()
        Path(where).write_text(str(subprocess.Popen(["sleep", "60"]).pid))
    if name == "hangs":
        wait(60)
    if name == "prints":
        print("the kernel prints")
    return Outcome(unit.id, worker, 1.0, 2.0, problem=f"{os.getppid()} {settings['device']}")


def wait(seconds):
    time.sleep(seconds)


def reported(unit, settings, worker):
    """The outcome of a unit whose kernel is "how:folder": its report is there, if nothing ends the process before."""
    how, _, folder = unit.kernel.partition(":")
    met = Path(folder) / f"{unit.id}.met"
    if how == "killed" or (how == "once" and not met.exists()):
        met.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "meets" and not met.exists():  # until there are four workers
        (Path(folder) / f"{os.getpid()}.at").touch()
        while len(list(Path(folder).glob("*.at"))) < 4:
            time.sleep(0.05)
    time.sleep(60 if how == "hangs" else 0.1)
    report = pickle.loads((Path(folder) / unit.dtype).read_bytes())
    return Outcome(unit.id, worker, 1.0, 2.0, report)


def seen(unit, settings, worker):
    """What the worker sees of GPUs, as a problem, once so many workers as the kernel's name says have met."""
    number, _, folder = unit.kernel.partition(":")
    (Path(folder) / f"{os.getpid()}.at").touch()
    while len(list(Path(folder).glob("*.at"))) < int(number):
        time.sleep(0.05)
    return Outcome(unit.id, worker, 1.0, 2.0, problem=os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
