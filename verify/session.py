"""What every command of the command line needs: a device, a kernel, a place for the report, and errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from verify_norm.bind import UsageError

if TYPE_CHECKING:
    from verify_norm.auditing.model import Document
    from verify_norm.report.comparison import Comparison, Limits
    from verify_norm.spec import CaseSpec, Contract, Kernel


err = Console(stderr=True, highlight=False)
INTERRUPTED = 130  # the shell's own status after Ctrl-C
SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file that GitHub Actions shows after a step
KERNEL_DTYPES = ("float32", "float16", "bfloat16")  # of x
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


@contextmanager
def one_case(spec: CaseSpec, op: str) -> Iterator[None]:
    """What cannot be made of the one spec that a user gives is a UsageError."""
    from verify_norm.ops import OPS

    if spec.num_groups is not None and "num_groups" not in OPS[op].attrs:
        raise UsageError(f"the spec is not one of {op}: it has no num_groups")
    try:
        yield
    except ValueError as error:  # the reference refuses shapes that do not fit the operator
        raise UsageError(f"the spec is not one of {op}: {error}") from error
    except MemoryError as error:
        raise UsageError(f"the spec's shape is too large for this machine: {error}") from error


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


def dtype(name: str, known: tuple[str, ...] = KERNEL_DTYPES) -> str:
    """The full name of a type: "float16" for fp16."""
    from verify_norm.registry import one_of

    return one_of("dtype", DTYPES.get(name, name), known)


def dtypes(names: str | Iterable[str]) -> tuple[str, ...]:
    """The full names of the types of x; raises UsageError where there is none."""
    found = tuple(dtype(name) for name in split(names))
    if not found:
        raise UsageError(f"no dtype is named, as in fp32,bf16; there are: {', '.join(KERNEL_DTYPES)}")
    return found


def checks(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names of checks, all of which there are."""
    from verify_norm.checks import CHECKS
    from verify_norm.registry import one_of

    return tuple(one_of("check", name, CHECKS) for name in split(names))


def split(names: str | Iterable[str]) -> list[str]:
    """The parts of a list that commas separate, where it is not one already."""
    return [part.strip() for part in names.split(",") if part.strip()] if isinstance(names, str) else list(names)


def writable(path: str) -> None:
    """Find out before the run, not after it, that the report cannot be written."""
    if path in ("", "-"):
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: no writable folder {folder}")


@dataclass(slots=True)
class Outputs:
    """Where the reports go, and what they are compared with, found out before the run.

    Raises UsageError where a file cannot be written, no page can be made, or the baseline is none.
    """

    json_path: str = ""
    html_path: str = ""
    baseline: str = ""
    stored: tuple[Document, ...] = field(init=False, default=())
    limits: Limits | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Look at the files, and read the baseline."""
        writable(self.json_path)
        writable(self.html_path)
        if self.json_path and self.json_path == self.html_path:
            raise UsageError(f"--json and --html are both {self.json_path}")
        if self.html_path:
            from verify_norm.report.html.page import missing

            if reason := missing():
                raise UsageError(reason)
        if self.baseline:
            from verify_norm import config
            from verify_norm.report import json as json_form

            if not os.path.lexists(self.baseline):
                hint = f"a run with --json {self.baseline} --baseline '' writes it"
                raise UsageError(f"there is no baseline {self.baseline}; {hint}")
            self.limits = config.limits()
            self.stored = json_form.read(self.baseline)

    @property
    def shown(self) -> bool:
        """Whether standard output is for people."""
        return "-" not in (self.json_path, self.html_path)


def corpus(path: str, kernel: Kernel) -> tuple[CaseSpec, ...]:
    """The cases of a corpus that are to be run first, none where there is none yet; raises UsageError as it is read."""
    from verify_norm.auditing import corpus as file

    if path and not os.path.exists(path):
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise UsageError(f"there is no corpus {path}: there is no folder {folder}")
        complain(f"there is no corpus {path} yet")
    return file.load(path, kernel) if path else ()


def deliver(
    *documents: Document, outputs: Outputs | None = None, json_path: str = "", all_of_them: bool = True
) -> None:
    """Show and write reports or audits, compare them with the baseline, and exit with the status of all: the worst.

    A report that checked nothing is an error where `all_of_them` were asked for; else only where none checked anything.
    `json_path` is for a command that has no other outputs.
    """
    from verify_norm.auditing.model import Audit, report_of
    from verify_norm.report import audit, markdown, terminal
    from verify_norm.report import json as json_form

    outputs = outputs or Outputs(json_path)
    for document in documents if outputs.shown else ():
        show = audit.show if isinstance(document, Audit) else terminal.show
        show(document, terminal.console())  # type: ignore[arg-type]
    write(json_form.dump(*documents) if outputs.json_path else "", outputs.json_path)
    if outputs.html_path:
        from verify_norm.report.html.page import pages

        write(pages(*documents), outputs.html_path)
    reports = [report_of(document) for document in documents]
    interrupted = any(report.interrupted for report in reports)
    compared = _compared(documents, outputs) if outputs.baseline and not interrupted else None
    summarize(markdown.of(*documents) + ("\n" + markdown.of_comparison(compared) if compared else ""))
    unchecked = [report for report in reports if not report.checked]
    for report in unchecked:
        what = f"nothing was checked of {report.op}" if len(reports) > 1 else "nothing was checked"
        complain(f"{what}. " + "; ".join(f"{skip.what}: {skip.reason}" for skip in report.skipped))
    against = any(isinstance(document, Audit) and document.disagreements for document in documents)
    if against or any(report.findings for report in reports) or (compared is not None and compared.worse):
        raise typer.Exit(1)
    if any(report.interrupted for report in reports if report.checked):
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(2 if unchecked and (all_of_them or len(unchecked) == len(reports)) else 0)


def _compared(documents: tuple[Document, ...], outputs: Outputs) -> Comparison | None:
    """The documents beside the baseline's, of which the other kernels do not matter here; shown where people look."""
    from dataclasses import replace

    from verify_norm.report import difference, terminal
    from verify_norm.report.compare import compare

    compared = replace(compare(outputs.stored, documents, outputs.limits), old_alone=())
    for name in compared.new_alone:
        complain(f"the baseline {outputs.baseline} has no {name} to compare with")
    if not compared.pairs:
        return None
    difference.show(compared, terminal.console() if outputs.shown else err)
    return compared


def summarize(text: str) -> None:
    """Append Markdown to what GitHub Actions shows of the step; that it cannot be written is no error of the run."""
    path = os.environ.get(SUMMARY)
    if path:
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except (OSError, ValueError) as error:
            complain(f"cannot write the summary {path}: {getattr(error, 'strerror', None) or error}")


def write(text: str, path: str) -> None:
    """Write to a file, or to standard output where the path is "-"; nowhere where there is none."""
    from verify_norm.report import json as json_form

    if path == "-":
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
    elif path:
        json_form.write(text, path)
