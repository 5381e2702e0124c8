"""Where a process is in its Python code, told by the process while it hangs, also outside of Python."""

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SIGNAL = signal.SIGUSR1
WAIT = 1.0  # seconds that an answer may take; in a call of the driver that nothing interrupts there is none
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# Libraries that compile are on the stack in a launch, too; these files of them only while something is compiled.
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
        """Where it is in code that is the kernel's, not of a library below it nor ours; "" if nowhere."""
        own = (
            f" (in {function}, {Path(file).name}:{line})"
            for file, line, function in self.frames
            if not OTHERS.search(file)
        )
        return next(own, "")


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
