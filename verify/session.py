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

from verify_norm.bind import UsageError

if TYPE_CHECKING:
    from verify_norm.report.model import Report
    from verify_norm.spec import Contract, Kernel

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
    try:
        yield
    except UsageError as error:
        complain(str(error))
        raise typer.Exit(2) from None


def complain(message: str) -> None:
    """One line on standard error."""
    err.print(f"verify-norm: {escape(message)}", soft_wrap=True)


def load(name: str, op: str | None, device: str, bind: str = "") -> Kernel:
    """Load a kernel, in Triton's interpreter where it is to run on the CPU."""
    if device == "cpu":
        interpret(always=True)
    from verify_norm import registry
    from verify_norm.entry_points import shadowed

    for line in shadowed(name):
        complain(line)
    return registry.load(name, op, bind)


def load_all(
    kernel: object, op: str | None, device: str, bind: str = "", *, contract: Contract | None = None
) -> list[Kernel]:
    """As `load`; of what is differentiable a kernel for each direction. Takes a callable as well as a name."""
    if device == "cpu":
        try:
            interpret(always=True)
        except UsageError:
            if isinstance(kernel, str) or _gpus():
                raise
            os.environ["TRITON_INTERPRET"] = "1"  # the caller has imported Triton: the kernel's own process interprets
    from verify_norm import registry
    from verify_norm.entry_points import shadowed

    for line in shadowed(kernel) if isinstance(kernel, str) else ():
        complain(line)
    return registry.load_all(kernel, op, bind, contract=contract)


def interpret(*, always: bool = False) -> None:
    """Turn Triton's interpreter on, where there is no GPU or `always`: it must be on before Triton is imported."""
    from verify_norm import interpreter

    if always or not _gpus():
        try:
            interpreter.enable()
        except RuntimeError as error:
            raise UsageError(str(error)) from error


def device(name: str) -> str:
    """The device of that name, "auto" being the first GPU where there is one; UsageError where there is no such."""
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
    if path in ("", "-"):
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: no writable folder {folder}")


def deliver(*reports: Report, json_path: str, all_of_them: bool = True) -> None:
    """Show and write the reports, and exit with the status of all: the worst.

    A report that checked nothing is an error where `all_of_them` were asked for; else only where none checked anything.
    """
    from verify_norm.report import json as json_form
    from verify_norm.report import terminal

    if json_path != "-":
        for report in reports:
            terminal.show(report, terminal.console())
    write(json_form.dump(*reports) if json_path else "", json_path)
    unchecked = [report for report in reports if not report.checked]
    for report in unchecked:
        what = f"nothing was checked of {report.op}" if len(reports) > 1 else "nothing was checked"
        complain(f"{what}. " + "; ".join(f"{skip.what}: {skip.reason}" for skip in report.skipped))
    if any(report.findings for report in reports):
        raise typer.Exit(1)
    if any(report.interrupted for report in reports if report.checked):
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(2 if unchecked and (all_of_them or len(unchecked) == len(reports)) else 0)


def write(text: str, path: str) -> None:
    """Write to a file, or to standard output where the path is "-"; nowhere where there is none."""
    from verify_norm.report import json as json_form

    if path == "-":
        sys.stdout.write(text)
    elif path:
        json_form.write(text, path)
