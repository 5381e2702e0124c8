"""A row of the zoo: a wrong kernel with one known bug, or an unusual right one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import CaseSpec

Kind = Literal[
    "masking",
    "coverage",
    "memory",
    "layout",
    "alignment",
    "index",
    "numerics",
    "dtype",
    "eps",
    "gradient",
    "shape",
    "options",
    "aliasing",
    "state",
    "degenerate",
    "race",
    "determinism",
    "mode",
    "autograd",
    "refusal",
    "values",
    "size",
    "effect",
    "check",
    "cheat",
    "unusual",
]
Needs = Literal["cpu", "host", "gpu", "sm_90", "none"]
WHERE = "verify_norm.kernels.zoo."
ATOMIC: Contract = Contract(summation="atomic", deterministic=False)
VALUES: tuple[str, ...] = ("accuracy", "statistics")
GRADIENTS: tuple[str, ...] = ("accuracy", "gradient")
Y: tuple[str, ...] = ("y", "rstd")
STATS: tuple[str, ...] = ("y", "mean", "rstd")


@dataclass(frozen=True, slots=True)
class Example:
    """One kernel of the zoo.

    Parameters
    ----------
    kernel : the kernel; its summary says in one line what is wrong with it.
    kind : the class of bug; "unusual" where nothing is wrong, "check" where it is no kernel but a wrong check.
    source : where it comes from: project and number of the issue, or the seed document.
    wrong : whether a verifier has to detect it.
    caught_by : checks, of which at least one detects it.
    outputs : the outputs that are wrong, as a finding names them; empty where no output is, but the call itself.
    needs : where it shows: on a "cpu" and a GPU, only on the "host", only on a "gpu", or on one from "sm_90" on, or in
        "none" of our operators.
    reason : why it does not show elsewhere, or why no operator of ours can express it.
    few : whether it runs one program a row or two, so that Triton's interpreter needs cases of few rows.
    """

    kernel: Kernel
    kind: Kind
    source: str
    wrong: bool = True
    caught_by: tuple[str, ...] = ("accuracy",)
    outputs: tuple[str, ...] = ()
    needs: Needs = "cpu"
    reason: str = ""
    few: bool = False

    @property
    def name(self) -> str:
        """Return the kernel's name."""
        return self.kernel.name


def few_rows(spec: CaseSpec) -> str | None:
    """Return why a kernel with a program a row does not take a case: the interpreter runs two hundred a second."""
    rows = 1
    for extent in spec.shape[: len(spec.shape) - spec.normalized_ndim]:
        rows *= extent
    return "more than 100 rows, and each is a program" if rows > 100 else None


def own_eps(spec: CaseSpec) -> str | None:
    """Return why a kernel whose eps is left at its default does not take a case."""
    return "its eps is left at its default, 1e-5" if spec.eps != 1e-5 else None


def row(
    name: str,
    op: str,
    where: str,
    kind: Kind,
    line: str,
    source: str,
    *,
    outputs: tuple[str, ...] = (),
    caught_by: tuple[str, ...] = ("accuracy",),
    wrong: bool = True,
    needs: Needs = "cpu",
    reason: str = "",
    contract: Contract | None = None,
    forward: str | None = None,
    backend: str = "triton",
    few: bool = False,
    own: bool = False,
    bind: str = "",
) -> Example:
    """Return a row of the table; `where` is the module under kernels/zoo and the function's name.

    `forward` is the kernel whose gradient a backward computes: the project's own if not given. `few` and `own` leave
    out cases by `few_rows` and `own_eps`.
    """
    if forward is None and op.endswith("_bwd"):
        forward = op.replace("_bwd", "_fwd")
    kernel = Kernel(
        name,
        op,
        WHERE + where,
        "torch" if backend == "torch" else "triton",
        contract=contract or Contract(),
        summary=line,
        forward=forward,
        bind=bind,
        unsupported=few_rows if few else own_eps if own else None,
    )
    return Example(kernel, kind, source, wrong, caught_by, outputs, needs, reason, few)
