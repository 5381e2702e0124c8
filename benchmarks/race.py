"""A race of contestants on one piece of work. Each is checked, timed, and the timed result is checked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import peers
import torch
from oracle import Judged, compare, expected
from timing import Clock, Times
from work import Job, Work, arguments

from verify_norm.core.ops import OPS
from verify_norm.core.promises import output_dtype
from verify_norm.loading.returned import named


@dataclass(slots=True)
class Row:
    """The result of one contestant on one piece of work. `status` is ok, wrong or refused; `reason` explains it."""

    work: Work
    name: str
    peer: bool
    status: str = "ok"
    reason: str = ""
    times: Times | None = None
    copy_us: float = 0.0
    best_peer_us: float | None = None
    seconds: float = 0.0  # of everything, compilation included
    errors: dict[str, float] = field(default_factory=dict)  # |got − want| / allowed by output; at most 1 if right

    @property
    def gbs(self) -> float | None:
        """The bytes that the work must move, per nanosecond; None without a time."""
        return None if self.times is None else self.work.size / self.times.best / 1e3

    @property
    def of_copy(self) -> float | None:
        """The speed relative to a copy of as many bytes; None without a time."""
        return None if self.times is None or not self.copy_us else self.copy_us / self.times.best

    @property
    def of_best(self) -> float | None:
        """The speed relative to the fastest peer whose results are right; None without a time."""
        return None if self.times is None or not self.best_peer_us else self.best_peer_us / self.times.best

    def record(self) -> dict[str, Any]:
        """Return the row as JSON."""
        fixed = {"kernel": self.name, "peer": self.peer, **asdict(self.work), "title": self.work.title}
        times = (
            {}
            if self.times is None
            else {
                "us": self.times.best,
                "graph_us": self.times.kernel,
                "eager_us": self.times.eager,
                "host_us": self.times.host,
                "runs": self.times.runs,
                "note": self.times.note,
                "gb_per_s": self.gbs,
                "of_copy": self.of_copy,
                "of_best_peer": self.of_best,
            }
        )
        return {
            **fixed,
            "bytes": self.work.size,
            "copy_us": self.copy_us,
            "status": self.status,
            "reason": self.reason,
            "seconds": round(self.seconds, 2),
            "error_over_bound": self.errors,
            **times,
        }

    @classmethod
    def read(cls, record: dict[str, Any]) -> Row:
        """Return the row of a record made by `record`."""
        r = {**record, "shape": tuple(record["shape"])}
        work = Work(**{one.name: r[one.name] for one in fields(Work) if one.name in r})
        times = Times(r["graph_us"], r["eager_us"], r["host_us"], r["runs"], r["note"]) if "us" in r else None
        best = r["of_best_peer"] * r["us"] if r.get("of_best_peer") else None
        return cls(
            work,
            r["kernel"],
            r["peer"],
            r["status"],
            r["reason"],
            times,
            r["copy_us"],
            best,
            r["seconds"],
            r["error_over_bound"],
        )


class WrongError(Exception):
    """A result is beyond its bound, or has the wrong type, shape or presence."""


def judged(
    contestant: peers.Contestant, work: Work, given: dict[str, Any], known: dict[Any, Any]
) -> Callable[[Any], dict[str, float]]:
    """Return a function that compares results with the truth: it returns error/bound by output, or raises WrongError.

    `known` caches the expected results of this work, by contract.
    """
    op = OPS[work.op]
    own = {t.name: output_dtype(t, contestant.contracts[0], work.dtype) for t in op.outputs}
    dtypes = {"x": work.dtype, **own, **contestant.dtypes}
    truths = []
    for contract in contestant.contracts:
        key = contract, tuple(contestant.dtypes.items())
        if key not in known:
            known[key] = expected(op, given, contract, dtypes)
        truths.append(known[key])

    def check(returned: Any) -> dict[str, float]:
        outputs = named(returned, op)
        if isinstance(outputs, str):
            raise WrongError(outputs)
        for tensor in op.outputs:  # mean and rstd may be missing; any other missing output would be less work
            if outputs.get(tensor.name) is None and truths[0][tensor.name] and tensor.extent != "statistic":
                raise WrongError(f"{tensor.name}: expected a tensor, the kernel returned none")
        given_out = {name: tensor for name, tensor in outputs.items() if tensor is not None and truths[0][name]}
        found = [{name: _held(name, tensor, truth[name]) for name, tensor in given_out.items()} for truth in truths]
        best = min(found, key=lambda one: max(j.ratio for j in one.values()))
        for name, one in best.items():
            if not one.right:
                unbounded = f"; {one.elements - one.judged} elements have no bound" * (one.judged < one.elements)
                raise WrongError(f"the error of {name} is {one.ratio:.3g} times its bound{unbounded}")
        return {name: one.ratio for name, one in best.items()}

    return check


def _held(name: str, tensor: torch.Tensor, want: Any) -> Judged:
    if str(tensor.dtype).removeprefix("torch.") != want.dtype:
        raise WrongError(f"{name}: expected {want.dtype}, got {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.numel() != want.value.tensor.numel():
        raise WrongError(f"{name}: expected shape {want.value.shape}, got {tuple(tensor.shape)}")
    return compare(tensor, want)


def attempt(
    contestant: peers.Contestant, work: Work, given: dict[str, Any], clock: Clock, known: dict[Any, Any]
) -> Row:
    """Return the row of one contestant: check its result, time it, and check the timed result."""
    row, began = Row(work, contestant.name, contestant.peer), time.perf_counter()
    try:
        call = contestant.prepare(given)
        check = judged(contestant, work, given, known)
        check(call())
        row.times = clock.measure(call, lambda result: row.errors.update(check(result)))
    except WrongError as wrong:
        row.status, row.reason, row.times, row.errors = "wrong", str(wrong), None, {}
    except Exception as error:  # any error of a library: it does not support this work
        first = (str(error).strip().splitlines() or ["(no message)"])[0]
        row.status, row.reason, row.times = "refused", f"{type(error).__name__}: {first[:160]}", None
    if row.times is not None and not row.errors:  # no graph: only the first call was checked
        row.errors = check(call())
    row.seconds = time.perf_counter() - began
    return row


def race(jobs: Iterable[Job], clock: Clock, device: str) -> Iterator[list[Row]]:
    """Yield the rows of each piece of work in turn."""
    for job in jobs:
        copy = clock.copy(job.work.size)
        with torch.no_grad():
            given, known = arguments(job.work, device), {}
            found = [attempt(peers.ours(name, job.work.op), job.work, given, clock, known) for name in job.kernels]
            for name in job.peers:
                found += _peer(name, job.work, given, clock, known)
        times = [row.times.best for row in found if row.peer and row.times is not None]
        for row in found:
            row.copy_us, row.best_peer_us = copy.best, min(times, default=None)
        yield found


def shard(jobs: Iterable[Job], device: str) -> None:
    """Call every contestant once, so that it compiles."""
    for job in jobs:
        with torch.no_grad():
            given = arguments(job.work, device)
            for name in job.kernels:
                with suppress(Exception):
                    peers.ours(name, job.work.op).prepare(given)()
            for name in job.peers:
                with suppress(Exception):
                    contestant = None if peers.missing(name) else peers.peer(name, job.work)
                    if contestant is not None:
                        contestant.prepare(given)()
    if device != "cpu":
        torch.cuda.synchronize(device)


def _peer(name: str, work: Work, given: dict[str, Any], clock: Clock, known: dict[Any, Any]) -> list[Row]:
    reason = peers.missing(name)
    if reason is not None:
        return [Row(work, name, True, "refused", reason)]
    contestant = peers.peer(name, work)
    return [] if contestant is None else [attempt(contestant, work, given, clock, known)]
