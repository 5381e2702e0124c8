"""The pytest plugin: one test for each kernel and check.

    @verify_norm.parametrize_checks("mypkg.norms:layernorm_bwd", expected_failures={"determinism": "atomic dweight"})
    def test_norm(kernel, check):
        check(kernel)

A kernel is searched once, at the set-up of its first test, with all the checks that were selected; each test reports
what its own check found. Every run of pytest of our users imports this module, so it loads nothing heavy: a search runs
the command line in another process.

PYTEST_DONT_REWRITE: nothing here is an assertion of a test.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.errors import UsageError
from verify_norm.pytest_plugin.items import NormCheck, chosen, ids, of_item, wanted
from verify_norm.pytest_plugin.marking import MARK

if TYPE_CHECKING:
    from verify_norm.pytest_plugin.searches import Searches

FOLDER = "verify_norm_folder"  # of an xdist worker's input: where all workers keep the answers of their searches


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one group of options. An option that is not given has the default of the command verify-norm."""
    add = parser.getgroup("verify-norm", "normalization kernels (verify-norm)").addoption
    add("--norm-examples", type=int, metavar="N", help="Random cases for each kernel, after the corner table.")
    add("--norm-seconds", type=float, metavar="S", help="Time for the search of one kernel.")
    add("--norm-dtype", metavar="TYPES", help="Types of x, such as fp32,bf16.")
    add("--norm-seed", type=int, metavar="N", help="Seed of the random cases.")
    add("--norm-device", default="auto", metavar="D", help="cpu, cuda or cuda:N. Workers of xdist share the GPUs.")
    add("--norm-workers", type=int, metavar="N", help="Processes that examine the cases of one kernel.")
    add("--norm-contract", metavar="C", help="What the kernels promise, such as llama,inplace=y:x.")
    add("--norm-only", metavar="CLAUSES", help="What the kernels take, such as ndim=2,N%%8=0.")
    add("--norm-baseline", metavar="FILE", help="Fail a kernel that is worse than in these reports (--norm-report).")
    add("--norm-certificate", metavar="FILE", help="Say what these certificates prove (verify-norm prove --json FILE).")
    cheats = "The kernels may cheat: truth and verdict stay out of their processes, which are in a sandbox."
    add("--norm-untrusted", action="store_const", const=True, help=cheats)
    accept = "Do not fail where the search ends before all corner cases; skip a check that then has no data."
    add("--norm-allow-incomplete", action="store_const", const=True, help=accept)
    own = "Fail a kernel inside which a norm operator of torch runs, for example as a fallback."
    add("--norm-require-own", action="store_const", const=True, help=own)
    add("--norm-report", metavar="FILE", help="Write the reports of all kernels to this file, as a list in JSON.")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a mistake in the options before anything is collected."""
    config.addinivalue_line("markers", f"{MARK}(kernels, expected): made by verify_norm.parametrize_checks")
    given, report = chosen(config), config.option.norm_report or ""
    baseline, certificate = config.option.norm_baseline or "", config.option.norm_certificate or ""
    device = config.option.norm_device
    if not given and not report and not baseline and not certificate and device == "auto":
        return
    from verify_norm.core import files
    from verify_norm.search.options import options
    from verify_norm.search.request import known_device

    try:
        options(**given)
        known_device(device)
        files.writable(report)
        if baseline:
            from verify_norm.report import documents

            documents.read(baseline)
        if certificate:
            from verify_norm.proof import saved

            saved.read(certificate)
    except UsageError as error:
        raise pytest.UsageError(f"verify-norm: {error}") from None


_SEARCHES = pytest.StashKey["Searches"]()
_COMMON = pytest.StashKey[str]()  # FOLDER, in the process that xdist's workers belong to


def _searches(config: pytest.Config) -> Searches:
    if _SEARCHES not in config.stash:
        from verify_norm.pytest_plugin.searches import Searches

        config.stash[_SEARCHES] = Searches(config, getattr(config, "workerinput", {}).get(FOLDER))
    return config.stash[_SEARCHES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked function one parameter set for each kernel and check, all of a kernel to one worker of xdist."""
    marks = [mark.args for mark in metafunc.definition.iter_markers(MARK)]
    if not marks:
        return
    config = metafunc.config
    answers, strict = _searches(config).answers, not config.option.runxfail
    named = [pair for kernels, expected in marks for pair in zip(kernels, expected, strict=True)]
    grouped = config.pluginmanager.hasplugin("xdist")
    sets = [
        pytest.param(
            kernel,
            NormCheck(check, answers, expected.get(check), strict),
            id=f"{name}-{check}",
            marks=[pytest.mark.xdist_group(name)] if grouped else [],
        )
        for name, (kernel, expected) in zip(ids([kernel for kernel, _ in named]), named, strict=True)
        for check in CHECK_NAMES
    ]
    metafunc.parametrize(("kernel", "check"), sets)


@pytest.hookimpl(trylast=True)  # after the user's fixtures, which may build the kernel
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Search the kernel, if that is not done; a kernel that cannot be searched is an error of each of its tests."""
    pair = of_item(item)
    if pair is None:
        return
    kernel, check = pair
    answer = _searches(item.config).of(kernel, wanted(kernel, item.session.items))
    if "error" in answer:
        pytest.fail(answer["error"], pytrace=False)
    item.user_properties += [(f"max_ulp.{output}", most) for output, most in answer["max_ulp"].items()]
    item.user_properties += [("replay", command) for command in answer["verdicts"][check.name]["replays"]]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With xdist: tell a worker the folder of all answers."""
    stash = node.config.stash
    if _COMMON not in stash:
        stash[_COMMON] = tempfile.mkdtemp(prefix="verify-norm-tests-")
    node.workerinput[FOLDER] = stash[_COMMON]


def _records(config: pytest.Config) -> list[dict[str, Any]]:
    """Return the answers, kernel by kernel, of this process or of xdist's workers."""
    if folder := config.stash.get(_COMMON, None):
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.json"))]
        return sorted(map(json.loads, texts), key=lambda record: str(record["target"]))
    searches = config.stash.get(_SEARCHES, None)
    return list(searches.answers.values()) if searches else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the reports."""
    config = session.config
    path = config.option.norm_report
    if path is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    from verify_norm.core import files

    reports = [text.rstrip() for record in _records(config) for text in record.get("reports", ())]
    try:
        files.write("[" + ",\n".join(reports) + "]\n", path)
    except UsageError as error:  # the file could be written at the start
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        config.get_terminal_writer().line(f"\nERROR: {error}", red=True)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print a line for each kernel, and what was not checked and compared."""
    records = _records(config)
    if not records:
        return
    from verify_norm.pytest_plugin.verdicts import line

    terminalreporter.section("verify-norm")
    for record in records:
        word, text = line(record)
        colour = {"pass": "green", "skipped": "yellow"}.get(word, "red")
        terminalreporter.write(word, bold=True, **{colour: True})
        terminalreporter.write_line(f" {record['target']}: {text}")
        for note in record.get("notes", ()):
            terminalreporter.write_line(f"  {note}", light=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the answers of the workers."""
    if folder := config.stash.get(_COMMON, None):
        shutil.rmtree(folder, ignore_errors=True)
