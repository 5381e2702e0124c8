"""The pytest plugin: one test for each kernel and check. PYTEST_DONT_REWRITE.

    @verify_norm.parametrize_checks("mypkg.norms:layernorm_bwd", expected_failures={"determinism": "atomic dweight"})
    def test_norm(kernel, check):
        check(kernel)

A kernel is searched once, at the set-up of its first test, with all the checks that were selected; each test tells
what its own check found. Every run of pytest of our users imports this module, and nothing heavy comes with it: the
searches run in `verify_norm.pytest_search`, in another process.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from verify_norm.pytest_searches import Searches

MARK = "verify_norm"
# The names of verify_norm.checks.CHECKS: importing them would import torch.
CHECK_NAMES = (
    "crash", "signature", "accuracy", "statistics", "distribution", "nonfinite", "memory", "determinism", "gradient",
    "identities", "degenerate", "batch_invariance",
)  # fmt: skip
FOLDER = "verify_norm_folder"  # of an xdist worker's input: where all workers keep what their searches found


@dataclass(frozen=True, slots=True)
class NormKernel:
    """What a test gets as `kernel`: where to find it, and its operator and its arguments' names if they were told."""

    target: str
    op: str | None = None
    bind: str = ""


@dataclass(frozen=True, slots=True)
class NormCheck:
    """What a test gets as `check`: called with the kernel, it fails, skips or returns as the search has told."""

    name: str
    searches: Searches = field(repr=False)
    expected: str | None = None  # why it is to fail

    def __call__(self, kernel: NormKernel) -> None:
        """Tell what the check found."""
        __tracebackhide__ = True
        if not isinstance(kernel, NormKernel):
            raise TypeError(f"check takes the kernel that its test was given, not a {type(kernel).__name__}")
        answer = self.searches.answers[kernel]
        verdict, strict = answer["verdicts"][self.name], not self.searches.config.option.runxfail
        if answer["others"]:
            pytest.fail(answer["others"], pytrace=False)
        if verdict["outcome"] == "failed":
            if self.expected is not None:
                pytest.xfail(self.expected)  # with --runxfail it does nothing
            pytest.fail(verdict["said"], pytrace=False)
        if verdict["outcome"] == "skipped":
            pytest.skip(verdict["said"])
        if self.expected is not None and strict:
            pytest.fail(f"expected to fail ({self.expected}) but passes: {verdict['said']}", pytrace=False)


def parametrize_checks(
    *targets: str, op: str | None = None, bind: str = "", expected_failures: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of `kernel` and `check` into one test for each kernel and check, with ids as layernorm_bwd-accuracy.

    Parameters
    ----------
    targets
        kernels, as the command's --kernel names them: "layernorm_bwd" (ours, or a package's that registers it),
        "package.module:attr" or "path/file.py:attr", the path from pytest's rootdir. They are not imported before the
        first test runs.
    op
        the operator, as the command's --op, where the attribute's name does not say it.
    bind
        the arguments, as the command's --bind, where their names do not say them.
    expected_failures
        why a check is to fail, by its name. If it passes, the test fails and says so.

    Raises
    ------
    ValueError
        If there is no target, or a check of that name does not exist.

    Examples
    --------
    >>> @parametrize_checks("layernorm_bwd_locked", expected_failures={"batch_invariance": "rows share a buffer"})
    ... def test_norm(kernel, check):
    ...     check(kernel)
    """
    if not targets or not all(isinstance(target, str) and target for target in targets):
        raise ValueError(f"parametrize_checks takes kernels' names, as 'package.module:attr', not {targets}")
    expected = dict(expected_failures or {})
    if unknown := [name for name in expected if name not in CHECK_NAMES]:
        raise ValueError(f"there is no check {', '.join(unknown)}; there are: {', '.join(CHECK_NAMES)}")
    return getattr(pytest.mark, MARK)(targets, op, bind, expected)  # type: ignore[no-any-return]


def pytest_addoption(parser: pytest.Parser) -> None:
    """One group of options. Where one is not given, it is as the command verify-norm has it."""
    group = parser.getgroup("verify-norm", "normalization kernels (verify-norm)")
    add = group.addoption
    add("--norm-examples", type=_number(int), metavar="N", help="Random cases a kernel, after the corner table.")
    add("--norm-seconds", type=_number(float), metavar="S", help="Time for the search of one kernel.")
    add("--norm-dtype", metavar="TYPES", help="Types of x, as fp32,bf16.")
    add("--norm-seed", type=_number(int), metavar="N", help="Of the random cases.")
    add("--norm-device", default="auto", metavar="D", help="cpu, cuda or cuda:N; workers of xdist share out the GPUs.")
    add("--norm-report", metavar="FILE", help="Write the reports of all kernels there, as a list in JSON.")


def _number(kind: type) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        value = kind(text)
        if not value >= 0:
            raise argparse.ArgumentTypeError(f"{text} is negative")
        return value

    convert.__name__ = kind.__name__  # argparse names it in its own message
    return convert


def pytest_configure(config: pytest.Config) -> None:
    """Find a mistake in the options before anything is collected."""
    config.addinivalue_line("markers", f"{MARK}(targets, op, bind, expected): made by verify_norm.parametrize_checks")
    dtype, report = config.option.norm_dtype, config.option.norm_report
    if dtype is None and report is None:
        return
    from verify_norm import session
    from verify_norm.registry import UsageError

    try:
        if dtype is not None:
            session.dtypes(dtype)
        session.writable(report or "")
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


_SEARCHES = pytest.StashKey["Searches"]()
_COMMON = pytest.StashKey[str]()  # FOLDER, in the process that xdist's workers belong to


def _searches(config: pytest.Config) -> Searches:
    if _SEARCHES not in config.stash:
        from verify_norm.pytest_searches import Searches

        config.stash[_SEARCHES] = Searches(config, getattr(config, "workerinput", {}).get(FOLDER))
    return config.stash[_SEARCHES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked function one parameter set for each kernel and check, those of a kernel to one worker of xdist."""
    marks = [mark.args for mark in metafunc.definition.iter_markers(MARK)]
    if not marks:
        return
    searches = _searches(metafunc.config)
    named = [(NormKernel(target, op, bind), expected) for targets, op, bind, expected in marks for target in targets]
    grouped = metafunc.config.pluginmanager.hasplugin("xdist")
    sets = [
        pytest.param(
            kernel,
            NormCheck(check, searches, expected.get(check)),
            id=f"{name}-{check}",
            marks=[pytest.mark.xdist_group(name)] if grouped else [],
        )
        for name, (kernel, expected) in zip(_ids([kernel for kernel, _ in named]), named, strict=True)
        for check in CHECK_NAMES
    ]
    metafunc.parametrize(("kernel", "check"), sets)


