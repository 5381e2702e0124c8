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

SMALL = tuple(range(1, 17))  # of M: a host may cut few rows in another way
MULTIPLES, OTHERS = (32, 48, 1024, 65536), (17, 37, 1021, 70001)  # of M: what Triton may specialize on, and not
REACH = (
    *("layernorm_fwd", "rmsnorm_fwd", "add_layernorm_fwd", "add_rmsnorm_fwd", "groupnorm_fwd"),
    *("layernorm_bwd", "rmsnorm_bwd", "add_layernorm_bwd", "add_rmsnorm_bwd"),
)
LEAST, MOST = 3, 2**17  # elements of a row: of 2 the squares (x − μ)² are equal, and could stand for each other
PROGRAMS = 2**31 - 1  # of a launch, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """What to prove: a kernel for rows of a length, or groups of one, in one type.

    M, the number of rows or, with groups, of samples, is a symbol of at most `most_rows`, and `rows` where it cannot be
    one.
    """

    kernel: str
    config: Configuration
    bind: str = ""
    rows: int = 301
    most_rows: int = 2**31 - 1


@dataclass(slots=True)
class Outcome:
    """What came of it: the domain of M in words, what was shown, the contract that is kept, and why not.

    `alone` says why M is one number.
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
    found = []
    for columns, dtype in cases:
        _refuse(columns, common)
        count = max(rows // groups, 1) if groups else rows
        if groups and columns % positions:
            raise UsageError(f"a group of {columns} elements has no whole channels of {positions} positions")
        found.append(Asked(kernel, Configuration(record.op, dtype, columns=columns, **common), bind, count, most_rows))
    return found


def _refuse(columns: int, common: Mapping[str, Any]) -> None:
    """Raise UsageError where a constant of a kernel could be taken for another one."""
    if not LEAST <= columns <= MOST:
        raise UsageError(f"--n {columns}: expected {LEAST} to {MOST}")
    numbers = {0.0, 1.0, float(columns), float(np.float32(1 / columns))}
    clash = {float(np.float32(common["eps"])), common["eps"]} & numbers
    if clash or common["offset"] in numbers - {0.0, 1.0} or common["offset"] == common["eps"]:
        raise UsageError(f"eps and weight_offset have to differ from 0, 1, N and 1/N, and from each other: {common}")


def prove(asked: Sequence[Asked]) -> list[Outcome]:
    """Return the outcome of each configuration; raises UsageError if a kernel cannot be loaded."""
    answers = record([request(one) for one in asked])
    wrong = next((answer["error"] for answer in answers if answer.get("usage")), None)
    if wrong is not None:
        raise UsageError(wrong)
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
    outcome = Outcome(asked)
    if "error" in answer:
        outcome.reasons.append({"what": "reach", "why": f"the call cannot be recorded: {answer['error']}", "line": ""})
        return outcome
    outcome.kernels = answer["kernels"]
    if not answer["kernels"]:
        outcome.reasons.append({"what": "reach", "why": "the call launches no Triton kernel", "line": ""})
        return outcome
    found = forms(asked, answer["calls"])
    outcome.alone = "" if any(one.rows for _, one in found) else _walking(asked, answer)
    _each(outcome, found)
    if outcome.reasons and all(reason["what"] == "reach" for reason in outcome.reasons) and not outcome.alone:
        first = outcome.reasons[0]
        outcome.alone = f"{first['why']} ({first['line']})" if first["line"] else str(first["why"])
        outcome.reasons, outcome.forms, outcome.proved = [], [], Proved()
        _each(outcome, one_m(asked, answer["calls"]))
    try:
        numbers = asked.rows, asked.most_rows
        held = None if outcome.reasons else promise(asked.config, outcome.proved, outcome.forms, *numbers)
        outcome.contract = held
    except NotProved as error:
        _note(outcome, error)
    return outcome


def _each(outcome: Outcome, found: Sequence[tuple[str, Form]]) -> None:
    """Prove the call of each class of M."""
    config, kernels = outcome.asked.config, outcome.kernels
    try:
        for words, one in found:
            if one.rows:
                _take(outcome, prove_form(config, one, kernels), words, one)
            else:
                m = int(words.rpartition(" ")[2])
                _take(outcome, prove_call(config, m, one.call, kernels), words, one)
    except NotProved as error:
        _note(outcome, error)


def forms(asked: Asked, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, Form]]:
    """Return the form of the call of each class of M, which is in words.

    There is one class, or that of all M above as few as possible of `SMALL`, or those of M > 16 that 16 divides and
    that it does not, beside each smaller M; or `asked.rows` alone, where launches have no form.
    """
    by_size = dict(zip(_sizes(asked), calls, strict=True))
    large = (*OTHERS, *MULTIPLES)
    ways = [(k, {f"every M > {k}" if k else "every M": (*SMALL[k:], *large)}) for k in range(len(SMALL) + 1)]
    ways.append((len(SMALL), {"M > 16, 16 ∤ M": OTHERS, "M > 16, 16 | M": MULTIPLES}))
    for few, classes in ways if len(by_size) > 1 else ():
        found = [(words, _form(members, by_size)) for words, members in classes.items()]
        each = [(words, one) for words, one in found if one is not None]
        if len(each) == len(found):
            return each + [(f"M = {m}", Form(by_size[m])) for m in SMALL[:few]]
    return one_m(asked, calls)


