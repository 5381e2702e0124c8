"""Options that several commands share."""

import typer

from verify_norm.core.results import DEFAULTS, Count, Seconds
from verify_norm.search.request import least

DTYPES = ",".join(DEFAULTS.dtypes)  # as the default of --dtype

KERNEL = typer.Option("--kernel", "-k", help="Kernel: a name (see list), package.module:attr, or path/file.py:attr.")
DEVICE = typer.Option("--device", help="Device: cpu, cuda or cuda:N. auto is the first GPU, or the CPU without a GPU.")
JSON = typer.Option("--json", help="Write the report to this file; a list for both directions. - is standard output.")
IN_PROCESS = typer.Option("--in-process", help="Run the kernel in this process, as for a debugger. A crash ends it.")
OP = typer.Option("--op", help="Operator, if the name does not tell: layernorm_fwd. layernorm is both directions.")
BIND = typer.Option(
    "--bind",
    help="Names of the kernel's arguments: x=hidden_states,eps=variance_epsilon (operator's name = kernel's name), "
    'constants: mode="llama",eps=1e-6, and what it returns: -> y,rstd,_',
)
CONTRACT = typer.Option(
    "--contract", help="What the kernel promises, as llama,inplace=y:x; see verify-norm show contracts."
)
CHECKS = typer.Option("--checks", help="Run only these checks, as accuracy,signature.")
TIMEOUT = typer.Option(
    "--timeout", min=least(Seconds), help="Seconds after which a case counts as hung. Without it 20, or 90 on a GPU."
)
ALLOW_INCOMPLETE = typer.Option(
    "--allow-incomplete", help="Exit status 0, not 3, for a run without findings that ends before all corner cases."
)
EXAMPLES = typer.Option("--examples", min=int(least(Count)), help="Number of random cases after the corner table.")
SEED = typer.Option("--seed", min=int(least(Count)), help="Seed of the random cases.")
DTYPE = typer.Option("--dtype", help="Types of x, as fp32,bf16.")
HTML = typer.Option("--html", help="Write the reports to this file as a page that works offline.")
BASELINE = typer.Option("--baseline", help="Compare with the reports in this file. Exit status 1 if anything is worse.")
CORPUS = typer.Option("--corpus", help="Run the cases in this file first: the worst cases that hunt found.")
SECONDS = typer.Option("--seconds", min=least(Seconds), help="Time for the whole search.")
SHAPES = typer.Option("--shapes", help="Shapes: fuzz (random), models (norm shapes of real models), or all.")
WORKER = typer.Option(
    "--worker", min=0, help="Of several GPUs use this one, modulo their number, if --device has none."
)
SANITIZE = typer.Option(
    "--sanitize", help="Run the corner table under this tool of compute-sanitizer: memcheck, racecheck, ..."
)
