"""A pytest plugin of benchmarks/mutation.py: which tests try the mistakes in a module, each in modules as if new.

mutmut notes which functions a test calls, and tries a mistake in a function with the tests that call it. Most tests
call most of this tool: here only those count that mirror the module, or that `TESTS` names for it. What a test module
calls while it is imported, as a table of bounds, counts for each of its tests.

mutmut tries a mistake in a fork of a process that has run all tests. What that process computed once, in a test module
or in a cache, would hide the mistake. So what stands in tests/ is imported again, and caches are empty; for a function
that verify_norm calls while it is imported, as one that makes a table, verify_norm is imported again too. What patches
Triton's interpreter, once in a process, gets one again that is not patched.

A fork has none of the threads of OpenMP that a test made torch start, and would wait for them forever: they end before
a fork, and start again where they are needed.

What a fork of the test's process calls counts too; a process that is started anew knows of no mistake. So does what a
test has no need to call, because an earlier one has filled a cache: caches of a test's modules are empty before it.
"""

import ctypes
import importlib
import os
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import torch
from _pytest.config import ConftestImportFailure
from mutmut.state import state

# The tests of a module, by the longest beginning of its name that stands here, else MIRROR: files, folders or tests of
# tests/. {folder} and {name} are its own: verify/checks/relations/moments.py has checks/relations and moments.
EXAMPLES = "test_examples.py::test_examples_in_docstrings[{module}]"
MIRROR = ("{folder}/test_{name}.py", EXAMPLES)
PINNED = tuple(f"checks/test_tolerances{of}.py" for of in ("", "_of_laws", "_of_sums"))  # from both sides
LIKENESS = ("running/interpreter/test_likeness.py",)  # slow only in all its cases: each takes milliseconds
TESTS = dict.fromkeys(("core", "cases", "reference"), ("{package}", EXAMPLES)) | {
    "checks": (*MIRROR, *PINNED, "checks/test_numbers_of_findings.py"),
    **{f"checks.relations.{name}": (*MIRROR, "checks/test_calls.py") for name in ("between", "held")},
    "checks.relations.cotangents": (*MIRROR, "checks/test_autograd.py"),
    "checks.relations.forward_mode": (*MIRROR, "checks/test_autograd.py"),
    "checks.relations.graphs": ("checks/test_autograd.py",),
    "checks.relations.leaks": (*MIRROR, "checks/test_effects.py"),
    "checks.relations.moments": (*MIRROR, *PINNED, "checks/test_distribution.py"),
    "checks.relations.operators": (*MIRROR, "checks/test_effects.py"),
    "checks.relations.mode_table": (*MIRROR, "checks/test_modes.py"),
    "checks.relations.rerun": (*MIRROR, *PINNED, "checks/test_determinism.py"),
    "checks.relations.two_runs": ("checks/relations/test_rerun.py", EXAMPLES, *PINNED, "checks/test_determinism.py"),
    "checks.relations.second_order": (*MIRROR, "checks/test_autograd.py"),
    "checks.relations.stages": (
        *(*MIRROR, *PINNED),
        *("checks/test_chains.py", "checks/test_identities.py", "checks/test_modules_in_turn.py"),
    ),
    "checks.relations.symmetries": (*MIRROR, *PINNED, "checks/test_identities.py"),
    "checks.relations.wrapping": (*MIRROR, "checks/test_modes.py"),
    "loading.argument_names": (*MIRROR, "loading/test_bind.py"),
    "loading.bind_option": (*MIRROR, "loading/test_bind.py"),
    **dict.fromkeys(("loading.module_calls", "loading.module_domain"), ("loading/test_modules.py", EXAMPLES)),
    "loading.signatures": ("loading/test_adapt.py",),
    "reference.chain": (*MIRROR, "reference/stages"),
    "reference.stages": ("reference/stages", "reference/test_chain.py", EXAMPLES),
    "reference.probable": ("reference", "checks/test_tolerances_of_sums.py", EXAMPLES),
    "core.chains": (*MIRROR, "reference/test_chain.py"),
    "running.argument_writes": (*MIRROR, "checks/test_memory.py"),
    "running.calling": ("running/test_execute.py", EXAMPLES),
    "running.captures": (*MIRROR, "test_without_a_gpu.py"),
    "running.delayed_inputs": (*MIRROR, "test_without_a_gpu.py"),
    "running.guards": (*MIRROR, "checks/test_memory.py"),
    "running.interpreter": (*MIRROR, *LIKENESS),
    "running.interpreter.arithmetic": (*MIRROR, *LIKENESS, "running/interpreter/test_differs_on_gpu.py"),
    "running.interpreter.patch": (*MIRROR, *LIKENESS, "running/interpreter/test_reductions.py"),
    "running.isolate": ("running/test_places.py",),  # the others take seconds
    "running.untrusted.processes": (*MIRROR, "running/untrusted/test_starting.py"),
    "running.untrusted.runner": (*MIRROR, "running/untrusted/test_lost.py"),
    "running.untrusted.sandbox": (*MIRROR, "running/untrusted/test_filter.py"),
    "running.untrusted.worker": (*MIRROR, "running/untrusted/test_calls.py"),
    "search.collector": ("search/test_counts.py", EXAMPLES),  # the others are whole runs, of seconds
    "search.reporting": ("search/test_counts.py", EXAMPLES),
    "search.examine": (*MIRROR, "search/test_collector.py", "search/test_search.py"),
    "search.answers": ("search/test_examine.py", "search/test_collector.py", EXAMPLES),
    "search.weaker": ("search/test_diagnosing.py", EXAMPLES),
}
LONG = ("core/test_nearest.py",)  # try only the modules that they mirror
PREFIX = "verify_norm."
PATCHING = f"{PREFIX}running.interpreter."