def _ids(kernels: list[NormKernel]) -> Iterable[str]:
    """The attribute's name if it is the only one, else the whole target, else that and the operator."""
    short = [kernel.target.rpartition(":")[2] for kernel in kernels]
    for name, kernel in zip(short, kernels, strict=True):
        if Counter(short)[name] == 1:
            yield name
        elif [other.target for other in kernels].count(kernel.target) == 1:
            yield kernel.target
        else:
            yield f"{kernel.target}({kernel.op})"


def _given(item: pytest.Item) -> tuple[NormKernel, NormCheck] | None:
    """The kernel and the check of a test that is one of ours."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    kernel, check = params.get("kernel"), params.get("check")
    return (kernel, check) if isinstance(kernel, NormKernel) and isinstance(check, NormCheck) else None


@pytest.hookimpl(trylast=True)  # after the user's fixtures, which may build the kernel
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Search the kernel, if that was not done; a kernel that cannot be had is an error of each of its tests."""
    given = _given(item)
    if given is None:
        return
    kernel, check = given
    answer = check.searches.of(kernel, item.session.items)
    if "error" in answer:
        pytest.fail(answer["error"], pytrace=False)
    item.user_properties += [(f"max_ulp.{output}", most) for output, most in answer["max_ulp"].items()]
    item.user_properties += [("replay", command) for command in answer["verdicts"][check.name]["replays"]]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With xdist: tell a worker where all of them keep what they found."""
    stash = node.config.stash
    if _COMMON not in stash:
        stash[_COMMON] = tempfile.mkdtemp(prefix="verify-norm-tests-")
    node.workerinput[FOLDER] = stash[_COMMON]


def _records(config: pytest.Config) -> list[dict[str, Any]]:
    """What was found, kernel by kernel, by this process or by the workers of xdist."""
    import json

    if folder := config.stash.get(_COMMON, None):
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.json"))]
        return sorted(map(json.loads, texts), key=lambda record: str(record["target"]))
    searches = config.stash.get(_SEARCHES, None)
    return list(searches.answers.values()) if searches else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the process that searched, and write the reports."""
    config = session.config
    if searches := config.stash.get(_SEARCHES, None):
        searches.close()
    path = config.option.norm_report
    if path is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    from verify_norm.registry import UsageError
    from verify_norm.report import json as json_form

    reports = [text.rstrip() for record in _records(config) for text in record.get("reports", ())]
    try:
        json_form.write("[" + ",\n".join(reports) + "]\n", path)
    except UsageError as error:  # there was a place for it at the start
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        config.get_terminal_writer().line(f"\nERROR: {error}", red=True)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A line a kernel, and what was not checked."""
    records = _records(config)
    if not records:
        return
    terminalreporter.section("verify-norm")
    for record in records:
        word, said = _line(record)
        colour = {"pass": "green", "nothing checked": "yellow"}.get(word, "red")
        terminalreporter.write(word, bold=True, **{colour: True})
        terminalreporter.write_line(f" {record['target']}: {said}")
        for note in record.get("notes", ()):
            terminalreporter.write_line(f"  {note}", light=True)


def _line(record: Mapping[str, Any]) -> tuple[str, str]:
    """The verdict on a kernel, and what it rests on."""
    if "error" in record:
        return "ERROR", record["error"]
    outcomes = {name: verdict["outcome"] for name, verdict in record["verdicts"].items()}
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    known = [name for name in failed if name in record["expected"]]
    wrong = [name for name in failed if name not in known]
    better = [name for name, outcome in outcomes.items() if outcome == "passed" and name in record["expected"]]
    looked = [name for name, outcome in outcomes.items() if outcome != "skipped"]
    parts = [", ".join(wrong)] if wrong else []
    parts += ["a check that was not selected found something"] * bool(record["others"])
    parts += [f"{name} failed as expected ({record['expected'][name]})" for name in known]
    parts += [f"{name} was expected to fail and passes" for name in better]
    parts += [f"{len(looked)} check{'s' * (len(looked) != 1)}", record["basis"]]
    bad = wrong or better or record["others"]
    return "FAIL" if bad else "pass" if looked else "nothing checked", "; ".join(parts)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the workers wrote."""
    if folder := config.stash.get(_COMMON, None):
        shutil.rmtree(folder, ignore_errors=True)
