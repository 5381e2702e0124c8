"""Certifies the references: every value and derivative that they claim, checked by independent methods."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import mpmath
import numpy as np

from verify_norm.cases import agreement
from verify_norm.core.chains import is_chain
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import Array
from verify_norm.core.errors import one_line, one_of
from verify_norm.core.known import NAMES, declared
from verify_norm.core.ops import OPS, base, resolved
from verify_norm.core.serial import jsonable
from verify_norm.reference.double_backward import DOUBLE_BACKWARD
from verify_norm.reference.jvp import JVP
from verify_norm.validation.certify import chains, exact, methods, probes, problems
from verify_norm.validation.certify.probes import References
from verify_norm.validation.certify.problems import Problem
from verify_norm.validation.certify.sizes import Sizes

EPSILON = 2.0**-52  # one ulp of a number, or half of one, depending on its place between powers of two
ULPS, SECOND_ULPS = 8.0, 16.0  # a second derivative's terms have twice as many rounded factors: r², and x̂ in each mean
PROMISED = {"dx": 1.2e-6, "dweight": 8.4e-7, "dbias": 3.1e-7}  # the output that the published check prints (seed 002)


@dataclass(frozen=True, slots=True)
class Result:
    """What one method finds for one quantity of one operator, in one family of cases."""

    op: str  # both directions: "layernorm"
    quantity: str  # "y", "mean", "rstd"; "dx", "dweight", "dbias"; "jvp …"; "double backward …" with respect to what
    family: str  # what the cases have in common
    method: str  # how the true value is computed
    error: float  # the error that is largest against its allowance
    allowed: float | None  # that allowance, in the same unit; None where nothing is judged
    unit: str
    why: str  # where the allowance comes from
    ok: bool  # whether every entry of every case is within its allowance
    cases: int = 1


@dataclass(frozen=True, slots=True)
class Certificate:
    """All results, the skipped operators with the reason, and the seed that draws the same cases again."""

    results: tuple[Result, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether there is a judged result, and every one is within its allowance."""
        return not self.failures and any(result.allowed is not None for result in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that are not ok."""
        return tuple(result for result in self.results if not result.ok)

    def jsonable(self) -> dict[str, Any]:
        """Return plain data for json.dumps; NaN and infinities become strings."""
        return dict(jsonable({"ok": self.ok} | asdict(self)))


def certify(
    ops: Iterable[str] | None = None,
    seed: int = 0,
    *,
    references: Mapping[str, References] | None = None,
    device: str | None = None,
) -> Certificate:
    """Return one result per operator, quantity, family of cases and method; about ten seconds for all on one core.

    `ops` are names, "layernorm" or "layernorm_bwd", or texts of chains, by default all of OPS; raises UsageError where
    one is unknown. `references` replaces the functions in OPS, `JVP` and `DOUBLE_BACKWARD`, of operators that have all
    of them. `seed` draws the data. With a `device`, which judges large cases there, truth and bound of every operator
    are computed on it and in NumPy.

    >>> certificate = certify(["rmsnorm"])
    >>> certificate.ok, max(r.error for r in certificate.results if r.method == "50 digits") < 8
    (True, True)
    """
    started = time.perf_counter()
    offered = list(dict.fromkeys(base(name) for name, op in OPS.items() if op.forward is not None or op.quantizer))
    chosen = offered if ops is None else list(dict.fromkeys(_meant(name, offered) for name in ops))
    results: list[Result] = []
    skipped: list[tuple[str, str]] = []
    for op in chosen:
        if op in JVP:
            with np.errstate(all="ignore"):  # a value that is not finite is a result, not a warning
                results += _certify(op, (references or {}).get(op) or shipped(op), seed)
        elif chains.evaluates(OPS[f"{op}_fwd"]):
            with np.errstate(all="ignore"):
                results += _of_chain(op, seed)
        else:
            skipped.append((op, "no code evaluates it to fifty digits"))
        if device is not None:
            results += _on(device, op)
    return Certificate(tuple(results), tuple(skipped), seed, time.perf_counter() - started)


def _meant(name: str, offered: list[str]) -> str:
    """Return the operator of a name, or of a chain's text, without a direction."""
    return base(resolved(name)[0]) if is_chain(name) else one_of("operator", base(name), offered)


def shipped(op: str) -> References:
    """Return the references of one operator, from OPS and `JVP`, `DOUBLE_BACKWARD`."""
    return References(OPS[f"{op}_fwd"].reference, OPS[f"{op}_bwd"].reference, JVP[op], DOUBLE_BACKWARD[op])


def _certify(op: str, references: References, seed: int) -> Iterator[Result]:
    """Yield the worst result of each quantity, family and method, then the published check."""
    worst: dict[tuple[str, ...], Result] = {}
    for problem in problems.every(op, seed):
        for result in _results(problem, references, seed):
            key = (result.quantity, result.family, result.method)
            other = worst.get(key)
            if other is not None:
                result = replace(max(other, result, key=_badness), cases=other.cases + 1)
            worst[key] = result
    yield from worst.values()
    if not any(result.method == "call" for result in worst.values()):
        yield from _published(op, references, seed)


def _of_chain(op: str, seed: int) -> Iterator[Result]:
    """Yield the worst result of each quantity, family and method of an operator that `chains` writes out."""
    worst: dict[tuple[str, ...], Result] = {}
    why = "the rounding analysis of the reference in float64"
    try:
        for found in chains.certified(op, seed):
            point, error, allowed, ok = found[:3], *found[3:]
            result = Result(op, *point, error, allowed, "of the terms' size", why, ok)
            other = worst.get(point)
            worst[point] = result if other is None else replace(max(other, result, key=_badness), cases=other.cases + 1)
    except Exception as error:
        yield Result(op, "every quantity", "", "call", math.inf, 0.0, "", f"it raised {one_line(error)}", False)
    yield from worst.values()


def _on(device: str, op: str) -> Iterator[Result]:
    """Yield how far truth and bound of a device are from NumPy's, under each contract that has a name."""
    why = "what a verdict on the device may differ by from one in NumPy"
    for name in (f"{op}_fwd", f"{op}_bwd"):
        for contract in NAMES if name in OPS else ():
            off = agreement.disagreement(name, device, declared(Contract(), contract, OPS[name]))
            point = (op, f"truth and bound of {name}", f"contract {contract}", "device")
            yield Result(*point, off, agreement.ALLOWED, "of the allowed error", why, off <= agreement.ALLOWED)


def _badness(result: Result) -> tuple[bool, float]:
    return not result.ok, result.error / result.allowed if result.allowed else result.error


def _results(problem: Problem, references: References, seed: int) -> Iterator[Result]:
    """Yield what every method finds at one point; a reference that raises there is a result too."""
    op, family = problem.op, problem.family
    try:
        yield from _fifty_digits(problem, references)
        for probe in probes.of(problem, references, np.random.default_rng([seed, problem.dy.size])):
            for method, function in methods.METHODS.items():
                error, allowed, ok = function(probe)
                yield Result(
                    op, probe.quantity, family, method, error, allowed, "of the terms' size", methods.WHY[method], ok
                )
    except Exception as error:
        yield Result(op, "every quantity", family, "call", math.inf, 0.0, "", f"it raised {one_line(error)}", False)


def _fifty_digits(problem: Problem, references: References) -> Iterator[Result]:
    truth, sizes = exact.evaluate(problem), Sizes(problem)
    values = dict(zip(probes.statistics(problem), references.forward(**problem.args, **problem.options), strict=True))
    claims: dict[str, tuple[str, Mapping[str, Any], dict[str, Array]]] = {
        "values": ("", values, sizes.values()),
        "gradients": ("", references.gradients(problem, problem.dy), sizes.gradients()),
        "jvp": ("jvp ", references.directional(problem), sizes.jvp()),
        "second": ("double backward ", references.second(problem), sizes.second()),
    }
    for kind, (prefix, claimed, size) in claims.items():
        most = SECOND_ULPS if kind == "second" else ULPS
        for name, value in claimed.items():
            if problem.args.get(name.removeprefix("d"), problem.dy) is None:
                continue  # the gradient of None; the reference's own tests check that it is None
            got, want = probes.flat(value, size[name].size), truth[kind][name]
            off = np.array([float(abs(mpmath.mpf(a) - b)) for a, b in zip(got.tolist(), want, strict=True)])
            off[~np.isfinite(got)] = math.inf
            ulps, relative = off / (EPSILON * size[name]), off / np.spacing(np.abs(want.astype(np.float64)))
            error = float(ulps.max()) if np.isfinite(ulps).all() else math.inf
            of_value = float(relative[want != 0].max(initial=0.0))
            point = (problem.op, prefix + name, problem.family)
            why = f"{most:g} at every offset: a few roundings of each term, none of them of the offset"
            yield Result(*point, "50 digits", error, most, "ulp (2⁻⁵²) of the largest term", why, error <= most)
            why = "not judged: a value may cancel to nothing"
            yield Result(*point, "50 digits, of the value", of_value, None, "ulp of the value", why, True)


def _published(op: str, references: References, seed: int) -> Iterator[Result]:
    """Yield a published gradient check as it is: (2, 3, 4), weights of 1, biases of 0, float32, h = 1e-5."""
    rng = np.random.default_rng(seed)
    x, dy = (rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2))
    count, options = (3, {"num_groups": 1}) if op == "groupnorm" else (4, {})
    args: dict[str, Any] = {"x": x, "weight": np.ones(count, np.float32)}
    if op != "rmsnorm":
        args["bias"] = np.zeros(count, np.float32)
    gradients = references.backward(dy=dy, **args, eps=1e-5, **options)
    for name, gradient in zip(args, gradients, strict=True):

        def loss(value: Any, name: str = name) -> Any:
            return (references.forward(**(args | {name: value}), eps=1e-5, **options)[0] * dy).sum()

        error = methods.as_published(loss, args[name], gradient) if gradient is not None else math.inf
        why = f"not judged: float32, h = 1e-5; published as {PROMISED[f'd{name}']:g}, and as proof if below 1e-4"
        point = (op, f"d{name}", "(2, 3, 4) in float32", "as published")
        yield Result(*point, error, None, "|a − n|/(|a| + |n|)", why, True)