hypothesis.settings.register_profile(
    "mutation", deadline=None, database=None, phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate)
)  # a failure need not be made small
# What a test module calls while it is imported; "": what the modules of verify_norm call.
while_imported: dict[str, set[str]] = {"": set()}
triton: list[tuple[Any, dict[str, Any]]] = []  # its modules and classes before they are patched, and what they hold
HARD = 2  # omp_pause_hard: the threads end
OPENMP = ctypes.CDLL(None)
if hasattr(OPENMP, "omp_pause_resource_all"):  # torch has loaded it
    os.register_at_fork(before=lambda: OPENMP.omp_pause_resource_all(HARD))


class Calls(set[str]):
    """The functions that a test has called, in this process or in a fork of it, which may end at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = os.getpid()
        self._file, path = tempfile.mkstemp()
        os.unlink(path)

    def add(self, function: str) -> None:
        """Note a function; a fork writes it where all of them share the position."""
        if function not in self and os.getpid() != self._owner:
            os.write(self._file, f"{function}\n".encode())
        super().add(function)

    def gather(self) -> None:
        """Take over what forks have called since the last time."""
        size = os.lseek(self._file, 0, os.SEEK_CUR)
        self.update(os.pread(self._file, size, 0).decode().split())
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)


@cache
def tests_of(module: str) -> tuple[str, ...]:
    """Return the files, folders and tests of tests/ that try the mistakes in a module, as "checks.sums"."""
    key = max((key for key in TESTS if f"{module}.".startswith(f"{key}.")), key=len, default="")
    folder, _, name = module.rpartition(".")
    names = {"module": module, "folder": folder.replace(".", "/"), "name": name, "package": module.partition(".")[0]}
    return tuple(entry.format(**names) for entry in TESTS.get(key, MIRROR))


def tries(test: str, function: str) -> bool:
    """Return whether a test, as tests/core/test_ulp.py::test_it, is among those of a function's module."""
    module = function.removeprefix(PREFIX).rpartition(".")[0]
    test = test.removeprefix("tests/")
    path = test.partition("::")[0]
    if path in LONG and not path.endswith(f"/test_{module.rpartition('.')[2]}.py"):
        return False
    return any(entry in (test, path) or path.startswith(f"{entry}/") for entry in tests_of(module))


