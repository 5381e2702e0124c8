"""The Python door: `verify` a kernel, `exhaust` a space, `replay` a case, `same`: two kernels; decorator `kernel`."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from verify_norm.campaign.summary import Summary
from verify_norm.core.errors import Exit, UsageError, number, quoted, texts
from verify_norm.core.finding import Finding
from verify_norm.core.own import Operator
from verify_norm.core.proved import Proved
from verify_norm.core.rendering import Rendered
from verify_norm.core.results import FindingsError, Report, failures, worst_of
from verify_norm.core.settings import DEFAULTS, Seconds
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.equality.model import Equality
from verify_norm.exhaustive.model import Choice, Exhausted

if TYPE_CHECKING:
    import torch

Dtypes = Union[str, "torch.dtype", Iterable[Union[str, "torch.dtype"]]]
F = TypeVar("F", bound=Callable[..., object])


class Reports(Rendered, tuple[Report, ...]):
    """The reports of a differentiable kernel, one a direction, with the properties of one report."""

    __slots__ = ()

    def _each(self) -> tuple[Report, ...]:
        return tuple(self)

    @property
    def ok(self) -> bool:
        """Whether every report is ok."""
        return bool(self) and all(report.ok for report in self)

    @property
    def verdict(self) -> Exit:
        """The worst verdict."""
        return worst_of((report.verdict for report in self), every=True)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all reports."""
        return tuple(finding for report in self for finding in report.findings)

    def raise_for_findings(self) -> None:
        """Raise FindingsError if a report has findings, has checked nothing, or is incomplete."""
        if texts := [text for report in self if (text := failures(report))]:
            raise FindingsError("\n\n".join(texts))


def _one_or_all(reports: Iterable[Report]) -> Report | Reports:
    found = Reports(reports)
    return found[0] if len(found) == 1 else found


def _tell(note: str) -> None:
    print(f"verify-norm: {note}", file=sys.stderr)


def _given(command: str, *, config: bool, **values: Any) -> dict[str, Any]:
    """Return the options that a call gives, and for the others what [tool.verify-norm] sets, unless not `config`."""
    from verify_norm.search.config import defaults

    table, note = defaults(command) if config else ({}, "")
    given = {name: value for name, value in values.items() if value is not None}
    if table.keys() - given.keys():
        _tell(note)
    return table | given


def verify(
    kernel: object,
    op: str | Operator | None = None,
    *,
    dtypes: Dtypes | None = None,
    checks: str | Iterable[str] | None = None,
    examples: int | None = None,
    seconds: float | None = None,
    device: str | None = None,
    seed: int | None = None,
    shapes: Literal["fuzz", "models", "all"] | None = None,
    workers: int | None = None,
    timeout: float | None = None,
    corpus: str | None = None,
    certificate: str = "",
    contract: Contract | str | None = None,
    only: str | None = None,
    bind: str = "",
    isolate: bool = DEFAULTS.isolate,
    untrusted: bool | None = None,
    allow_incomplete: bool | None = None,
    require_own: bool | None = None,
    config: bool = True,
) -> Report | Reports:
    """Check a kernel as `verify-norm --kernel` does; return a report, or Reports where `op` has no direction.

    Parameters
    ----------
    kernel : a name (`verify-norm list`), "package.module:attr", "path/file.py:attr", or the callable: a function, a
        functools.partial, a torch.autograd.Function, an nn.Module's class or an instance.
    op, bind, contract : the operator, optional if the name tells; "layernorm" is both directions, and so is one that
        `verify_norm.operator` made. The names of the
        kernel's arguments, as "x=hidden_states, eps=1e-6 -> y, rstd". What it promises: a whole Contract, or what
        changes in the one it declares, as "llama,inplace=y:x" (`verify-norm show contracts`); the default is strict.
    only : what the kernel takes, as "ndim=2,contiguous,N%8=0" (`verify-norm show only`); the verdict says so.
    dtypes, checks : types of x; names of checks, all that apply if there are none. Lists, or text: "fp32,bf16". Types
        may be torch's, as torch.bfloat16.
    examples, seconds, seed : cases after the corner table (all pairs of choices, then random ones), the time for all
        cases, the seed of those after the table.
    corpus : a file of cases to run first, as `verify-norm hunt --corpus` writes it.
    certificate : a file of `verify-norm prove --json`; the report says what it proves of the kernel.
    device, shapes : "cpu", "cuda", "cuda:1" or "auto", the first GPU if there is one; random shapes ("fuzz"), norm
        shapes of real models ("models") or both ("all").
    workers : processes that examine cases at the same time, 1 to 64; by default 1 on a CPU, at most 8 on a GPU. The
        cases and the findings are the same.
    timeout, isolate : seconds for one case, 20 or, on a GPU, 90 if None, and more where the kernel may build; run the
        kernel in a process of its own. What cannot be imported there (a nested function, one of the running script)
        runs in this process.
    untrusted : the kernel may cheat. Truth and verdict stay out of its process, which is in a sandbox, and its file is
        imported there alone; the seed is the system's unless given, and in the report's settings.
    allow_incomplete : accept a run that ends, by its time or Ctrl-C, before all corner cases.
    require_own : a norm operator of torch that runs inside the kernel, as a fallback, is a finding.
    config : take what is not given here from [tool.verify-norm] of the nearest pyproject.toml, as every door does.

    Raises
    ------
    UsageError : the kernel cannot be found, imported or bound, or an option is unknown or out of range.

    Examples
    --------
    >>> report = verify("rmsnorm_fwd", dtypes=["float32"], checks=["signature"], examples=0)
    >>> report.ok, report.op
    (True, 'rmsnorm_fwd')
    """
    from verify_norm.search.request import request

    given = {"dtypes": dtypes, "checks": checks, "examples": examples, "seconds": seconds, "seed": seed, "only": only}
    given |= {"device": device, "shapes": shapes, "timeout": timeout, "allow_incomplete": allow_incomplete}
    given |= {"workers": workers, "require_own": require_own, "untrusted": untrusted}
    texts(certificate=certificate)
    options = _given("verify", config=config, contract=contract, corpus=corpus, **given)
    cases = options.pop("corpus", "")
    asked = request(kernel, options, op=op, bind=bind, isolate=isolate, corpus=cases, tell=_tell)
    from verify_norm.search.search import search

    proofs: dict[tuple[str, str], tuple[Proved, ...]] = {}
    if certificate:
        from verify_norm.proof.standing import standing

        proofs = standing(certificate, asked.kernels, untrusted=asked.settings.untrusted)
    found = ((one, search(one, asked.settings, first=first)) for one, first in asked.runs())
    return _one_or_all(replace(report, proofs=proofs.get((one.name, one.op), ())) for one, report in found)


