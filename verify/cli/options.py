"""Options that several commands share. Those about a search are made of `verify_norm.search.options.Options`."""

import inspect
from collections.abc import Callable
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from annotated_types import Ge, Le

from verify_norm.search.options import TAKES, Options, flags

KERNEL = typer.Option("--kernel", "-k", help="Kernel: a name (see list), package.module:attr, or path/file.py:attr.")
KERNELS = typer.Option(
    "--kernel",
    "-k",
    help="Kernel: a name (see list), package.module:attr, or path/file.py:attr. Repeat it for more kernels. "
    "path/file.py is each kernel in it; patterns match files and names, such as 'ops/*.py:rms_norm'.",
)
FAIL_FAST = typer.Option("--fail-fast", help="Of several kernels, run none after the first one with findings.")
JSON = typer.Option("--json", help="Write the report to this file; a list if there are two. - is standard output.")
IN_PROCESS = typer.Option(
    "--in-process", help="Run the kernel in this process, for example for a debugger. A crash ends it."
)
OP = typer.Option(
    "--op",
    help="Operator, if the name does not tell: layernorm_fwd. layernorm is both directions. Or a chain of stages: "
    "'add | rmsnorm(weight_offset=1) | modulate'.",
)
BIND = typer.Option(
    "--bind",
    help="Names of the kernel's arguments: x=hidden_states,eps=variance_epsilon (operator's name = kernel's name), "
    'constants: mode="llama",eps=1e-6, and what it returns: -> y,rstd,_',
)
HTML = typer.Option("--html", help="Write the reports to this file as a page that works offline.")
JUNIT = typer.Option("--junit", help="Write the reports to this file as JUnit XML, which CI services show.")
BASELINE = typer.Option("--baseline", help="Compare with the reports in this file. Exit status 1 if anything is worse.")
CORPUS = typer.Option("--corpus", help="Run the cases in this file first: the worst cases that hunt found.")
CERTIFICATE = typer.Option(
    "--certificate", help="Say what the certificates in this file prove of the kernel: verify-norm prove --json FILE."
)
WORKER = typer.Option(
    "--worker", min=0, help="Number of the GPU to use, modulo how many there are, if --device names none."
)
SANITIZE = typer.Option(
    "--sanitize", help="Run the corner table under this tool of compute-sanitizer: memcheck, racecheck, ..."
)
Given = dict[str, Any]  # the options of Options that a command has, by name


def taking(name: str, **defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command its options of TAKES; the function gets them as its argument `given`.

    `defaults` are those that differ from the usual ones.
    """
    shared = [_parameter(option, defaults) for option in TAKES[name]]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            parameters += shared if parameter.name == "given" else [parameter]

        @wraps(function)
        def command(**values: Any) -> Any:
            given = {option.name: values.pop(option.name) for option in shared}
            return function(given=given, **values)

        del command.__wrapped__  # typer reads the signature below instead
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _parameter(name: str, defaults: dict[str, Any]) -> inspect.Parameter:
    """Return an option of Options as a command's parameter: lists are text, and typer holds numbers to their ranges."""
    field, flag = Options.model_fields[name], flags()[name]
    default = defaults.get(name, field.default)
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    ranges = (*field.metadata, *getattr(kinds[0], "__metadata__", ()))
    least: Any = next((part.ge for part in ranges if isinstance(part, Ge)), None)
    most: Any = next((part.le for part in ranges if isinstance(part, Le)), None)
    kind: Any = getattr(kinds[0], "__origin__", kinds[0])
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, str):
        kind = str
    elif default is None:
        kind = kind | None
    annotation: Any = Annotated[kind, typer.Option(flag.name, help=flag.help, min=least, max=most)]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
