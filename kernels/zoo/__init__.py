"""The zoo: known bugs as small wrong kernels, and kernels that are right but look wrong. A table; no torch, no Triton.

A verifier is as good as what it convicts here and what it lets pass. Each bug was read in a public tracker or in one of
five published texts, and is written anew: the mistake alone, in a kernel of ours that is right without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verify_norm.spec import CaseSpec, Contract, Kernel

Kind = Literal[
    "masking", "coverage", "memory", "layout", "alignment", "index", "numerics", "dtype", "eps", "gradient", "shape",
    "options", "aliasing", "state", "degenerate", "race", "determinism", "check", "unusual",
]  # fmt: skip
Needs = Literal["cpu", "gpu", "sm_90", "none"]
WHERE = "verify_norm.kernels.zoo."


@dataclass(frozen=True, slots=True)
class Specimen:
    """One kernel of the zoo.

    Parameters
    ----------
    kernel : the kernel; its name is the specimen's, its summary says in one line what is wrong with it.
    kind : the class of bug; "unusual" where nothing is wrong, "check" where it is no kernel but a wrong check.
    source : where it was read: project and number of the issue, or the seed document.
    wrong : whether a verifier is to convict it.
    caught_by : the checks of which at least one names it.
    outputs : the outputs that are wrong, as a finding names them; empty where no output is, but the call itself.
    needs : where it shows: on a "cpu", only on a "gpu", or on one from "sm_90" on, or in "none" of our operators.
    reason : why it does not show on a CPU, or why no operator of ours can say it.
    """

    kernel: Kernel
    kind: Kind
    source: str
    wrong: bool = True
    caught_by: tuple[str, ...] = ("accuracy",)
    outputs: tuple[str, ...] = ()
    needs: Needs = "cpu"
    reason: str = ""

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.name


def few_rows(spec: CaseSpec) -> str | None:
    """For kernels with a program a row or two, of which Triton's interpreter runs two hundred a second."""
    rows = 1
    for extent in spec.shape[: len(spec.shape) - spec.normalized_ndim]:
        rows *= extent
    return "more than 100 rows, and each is a program" if rows > 100 else None


def own_eps(spec: CaseSpec) -> str | None:
    """For a kernel whose eps is left at its default."""
    return "its eps is left at its default, 1e-5" if spec.eps != 1e-5 else None


def specimen(
    name: str, op: str, where: str, kind: Kind, line: str, source: str, *, outputs: tuple[str, ...] = (),
    caught_by: tuple[str, ...] = ("accuracy",), wrong: bool = True, needs: Needs = "cpu",
    reason: str = "", contract: Contract | None = None, forward: str | None = None, backend: str = "triton",
    few: bool = False, own: bool = False,
) -> Specimen:  # fmt: skip
    """A row of the table; `where` is the module under kernels/zoo and the function's name.

    `forward` is the kernel whose gradient a backward is to be: the project's own if not said. `few` and `own` leave
    out the cases that the functions of those names say.
    """
    if forward is None and op.endswith("_bwd"):
        forward = op.replace("_bwd", "_fwd")
    kernel = Kernel(
        name, op, WHERE + where, "torch" if backend == "torch" else "triton", contract=contract or Contract(),
        summary=line, forward=forward, unsupported=few_rows if few else own_eps if own else None,
    )  # fmt: skip
    return Specimen(kernel, kind, source, wrong, caught_by, outputs, needs, reason)


from verify_norm.kernels.zoo.bugs import BUGS  # noqa: E402 — the tables are made of what is above
from verify_norm.kernels.zoo.right import RIGHT  # noqa: E402
from verify_norm.kernels.zoo.seeds import SEEDS  # noqa: E402

ZOO: dict[str, Specimen] = {row.name: row for row in (*BUGS, *SEEDS, *RIGHT)}
