"""Where a process is in its Python code: it writes its stacks when it gets a signal, even while it hangs in C code."""

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SIGNAL = signal.SIGUSR1
WAIT = 1.0  # seconds that an answer may take; a call of the GPU's driver that no signal interrupts gives none
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# Files that are on the stack only while something is compiled. Other files of these libraries are there in a launch.
COMPILERS = re.compile(
    r"/(triton/(compiler|backends/\w+)/compiler|torch/(_dynamo/convert_frame|_inductor/compile_fx|utils/cpp_extension)"
    r"|cutlass/base_dsl/compiler|cuda/core/.*_program|cupy/cuda/compiler|numba/core/compiler|tilelang/engine/lower)\.py$"
)
OTHERS = re.compile(
    rf"/(numpy|torch|triton|verify_norm)/|^{re.escape(os.path.dirname(os.__file__))}/(?!site-packages/)|^<"
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one thread, the innermost first: file, line and function."""

    frames: tuple[tuple[str, int, str], ...] = ()

    @property
    def compiles(self) -> bool:
        """Whether the thread compiles something."""
        return any(COMPILERS.search(file) for file, _, _ in self.frames)

    @property
    def words(self) -> str:
        """The innermost frame in code of the kernel, not of a library or of ours, in words; "" if there is none."""
        for file, line, function in self.frames:
            if not OTHERS.search(file):
                return f" (in {function}, {Path(file).name}:{line})"
        return ""


NOWHERE = Stack()


def answer(path: str) -> None:
    """Let this process write its stacks to a file whenever it gets SIGNAL."""
    faulthandler.register(SIGNAL, open(path, "a"), all_threads=True)  # noqa: SIM115 — open as long as the process


def ask(process: int, path: str, function: str) -> Stack:
    """Return the stack of the thread of a process that runs `function`; it is empty if the process does not answer."""
    os.truncate(path, 0)
    with suppress(ProcessLookupError):
        os.kill(process, SIGNAL)
    until = time.perf_counter() + WAIT
    while time.perf_counter() < until:
        time.sleep(0.01)
        for thread in Path(path).read_text(errors="replace").split("hread 0x"):
            frames = tuple((file, int(line), name) for file, line, name in FRAME.findall(thread))
            if any(name == function for _, _, name in frames):
                return Stack(frames)
    return NOWHERE