def ours() -> set[str]:
    """Return the modules of verify_norm that are imported."""
    return {name for name in sys.modules if name.startswith(PREFIX)}


def keep_triton() -> None:
    """Note what Triton's modules and classes hold: its interpreter's, and all that is imported with it."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in ("", ".runtime.interpreter", ".language.extra.libdevice", ".language.extra.cuda.libdevice"):
        importlib.import_module(f"triton{name}")
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith("triton.")]
    named = [value for module in modules for value in vars(module).values()]
    classes = {value for value in named if isinstance(value, type) and value.__module__.startswith("triton")}
    builder = sys.modules["triton.runtime.interpreter"].interpreter_builder
    triton.extend((owner, dict(vars(owner))) for owner in (*modules, *classes, builder))


def restore_triton() -> None:
    """Let Triton's modules and classes hold what they held before they were patched, and forget rewritten kernels."""
    for owner, kept in triton:
        for name in vars(owner).keys() - kept.keys():
            if not isinstance(vars(owner)[name], ModuleType):  # imported since
                delattr(owner, name)
        for name, value in kept.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
    sys.modules["triton.runtime.interpreter"].InterpretedFunction.rewritten_fn.clear()


def tried() -> str:
    """Return the function of the mistake that this process tries, "" if none."""
    function, _, mistake = os.environ.get("MUTANT_UNDER_TEST", "").partition("__mutmut_")
    return function if mistake else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests():
    hypothesis.settings.load_profile("mutation")
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        state()._stats = Calls()
    prepare(tried())
    try:
        return (yield)
    except ConftestImportFailure as error:
        if tried():
            os._exit(1)  # the mistake is seen; pytest would say that the command is wrong
        raise error.cause from None


def prepare(function: str) -> None:
    """Forget what a mistake in this function may have changed before it was made."""
    if not triton and find_spec("triton") and not torch.cuda.is_available():
        keep_triton()
    elif triton and function.startswith(PATCHING):
        restore_triton()
    anew, tests = function in while_imported[""] and not function.startswith(PATCHING), os.path.abspath("tests")
    if anew:  # from here: tests/conftest.py has taken this folder out
        sys.path.insert(0, os.path.dirname(tests))
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(tests) or (anew and f"{name}.".startswith(PREFIX)):
            del sys.modules[name]
        elif name.startswith(PREFIX):
            forget(module)


def forget(module: ModuleType) -> None:
    """Empty the caches of a module's functions."""
    for value in list(vars(module).values()):
        getattr(value, "cache_clear", bool)()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.partition("::")[0].endswith(LIKENESS):
            item.own_markers = [marker for marker in item.own_markers if marker.name != "slow"]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    called = state()._stats
    if not isinstance(collector, pytest.Module):  # conftest.py has imported verify_norm
        while_imported[""] |= called
    called.clear()
    known = ours()
    result = yield
    if result.failed and tried():
        os._exit(1)  # a test module that cannot be imported sees it; pytest would say that its tests are missing
    if isinstance(collector, pytest.Module):
        while_imported[collector.nodeid] = set(called)
        if ours() != known:  # it is the first to import some module of verify_norm
            while_imported[""] |= called
        called.clear()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        for name in ours():
            if tries(item.nodeid, f"{name}.function"):
                forget(sys.modules[name])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    if os.environ.get("MUTANT_UNDER_TEST") != "stats":
        return
    state()._stats.gather()
    called = state()._stats | while_imported[item.nodeid.partition("::")[0]] | while_imported[""]
    state()._stats.clear()
    state()._stats.update(function for function in called if tries(item.nodeid, function))
