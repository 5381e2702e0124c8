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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.errors import LIST, UsageError, one_of
from verify_norm.pytest_plugin.items import NormCheck, NormKernel, chosen, ids, of_item, wanted

if TYPE_CHECKING:
    from verify_norm.core.spec import Contract
    from verify_norm.core.user_operators import Operator
    from verify_norm.pytest_plugin.searches import Searches

MARK = "verify_norm"

FOLDER = "verify_norm_folder"  # of an xdist worker's input: where all workers keep the answers of their searches


def parametrize_checks(
    *targets: str | Callable[..., Any],
    op: str | Operator | Mapping[Any, str] | None = None,
    bind: str | Mapping[Any, str] = "",
    contract: Contract | str | Mapping[Any, Contract | str] = "",
    only: str | Mapping[Any, str] = "",
    expected_failures: Mapping[Any, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of `kernel` and `check` into one test for each kernel and check, with ids as layernorm_bwd-accuracy.

    Each option may be a mapping by target, for those that differ: {"mypkg:a": "llama"}; of expected_failures
    {"mypkg:a": {"determinism": "atomics"}}.

    Parameters
    ----------
    targets : kernels, as the command's --kernel names them: "layernorm_bwd" (ours, or a package's that registers it),
        "package.module:attr" or "path/file.py:attr", the path from pytest's rootdir. The first test imports them. Or
        callables at the top level of a module, and functools.partial of them with numbers, texts or flags.
    op : the operator, as the command's --op, if the name does not tell it: "rmsnorm_fwd"; of a module "rmsnorm"; or
        your own (`verify_norm.operator`).
    bind : the arguments whose names do not tell what they are, as the command's --bind: "x=inp, eps=1e-6".
    contract : what the kernels promise, a Contract or as the command's --contract: "llama,inplace=y:x". It wins over
        --norm-contract.
    only : what the kernels take, as the command's --only: "ndim=2,N%8=0".
    expected_failures : the reason of an expected failure, by the check's name. If the check passes, its test fails.

    Raises
    ------
    ValueError : there is no target, a mapping has another one, a check is unknown, or an option is wrong.

    Examples
    --------
    >>> @parametrize_checks("layernorm_bwd_locked", expected_failures={"batch_invariance": "rows share a buffer"})
    ... def test_norm(kernel, check):
    ...     check(kernel)
    """
    if len(targets) == 1 and {"kernel", "check"} <= set(
        getattr(getattr(targets[0], "__code__", None), "co_varnames", ())
    ):
        raise ValueError(
            "parametrize_checks: expected kernels, such as @verify_norm.parametrize_checks('package.module:attr')"
        )
    if not targets or not all(target and (isinstance(target, str) or callable(target)) for target in targets):
        got = ", ".join(map(repr, targets)) or "none"
        raise ValueError(
            f"parametrize_checks: expected functions, or names such as 'package.module:attr', got {got:.80}"
        )
    given = {"op": op, "bind": bind, "contract": contract, "only": only}
    for name, value in given.items():
        _refuse_others(name, value, targets)
    own = [{name: _each(value, target) for name, value in given.items()} for target in targets]
    kernels = tuple(_kernel(target, **how) for target, how in zip(targets, own, strict=True))
    expected = tuple(_expected(expected_failures or {}, target, targets) for target in targets)
    return getattr(pytest.mark, MARK)(kernels, expected)  # type: ignore[no-any-return]


def _refuse_others(name: str, value: Any, targets: tuple[Any, ...]) -> None:
    others = [key for key in value if key not in targets] if isinstance(value, Mapping) else []
    if others:
        raise ValueError(f"parametrize_checks: {name} has {others[0]!r:.80}, which is none of its kernels")


def _each(value: Any, target: Any) -> Any:
    """Return an option of one target: that of a mapping, else the same for all."""
    return value.get(target) if isinstance(value, Mapping) else value


def _expected(reasons: Any, target: Any, targets: tuple[Any, ...]) -> dict[str, str]:
    """Return the expected failures of one target: those for all, and its own."""
    if not isinstance(reasons, Mapping):
        form = '{"accuracy": "why it fails"}'
        raise ValueError(f"parametrize_checks: expected_failures: expected as {form}, got {reasons!r:.80}")
    found = {key: why for key, why in reasons.items() if not isinstance(why, Mapping)}
    _refuse_others("expected_failures", {key: why for key, why in reasons.items() if isinstance(why, Mapping)}, targets)
    found |= next((why for key, why in reasons.items() if key == target and isinstance(why, Mapping)), {})
    try:
        for name in found:
            one_of("check", str(name), CHECK_NAMES, see=LIST)
    except UsageError as error:
        raise ValueError(f"parametrize_checks: {error}") from None
    return found


def _kernel(target: Any, *, op: str | Operator | None, bind: str | None, contract: Any, only: str | None) -> NormKernel:
    constants, op = "", op if op is None or isinstance(op, str) else op.name
    if not isinstance(target, str):
        from verify_norm.loading.targets import called, located

        value, (target, constants) = target, located(target)
        if not target:
            where = "at the top level of a module, and bind numbers, texts and flags alone"
            raise ValueError(f"parametrize_checks: another process cannot find {called(value)}: define it {where}")
    text = ", ".join(filter(None, (constants, bind)))
    if contract or only:
        from verify_norm.search.options import options

        try:
            checked = options(contract=contract, only=only)
        except UsageError as error:
            raise ValueError(f"parametrize_checks: {error}") from None
        return NormKernel(target, op, text, checked.contract, checked.only)
    return NormKernel(target, op, text)


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
