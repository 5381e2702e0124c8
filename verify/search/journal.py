"""The journal: the examined cases of a run on disk, so that a killed run can resume."""

import fcntl
import hashlib
import inspect
import json
import os
import re
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from verify_norm import __version__
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.search.examined import Examined

_EXAMINED = TypeAdapter(Examined)


class Journal:
    """One line of JSON for every examined case.

    The kernel, the settings and the versions determine the cases, and the journal's name. So a run that resumes meets
    the same cases and takes the finished ones from here. Every line is complete on disk before the next case starts; an
    incomplete last line is dropped.
    """

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        """Open the file for a run; `resume` keeps its cases. Without a path nothing is kept."""
        self.done: dict[CaseSpec, Examined] = {}
        self._path, self._file = path, None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # read-only, full, or in use by another run: a run without a journal
            if self._file is not None:
                self._file.close()
            self._file = None
            return
        self._file.truncate(self._read() if resume else 0)

    def _read(self) -> int:
        """Read the complete lines; return their length in bytes."""
        assert self._file is not None
        self._file.seek(0)
        kept = 0
        for line in self._file:
            try:
                examined = _EXAMINED.validate_python(json.loads(line))
            except (ValueError, ValidationError):
                break
            self.done[examined.spec] = examined
            kept += len(line)
        return kept

    def enter(self, examined: Examined) -> None:
        """Add a case."""
        if self._file is not None:
            self._file.write(json.dumps(_EXAMINED.dump_python(examined)).encode() + b"\n")
            self._file.flush()

    def close(self, *, complete: bool) -> None:
        """Close the file; delete it after a complete run."""
        if self._file is None or self._path is None:
            return
        if complete:
            self._path.unlink(missing_ok=True)
        self._file.close()
        self._file = None


def path_of(kernel: Kernel, settings: Settings) -> Path | None:
    """Return the journal's path in the user's state folder; None for a kernel that no other process can import."""
    if not kernel.target or settings.untrusted:  # whose cases are new in each run
        return None
    bare = replace(kernel, run=None, forward_run=None, unsupported=None)
    # a resumed run may have more time, and other workers
    lasting = replace(settings, seconds=0.0, allow_incomplete=False, workers=None)
    digest = hashlib.sha256(repr((__version__, bare, lasting)).encode() + source(kernel)).hexdigest()[:16]
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = re.sub("[^0-9A-Za-z]", "_", kernel.name)[-60:]  # a name of a file on any system
    return Path(state) / "verify-norm" / f"{name}-{digest}.jsonl"


def source(kernel: Kernel) -> bytes:
    """Return the text of the kernel's source file, b"" if there is none: an edited kernel starts anew."""
    if kernel.run is None:
        return b""
    try:
        return Path(inspect.getsourcefile(inspect.unwrap(kernel.run)) or "").read_bytes()
    except (OSError, TypeError):
        return b""
