"""Proves configurations of a kernel, and says for what: records calls, finds the form of launches, proves them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.loading.registry import find
from verify_norm.proof.memory import NotProved
from verify_norm.proof.promise import promise
from verify_norm.proof.prover import program, prove_call, prove_form
from verify_norm.proof.recording import record
from verify_norm.proof.shapes import Form, form
from verify_norm.proof.shown import Configuration, Proved
from verify_norm.proof.ttir import Line

SMALL = tuple(range(1, 17))  # values of M: a host may divide few rows in another way
MULTIPLES, OTHERS = (32, 48, 1024, 65536), (17, 37, 1021, 70001)  # of 16, on which Triton may specialize, and others
REACH = (
    *("layernorm_fwd", "rmsnorm_fwd", "add_layernorm_fwd", "add_rmsnorm_fwd", "groupnorm_fwd"),
    *("layernorm_bwd", "rmsnorm_bwd", "add_layernorm_bwd", "add_rmsnorm_bwd"),
)
LEAST, MOST = 3, 2**17  # elements of a row: of 2 both squares (x − μ)² are equal, and one could stand for the other
PROGRAMS = 2**31 - 1  # the largest grid of a launch


@dataclass(frozen=True, slots=True)
class Asked:
    """What to prove: a kernel for rows of a length, or groups of one, in one type.

    M is the number of rows or, with groups, of samples. It is a symbol, at most `most_rows`; where launches have no
    form in M, it is `rows`.
    """

    kernel: str
    config: Configuration
    bind: str = ""
    rows: int = 301
    most_rows: int = 2**31 - 1


@dataclass(slots=True)
class Outcome:
    """What came of a proof.

    `domain` has the proved M in words, and `alone` says why it is one number. `proved` has what was shown, `contract`
    the contract that the kernel keeps. `reasons` say what stands in the way of the proof; without any it holds.
    """

    asked: Asked
    domain: str = ""
    alone: str = ""
    proved: Proved = field(default_factory=Proved)
    contract: Contract | None = None
    reasons: list[dict[str, Any]] = field(default_factory=list)
    forms: list[tuple[str, Form]] = field(default_factory=list)
    kernels: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether every output is proved."""
        return not self.reasons and bool(self.proved.outputs)


