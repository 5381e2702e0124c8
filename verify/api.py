"""The Python interface: verify, replay, same, exhaust and run_campaign."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Union

from verify_norm.campaign.summary import Summary
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError, number, quoted, texts
from verify_norm.core.proved import Proved
from verify_norm.core.reports import Reports
from verify_norm.core.results import Report
from verify_norm.core.settings import DEFAULTS, PAIR_EXAMPLES, Seconds
from verify_norm.core.spec import CaseSpec
from verify_norm.core.user_operators import Operator
from verify_norm.equality.model import Equality
from verify_norm.exhaustive.model import Choice, Exhausted

if TYPE_CHECKING:
    import torch

Dtypes = Union[str, "torch.dtype", Iterable[Union[str, "torch.dtype"]]]


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
    kernel : The kernel: a name of `verify-norm list`, "package.module:attr", "path/file.py:attr", or the callable
        itself. A callable is a function, a functools.partial, a torch.autograd.Function, or an nn.Module's class or
        instance.
    op : The operator; not needed if the kernel's name tells it. "layernorm_fwd" is one direction, "layernorm" is both.
        What `verify_norm.operator` returns is an operator too.
    dtypes : The types of x, as a list or as text: "fp32,bf16". Types may be torch's, such as torch.bfloat16.
    checks : The checks to run, as a list or as text; all that apply if none is named.
    examples : The number of cases after the corner table: first all pairs of choices, then random cases.
    seconds : The time for all cases.
    device : "cpu", "cuda", "cuda:1", or "auto", which is the first GPU if there is one.
    seed : The seed of the cases after the corner table.
    shapes : "fuzz" for random shapes, "models" for the shapes of norms in real models, "all" for both.
    workers : The number of processes that examine cases at the same time, 1 to 64. The default is 1 on a CPU and at
        most 12 on a GPU. The cases and the findings do not depend on it.
    timeout : The seconds that one case may take. The default is 20, or 90 on a GPU. A case has more where it is large
        or the kernel may build.
    corpus : A file of cases to run first, as `verify-norm hunt --corpus` writes it.
    certificate : A file of `verify-norm prove --json`. The report says what it proves of the kernel.
    contract : What the kernel promises: a whole Contract, or text with the fields that differ from the contract that
        it declares, such as "llama,inplace=y:x" (`verify-norm show contracts`). A kernel that declares none has the
        strict contract.
    only : What the kernel takes, such as "ndim=2,contiguous,N%8=0" (`verify-norm show only`). The verdict names it.
    bind : How the kernel names its arguments and orders its results: "x=hidden_states, eps=1e-6 -> y, rstd".
    isolate : Whether the kernel runs in a process of its own. What cannot be imported there, such as a nested function
        or one of the running script, runs in this process in any case.
    untrusted : Whether the kernel may cheat. If so, the truth and the verdict stay out of its process, which is in a
        sandbox and alone imports its file. The seed is then drawn by the system unless it is given; the report's
        settings have it.
    allow_incomplete : Whether a run may pass that ends before all corner cases, by its time limit or by Ctrl-C.
    require_own : Whether a norm operator of torch that runs inside the kernel, for example as a fallback, is a finding.
    config : Whether options that are not given here are taken from [tool.verify-norm] of the nearest pyproject.toml.

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
    given = {"examples": PAIR_EXAMPLES} | _given("same", config=config, **given)
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