audit = verify  # its name before; `verify-norm audit`, the command, does more


def same(
    a: object,
    b: object,
    op: str | Operator | None = None,
    *,
    dtypes: Dtypes | None = None,
    examples: int | None = None,
    seconds: float | None = None,
    device: str | None = None,
    seed: int | None = None,
    shapes: Literal["fuzz", "models", "all"] | None = None,
    timeout: float | None = None,
    only: str | None = None,
    binds: tuple[str, str] = ("", ""),
    isolate: bool = DEFAULTS.isolate,
    allow_incomplete: bool | None = None,
    replay: str = "",
    config: bool = True,
) -> Equality:
    """Compare two kernels of one operator bit for bit, as `verify-norm same` does.

    `a` and `b` are what `verify` takes as a kernel; `binds` holds one text for each. `replay` is the JSON of a replay
    line: then this case alone is compared. The other options are those of `verify`.

    Raises UsageError as `verify`, or if the operators differ or are several.

    Examples
    --------
    >>> same("rmsnorm_fwd", "rmsnorm_fwd", dtypes="fp32", replay='{"kernel": "rmsnorm_fwd", "shape": [2, 8]}').ok
    True
    """
    from verify_norm.core.serial import read_spec
    from verify_norm.search.request import request_pair

    texts(replay=replay)
    named, case = read_spec(replay)[1:] if replay else (None, None)
    given = {"dtypes": dtypes, "examples": examples, "seconds": seconds, "seed": seed, "only": only}
    given |= {"device": device, "shapes": shapes, "timeout": timeout, "allow_incomplete": allow_incomplete}
    given = {"examples": 100} | _given("same", config=config, **given)
    first, second = request_pair((a, b), given, op=op or named, binds=binds, isolate=isolate, tell=_tell)
    from verify_norm.equality import compare

    ((one, other),) = compare.pair(first.kernels, second.kernels, single=True)
    if case is not None:
        return compare.replay(one, other, case, first.settings)
    return compare.compare(one, other, first.settings)


def exhaust(
    kernel: object,
    op: str | Operator | None = None,
    *,
    space: str = "",
    dtype: str = "",
    eps: float = 1e-5,
    items: str = "",
    seconds: float | None = None,
    resume: str = "",
    device: str | None = None,
    timeout: float | None = None,
    contract: Contract | str | None = None,
    only: str | None = None,
    bind: str = "",
    isolate: bool = DEFAULTS.isolate,
    config: bool = True,
) -> Exhausted:
    """Run a kernel on all of a space, as `verify-norm exhaust` does: its options, and those of `verify`.

    Raises UsageError as `verify`, if the operator has no such space, if `op` has two directions, if `resume` is a file
    of another run, or if a CPU would take long and no `seconds` say that it may.

    Examples
    --------
    >>> found = exhaust("batchnorm_fwd", items="0:256", isolate=False, device="cpu")
    >>> found.ok, found.scope
    (True, '256 of 65,536 bfloat16 values of x, in each of 8 channels of fixed statistics (numbers 0 to 255)')
    """
    from verify_norm.search.options import least
    from verify_norm.search.request import request

    texts(space=space, dtype=dtype, items=items, resume=resume)
    if seconds is not None:
        number("seconds", seconds, least(Seconds))
    given = _given("exhaust", config=config, device=device, timeout=timeout, contract=contract, only=only)
    asked = request(kernel, given, op=op, bind=bind, isolate=isolate, tell=_tell)
    from verify_norm.exhaustive import run

    choice = Choice(space, dtype, eps, items)
    return run.exhaust(asked.only(), asked.settings, choice, seconds=seconds, resume=resume)


