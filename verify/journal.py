"""What a run has examined so far, on disk: a run that was killed goes on where it was."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from verify_norm import __version__
from verify_norm.examine import Examined
from verify_norm.report.model import Settings
from verify_norm.spec import CaseSpec, Kernel

_EXAMINED = TypeAdapter(Examined)


class Journal:
    """One line of JSON for every examined case.

    Cases follow from the kernel, the settings and the versions, which its name is made of, so a run that begins anew
    meets the same cases, and takes from here those it had done. Every line is whole on disk before the next case
    starts; a last line that is not is left out.
    """

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        """Open it for a run: what it holds is kept if the run is to resume it. No path, no journal."""
        self.done: dict[CaseSpec, Examined] = {}
        self._path, self._file = path, None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # read-only, full, or in use by another run: a run without a journal
            self._file = None
            return
        kept = self._read() if resume else 0
        self._file.truncate(kept)

    def _read(self) -> int:
        """Take over the whole lines; return their length in bytes."""
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
        """End it; what a complete run needs no more is deleted."""
        if self._file is None or self._path is None:
            return
        if complete:
            self._path.unlink(missing_ok=True)
        self._file.close()
        self._file = None


def path_of(kernel: Kernel, settings: Settings) -> Path | None:
    """Where the journal of such a run lies, in the user's state folder; None for a kernel that has no name to find."""
    if not kernel.target:
        return None
    bare = replace(kernel, run=None, forward_run=None, unsupported=None)
    lasting = replace(settings, seconds=0.0)  # more time may be given to what goes on
    digest = hashlib.sha256(repr((__version__, bare, lasting)).encode() + _source(kernel)).hexdigest()[:16]
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = "".join(c if c.isalnum() else "_" for c in kernel.name)[-60:]
    return Path(state) / "verify-norm" / f"{name}-{digest}.jsonl"


def _source(kernel: Kernel) -> bytes:
    """The text of the file the kernel is written in, so that an edited kernel starts anew."""
    try:
        return Path(inspect.getsourcefile(inspect.unwrap(kernel.run)) or "").read_bytes() if kernel.run else b""
    except (OSError, TypeError):
        return b""
