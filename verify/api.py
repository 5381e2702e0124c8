"""The Python door: `audit` a kernel, `replay` a case of it, and `kernel`, a decorator that says what a function is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from verify_norm.spec import CaseSpec, Contract, Finding, Kernel

if TYPE_CHECKING:
    from verify_norm.report.model import Report

F = TypeVar("F", bound=Callable[..., object])


class Reports(tuple["Report", ...]):
    """The reports of a differentiable kernel, one a direction, which can be asked as one report can."""

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """Whether all of them are."""
        return bool(self) and all(report.ok for report in self)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those of all."""
        return tuple(finding for report in self for finding in report.findings)

    def raise_for_findings(self) -> None:
        """Raise FindingsError where one of them has findings, or has checked nothing."""
        from verify_norm.report.model import FindingsError
        from verify_norm.report.text import failures

        said = [text for report in self if (text := failures(report))]
        if said:
            raise FindingsError("\n\n".join(said))


def audit(
    kernel: object, op: str | None = None, *, dtypes: str | Iterable[str] = ("float32", "float16", "bfloat16"),
    checks: str | Iterable[str] = (), examples: int = 400, seconds: float = 55.0, device: str = "auto", seed: int = 0,
    contract: Contract | None = None, bind: str = "", isolate: bool = True,
) -> Report | Reports:  # fmt: skip
    """Check a kernel as `verify-norm --kernel` does.

    Parameters
    ----------
    kernel
        a name (`verify-norm list`), "package.module:attr", "path/file.py:attr", or the callable: a function, a
        torch.autograd.Function, an nn.Module's class or an instance.
    op
        what it computes; "layernorm", without a direction, is its forward and its gradients. May be left out where the
        name tells.
    dtypes, checks
        types of x; names of checks, all that apply if there are none. Lists, or as on the command line: "fp32,bf16".
    examples, seconds, seed
        how many random cases after the corner table, the time for all of it, and the seed of the random cases.
    device
        "cpu", "cuda", "cuda:1"; "auto" is the first GPU where there is one.
    contract
        what the kernel promises; the default is strict.
    bind
        whose argument is whose, as `--bind`: "x=hidden_states, eps=1e-6 -> y, rstd".
    isolate
        run it in a process of its own. What no other process could find by its name, as a function within a function or
        what the running script defines, runs here.

    Returns
    -------
    Report or Reports
        one report; one for each direction, as Reports, where `op` has none. Both have `ok`, `findings` and
        `raise_for_findings()`.

    Raises
    ------
    UsageError
        the kernel cannot be found, imported or bound, or an option names nothing or is out of range.

    Examples
    --------
    >>> report = audit("rmsnorm_fwd", dtypes=["float32"], checks=["signature"], examples=0)
    >>> report.ok, report.op
    (True, 'rmsnorm_fwd')
    """
    from verify_norm import config, session

    for name, value in (("examples", examples), ("seconds", seconds), ("seed", seed)):
        config.require(name, value)
    place = session.device(device)
    kernels = session.load_all(kernel, op, place, bind, contract=contract)
    from verify_norm.report.model import Settings
    from verify_norm.search import search

    settings = Settings(
        dtypes=session.dtypes(dtypes),
        checks=session.checks(checks),
        examples=examples,
        seconds=seconds / len(kernels),
        seed=seed,
        device=place,
        isolate=isolate,
    )
    reports = Reports(search(loaded, settings) for loaded in kernels)
    return reports[0] if len(reports) == 1 else reports


def replay(kernel: object, spec: str | CaseSpec, op: str | None = None, *, checks: str | Iterable[str] = (),
           device: str = "auto", contract: Contract | None = None, bind: str = "", isolate: bool = True
           ) -> Report | Reports:  # fmt: skip
    """Run one case again: `spec` is the line of JSON that a finding shows, or a CaseSpec. Options as `audit`'s.

    Raises UsageError where the spec is malformed, or none of the operator.
    """
    from verify_norm import session
    from verify_norm.report.json import read_spec, refuse_nonsense

    if isinstance(spec, str):
        _, named, case = read_spec(spec)
        op = op or named
    else:
        refuse_nonsense(spec)
        case = spec
    place = session.device(device)
    kernels = session.load_all(kernel, op, place, bind, contract=contract)
    from verify_norm.report.model import Settings
    from verify_norm.search import replay as run

    settings = Settings((case.dtype,), session.checks(checks), examples=0, device=place, isolate=isolate)
    with session.one_case(case, kernels[0].op):
        reports = Reports(run(loaded, case, settings) for loaded in kernels)
    return reports[0] if len(reports) == 1 else reports


def kernel(
    op: str = "", *, contract: Contract | None = None, bind: str = "", forward: str | None = None,
    unsupported: Callable[[CaseSpec], str | None] | None = None, summary: str = "",
) -> Callable[[F], F]:  # fmt: skip
    """Say beside a callable what it computes and promises; it comes back as it was.

    `op` may be left out where the name tells; `forward` names the kernel that a backward is the gradient of;
    `unsupported(spec)` tells why a case is none for it, or None; `bind` is as `audit`'s.

    >>> @kernel(op="rmsnorm_fwd", contract=Contract(xhat="x"))
    ... def fused(x, weight, eps): ...
    >>> fused.__verify_norm__.op
    'rmsnorm_fwd'
    """

    def declare(function: F) -> F:
        name = str(getattr(function, "__qualname__", type(function).__name__))
        record = Kernel(
            name, op, contract=contract or Contract(), bind=bind, forward=forward, unsupported=unsupported,
            summary=summary,
        )  # fmt: skip
        function.__verify_norm__ = record  # type: ignore[attr-defined]
        return function

    return declare