def run_campaign(
    plan: str | Mapping[str, Any],
    store: str,
    *,
    on: str = "local",
    jobs: int | None = None,
    shard: str = "1/1",
    stop_after: float | None = None,
) -> Summary:
    """Run a campaign, or go on with it, as `verify-norm campaign` does; return what its store says of the shard.

    `plan` is the path of a plan or its keys (`verify_norm.campaign.plan`), `store` the path of the file that keeps the
    outcomes; the others are options of the command. Raises UsageError: a key of the plan is wrong, a kernel cannot be
    loaded, or the store is of another campaign, in use, or cannot be written.
    """
    from verify_norm.campaign import run, summary
    from verify_norm.campaign.places import executor, here
    from verify_norm.campaign.plan import checked, expand, read
    from verify_norm.campaign.shard import Shard
    from verify_norm.campaign.store import Store
    from verify_norm.search.options import least

    texts(store=store, on=on, shard=shard)
    if jobs is not None:
        number("jobs", jobs, 1)
    if stop_after is not None:
        number("stop_after", stop_after, least(Seconds))
    if not isinstance(plan, (str, Mapping)):
        raise UsageError(f"plan: expected the path of a plan, or its keys, got {quoted(plan)}")
    share, path = Shard.of(shard), plan if isinstance(plan, str) else ""
    asked = checked(read(path) if isinstance(plan, str) else plan, path)
    units, stop = expand(asked, _tell, elsewhere=not here(on)), inf if stop_after is None else stop_after
    run.run(asked, units, store, executor(on, asked, jobs), shard=share, seconds=stop)
    with Store.reading(store) as written:
        return summary.summarize(written, share)


def replay(
    kernel: object,
    spec: str | CaseSpec,
    op: str | Operator | None = None,
    *,
    checks: str | Iterable[str] | None = None,
    device: str | None = None,
    timeout: float | None = None,
    contract: Contract | str | None = None,
    only: str | None = None,
    require_own: bool | None = None,
    bind: str = "",
    isolate: bool = DEFAULTS.isolate,
    untrusted: bool | None = None,
    config: bool = True,
) -> Report | Reports:
    """Run one case again: `spec` is the JSON of a replay line, or a CaseSpec. The options are those of `verify`.

    Raises UsageError if the spec is malformed, or does not fit the operator.
    """
    from verify_norm.core.serial import read_spec, refuse_nonsense
    from verify_norm.search.request import request

    if isinstance(spec, str):
        _, named, case = read_spec(spec)
        op = op or named
    elif isinstance(spec, CaseSpec):
        refuse_nonsense(spec)
        case = spec
    else:
        raise UsageError(f"spec: expected the JSON of a replay line, or a CaseSpec, got {quoted(spec)}")
    given = {"checks": checks, "device": device, "timeout": timeout, "contract": contract, "only": only}
    given |= {"require_own": require_own, "untrusted": untrusted}
    given = _given("replay", config=config, **given) | {"examples": 0}
    asked = request(kernel, given, op=op, bind=bind, isolate=isolate, tell=_tell)
    from verify_norm.search.search import replay as run

    return _one_or_all(run(one, case, asked.settings) for one in asked.kernels)


def kernel(
    op: str = "",
    *,
    contract: Contract | None = None,
    bind: str = "",
    forward: str | None = None,
    unsupported: Callable[[CaseSpec], str | None] | None = None,
    only: str = "",
    summary: str = "",
) -> Callable[[F], F]:
    """Return a decorator that declares what a callable computes and promises; the callable itself does not change.

    `op` is optional where the name tells; `forward` names the kernel whose gradient a backward computes;
    `unsupported(spec)` returns why the kernel does not take a case, or None; `only` says which cases it takes, as
    "N%8=0" (`verify-norm show only`); `bind` is as in `verify`.

    >>> @kernel(op="rmsnorm_fwd", contract=Contract(xhat="x"))
    ... def fused(x, weight, eps): ...
    >>> fused.__verify_norm__.op
    'rmsnorm_fwd'
    """
    if callable(op):  # a decorator without parentheses
        raise UsageError(
            f"kernel: expected the name of an operator, as @verify_norm.kernel(op='rmsnorm_fwd'), got {op!r:.60}"
        )
    promised = contract or Contract()
    declared = Kernel("", op, "", contract=promised, bind=bind, forward=forward, unsupported=unsupported, only=only)

    def declare(function: F) -> F:
        name = str(getattr(function, "__qualname__", type(function).__name__))
        function.__verify_norm__ = replace(declared, name=name, summary=summary)  # type: ignore[attr-defined]
        return function

    return declare