def configurations(
    kernel: str,
    op: str,
    bind: str,
    cases: Sequence[tuple[int, str]],
    common: Mapping[str, Any],
    *,
    rows: int,
    most_rows: int,
) -> list[Asked]:
    """Return what to prove: a configuration for each length of a row and type; raises UsageError."""
    record = find(kernel, op or None, bind)
    if record.op not in REACH:
        raise UsageError(f"{kernel} is a kernel for {record.op}; proofs reach {', '.join(REACH)}")
    groups, positions = common["groups"], common["positions"]
    if (record.op == "groupnorm_fwd") != bool(groups):
        raise UsageError(f"{record.op}: --groups and --positions belong to groupnorm_fwd, which needs them")
    asked = []
    for columns, dtype in cases:
        _check_constants(columns, common)
        count = max(rows // groups, 1) if groups else rows
        if groups and columns % positions:
            raise UsageError(f"a group of {columns} elements has no whole channels of {positions} positions")
        asked.append(Asked(kernel, Configuration(record.op, dtype, columns=columns, **common), bind, count, most_rows))
    return asked


def _check_constants(columns: int, common: Mapping[str, Any]) -> None:
    """Raise UsageError if a kernel's constants (eps, the offset, N, 1/N, 0, 1) are not told apart by their values."""
    if not LEAST <= columns <= MOST:
        raise UsageError(f"--n {columns}: expected {LEAST} to {MOST}")
    numbers = {0.0, 1.0, float(columns), float(np.float32(1 / columns))}
    clash = {float(np.float32(common["eps"])), common["eps"]} & numbers
    if clash or common["offset"] in numbers - {0.0, 1.0} or common["offset"] == common["eps"]:
        raise UsageError(f"eps and weight_offset have to differ from 0, 1, N and 1/N, and from each other: {common}")


def prove(asked: Sequence[Asked]) -> list[Outcome]:
    """Return the outcome of each configuration; raises UsageError if a kernel cannot be loaded."""
    answers = record([request(one) for one in asked])
    for answer in answers:
        if answer.get("usage"):
            raise UsageError(answer["error"])
    return [_outcome(one, answer) for one, answer in zip(asked, answers, strict=True)]


def _sizes(asked: Asked) -> tuple[int, ...]:
    """Return the numbers of rows, or of samples, that are recorded."""
    return (asked.rows, *SMALL, *MULTIPLES, *OTHERS)


def request(asked: Asked) -> dict[str, Any]:
    """Return what to record of a kernel."""
    config, op = asked.config, OPS[asked.config.op]
    shape = [] if config.groups else [config.columns]
    scalars = {"eps": config.eps, "normalized_shape": shape, "weight_offset": config.offset}
    scalars |= {"num_groups": config.groups} if config.groups else {}
    calls = [_inputs(op, config, rows) for rows in _sizes(asked)]
    return {"kernel": asked.kernel, "op": config.op, "bind": asked.bind, "scalars": scalars, "calls": calls}


def _inputs(op: Op, config: Configuration, rows: int) -> dict[str, Any]:
    """Return the shapes and types of the inputs."""
    shapes = {"data": [rows, config.columns], "affine": [config.size(rows).parameters], "statistic": [rows]}
    if config.groups:
        channels = config.groups * config.columns // config.positions
        shapes |= {"data": [rows, channels, config.positions], "statistic": [rows, config.groups]}
    return {t.name: (shapes[t.extent], t.among(config.dtype, None)) for t in op.inputs if t.extent in shapes}


def _outcome(asked: Asked, answer: Mapping[str, Any]) -> Outcome:
    """Return the outcome for recorded calls: for every M, or where M as a symbol is out of reach, for one M."""
    outcome = Outcome(asked)
    if "error" in answer:
        outcome.reasons.append({"what": "reach", "why": f"the call cannot be recorded: {answer['error']}", "line": ""})
        return outcome
    outcome.kernels = answer["kernels"]
    if not answer["kernels"]:
        outcome.reasons.append({"what": "reach", "why": "the call launches no Triton kernel", "line": ""})
        return outcome
    classes = forms(asked, answer["calls"])
    outcome.alone = "" if any(launches.rows for _, launches in classes) else _why_no_form(asked, answer)
    _prove_forms(outcome, classes)
    out_of_reach = bool(outcome.reasons) and all(reason["what"] == "reach" for reason in outcome.reasons)
    if out_of_reach and not outcome.alone:
        first = outcome.reasons[0]
        outcome.alone = f"{first['why']} ({first['line']})" if first["line"] else str(first["why"])
        outcome.reasons, outcome.forms, outcome.proved = [], [], Proved()
        _prove_forms(outcome, single_m(asked, answer["calls"]))
    try:
        if not outcome.reasons:
            outcome.contract = promise(asked.config, outcome.proved, outcome.forms, asked.rows, asked.most_rows)
    except NotProved as error:
        _note(outcome, error)
    return outcome


def _prove_forms(outcome: Outcome, classes: Sequence[tuple[str, Form]]) -> None:
    """Prove the call of each class of M."""
    config, kernels = outcome.asked.config, outcome.kernels
    try:
        for words, launches in classes:
            if launches.rows:
                proved = prove_form(config, launches, kernels)
            else:
                m = int(words.rpartition(" ")[2])
                proved = prove_call(config, m, launches.call, kernels)
            _add_proved(outcome, proved, words, launches)
    except NotProved as error:
        _note(outcome, error)


def forms(asked: Asked, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, Form]]:
    """Return the classes of M, in words, each with the form that its calls have.

    The first of these divisions is taken in which each class has a form: every M; every M > k, and each smaller one,
    with k as small as possible; the M > 16 that 16 divides, those that it does not, and each smaller one. Where none
    fits there is one class, `asked.rows` alone.
    """
    by_size: dict[int, Any] = dict(zip(_sizes(asked), calls, strict=True))
    if len(by_size) == 1:
        return single_m(asked, calls)
    divisions: list[tuple[int, dict[str, tuple[int, ...]]]] = []  # how many M are alone, and the classes of the others
    for k in range(len(SMALL) + 1):
        words = f"every M > {k}" if k else "every M"
        divisions.append((k, {words: (*SMALL[k:], *OTHERS, *MULTIPLES)}))
    divisions.append((len(SMALL), {"M > 16, 16 ∤ M": OTHERS, "M > 16, 16 | M": MULTIPLES}))
    for alone, members in divisions:
        classes = []
        for words, sizes in members.items():
            launches = form(sizes, [by_size[m] for m in sizes])
            if launches is not None:
                classes.append((words, launches))
        if len(classes) == len(members):
            return classes + [(f"M = {m}", Form(by_size[m])) for m in SMALL[:alone]]
    return single_m(asked, calls)


