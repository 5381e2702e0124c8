"""What every command of the command line needs: a device, a kernel, a place for the report, and errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from verify_norm.report.model import Report
    from verify_norm.spec import Kernel

err = Console(stderr=True, highlight=False)
INTERRUPTED = 130  # the shell's own status after Ctrl-C
DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "half": "float16",
}


@contextmanager
def usage_errors() -> Iterator[None]:
    """A user's mistake is one line and exit status 2."""
    from verify_norm.registry import UsageError

    try:
        yield
    except UsageError as error:
        complain(str(error))
        raise typer.Exit(2) from None


def complain(message: str) -> None:
    """One line on standard error."""
    err.print(f"verify-norm: {escape(message)}", soft_wrap=True)


def load(name: str, op: str | None, device: str) -> Kernel:
    """Load a kernel, in Triton's interpreter where it is to run on the CPU."""
    if device == "cpu":
        interpret(always=True)
    from verify_norm import registry
    from verify_norm.entry_points import shadowed

    for line in shadowed(name):
        complain(line)
    return registry.load(name, op)


def interpret(*, always: bool = False) -> None:
    """Turn Triton's interpreter on, where there is no GPU or `always`: it must be on before Triton is imported."""
    from verify_norm import interpreter
    from verify_norm.registry import UsageError

    if always or not _gpus():
        try:
            interpreter.enable()
        except RuntimeError as error:
            raise UsageError(str(error)) from error


def device(name: str) -> str:
    """The device of that name, "auto" being the first GPU where there is one; UsageError where there is no such."""
    from verify_norm.registry import UsageError

    count = _gpus()
    if name == "auto":
        return "cuda:0" if count else "cpu"
    if name == "cpu":
        return name
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number.isdigit() or not number):
        raise UsageError(f"unknown device {name!r}; there are: cpu, cuda, cuda:N")
    if int(number or 0) >= count:
        there = f"there are {count}" if count else "torch sees no CUDA device here"
        raise UsageError(f"no device {name}: {there}; --device cpu runs Triton kernels in its interpreter")
    return f"cuda:{int(number or 0)}"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def dtype(name: str, known: tuple[str, ...] = ("float32", "float16", "bfloat16")) -> str:
    """The full name of a type: "float16" for fp16."""
    from verify_norm.registry import one_of

    return one_of("dtype", DTYPES.get(name, name), known)


def split(text: str) -> list[str]:
    """The parts of a list that commas separate."""
    return [part.strip() for part in text.split(",") if part.strip()]


def writable(path: str) -> None:
    """Find out before the run, not after it, that the report cannot be written."""
    from verify_norm.registry import UsageError

    if path in ("", "-"):
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: no writable folder {folder}")


def deliver(report: Report, json_path: str) -> None:
    """Show and write the report, and exit with its status."""
    from verify_norm.report import json as json_form
    from verify_norm.report import terminal

    if json_path != "-":
        terminal.show(report, terminal.console())
    write(json_form.dump(report) if json_path else "", json_path)
    if not report.checked:
        complain("nothing was checked. " + "; ".join(f"{skip.what}: {skip.reason}" for skip in report.skipped))
        raise typer.Exit(2)
    if report.interrupted and not report.findings:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(0 if report.ok else 1)


def write(text: str, path: str) -> None:
    """Write to a file, or to standard output where the path is "-"; nowhere where there is none."""
    from verify_norm.report import json as json_form

    if path == "-":
        sys.stdout.write(text)
    elif path:
        json_form.write(text, path)