def _walking(asked: Asked, answer: Mapping[str, Any]) -> str:
    """Return which launch has programs in a number that no tile of rows gives, and where its loop over rows is."""
    sizes, calls = _sizes(asked)[1:], answer["calls"][1:]
    launches = [[event for event in call["events"] if "launch" in event] for call in calls]
    if len({len(found) for found in launches}) != 1:
        return f"a call launches {len(launches[0])} kernels of {sizes[0]} rows, {len(launches[-1])} of {sizes[-1]}"
    for each in zip(*launches, strict=True):
        grids = [event["grid"] for event in each]
        if form(sizes, [{"events": [event | {"arguments": []}]} for event in each]) is None:
            kernel = answer["kernels"][each[-1]["launch"]]
            loops = [op for op in program(kernel["ttir"]).body.operations if op.name == "scf.for"]
            where = f"; its loop over rows is {loops[0].at}" if loops else ""
            rows = f"M = {sizes[0]} rows have {grids[0][0]}, {sizes[-1]} have {grids[-1][0]}"
            return f"no tile of rows gives the programs of {kernel['name']} ({rows}){where}"
    return "an argument of a launch is not affine in M"


def one_m(asked: Asked, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, Form]]:
    """Return the call of `asked.rows` alone, as `forms`."""
    return [(f"M = {asked.rows}", Form(calls[0]))]


def _form(members: Sequence[int], by_size: Mapping[int, Any]) -> Form | None:
    return form(members, [by_size[m] for m in members])


def _take(outcome: Outcome, proved: Proved, words: str, found: Form) -> None:
    """Add what has been proved of one class of M."""
    for error in proved.failures.values():
        _note(outcome, error)
    outcome.proved.add(proved)
    outcome.forms.append((words, found))
    symbolic, each = any(one.rows for _, one in outcome.forms), max(one.each for _, one in outcome.forms)
    most = min(outcome.asked.most_rows, PROGRAMS // each)
    for error in _beyond(proved.limits, most) if found.rows else ():
        _note(outcome, error)
    outcome.domain = f"every M, 1 ≤ M ≤ {most}" if symbolic else words
    outcome.domain += " samples" * bool(outcome.asked.config.groups)


def _beyond(limits: Mapping[Line, float], most: int) -> Iterator[NotProved]:
    """Yield what stands in the way of M up to `most`: the first line that overflows, and the first argument."""
    least = int(min([most, *limits.values()]))
    for here in (True, False):
        limit, at = min(((one, at) for at, one in limits.items() if bool(at.line) == here), default=(inf, Line("", 0)))
        what = (
            "a number of 32 bits overflows" if here else "an argument has 64 bits, and Triton compiles another kernel"
        )
        if limit < most:
            yield NotProved("memory", f"beyond M = {int(limit)} {what}; --most-rows {least} proves the others", at)


def _note(outcome: Outcome, error: NotProved) -> None:
    reason = {"what": error.what, "why": error.why, "line": str(error.at) if error.at.line else ""}
    if reason not in outcome.reasons:
        outcome.reasons.append(reason)