def _why_no_form(asked: Asked, answer: Mapping[str, Any]) -> str:
    """Return in words why launches have no form in M: their number, the grid of one of them, or an argument."""
    sizes, calls = _sizes(asked)[1:], answer["calls"][1:]
    launches = [[event for event in call["events"] if "launch" in event] for call in calls]
    if len({len(events) for events in launches}) != 1:
        return f"a call launches {len(launches[0])} kernels of {sizes[0]} rows, {len(launches[-1])} of {sizes[-1]}"
    for events in zip(*launches, strict=True):  # the same launch in each call
        grids = [event["grid"] for event in events]
        if form(sizes, [{"events": [event | {"arguments": []}]} for event in events]) is None:
            kernel = answer["kernels"][events[-1]["launch"]]
            loops = [op for op in program(kernel["ttir"]).body.operations if op.name == "scf.for"]
            where = f"; its loop over rows is {loops[0].at}" if loops else ""
            rows = f"M = {sizes[0]} rows have {grids[0][0]}, {sizes[-1]} have {grids[-1][0]}"
            return f"no tile of rows gives the programs of {kernel['name']} ({rows}){where}"
    return "an argument of a launch is not affine in M"


def single_m(asked: Asked, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, Form]]:
    """Return the call of `asked.rows` alone, as `forms`."""
    return [(f"M = {asked.rows}", Form(calls[0]))]


def _add_proved(outcome: Outcome, proved: Proved, words: str, launches: Form) -> None:
    """Add what has been proved of one class of M, which `words` name."""
    for error in proved.failures.values():
        _note(outcome, error)
    outcome.proved.add(proved)
    outcome.forms.append((words, launches))
    each = max(form.each for _, form in outcome.forms)
    most = min(outcome.asked.most_rows, PROGRAMS // each)
    if launches.rows:
        for error in _limits_below(most, proved.limits):
            _note(outcome, error)
    symbolic = any(form.rows for _, form in outcome.forms)
    outcome.domain = f"every M, 1 ≤ M ≤ {most}" if symbolic else words
    if outcome.asked.config.groups:
        outcome.domain += " samples"


def _limits_below(most: int, limits: Mapping[Line, float]) -> Iterator[NotProved]:
    """Yield what stands in the way of M up to `most`: the first line that overflows, and the first argument."""
    least = int(min([most, *limits.values()]))
    in_kernel = {at: limit for at, limit in limits.items() if at.line}
    of_arguments = {at: limit for at, limit in limits.items() if not at.line}
    for group, what in (
        (in_kernel, "a number of 32 bits overflows"),
        (of_arguments, "an argument has 64 bits, and Triton compiles another kernel"),
    ):
        limit, at = min(((limit, at) for at, limit in group.items()), default=(inf, Line("", 0)))
        if limit < most:
            yield NotProved("memory", f"beyond M = {int(limit)} {what}; --most-rows {least} proves the others", at)


def _note(outcome: Outcome, error: NotProved) -> None:
    """Add a reason why the proof does not hold, once."""
    reason = {"what": error.what, "why": error.why, "line": str(error.at) if error.at.line else ""}
    if reason not in outcome.reasons:
        outcome.reasons.append(reason)
