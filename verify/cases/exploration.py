"""Explorations: Hypothesis draws specs by a seed, and is steered towards large values of what they show."""

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from verify_norm.core.spec import CaseSpec

MOST = 1e6  # Hypothesis takes finite numbers; a larger one is as good as this


class _WhateverIsImported:
    """Lets a seed draw the same cases, whatever modules are imported, in several threads at the same time.

    Hypothesis also draws the constants that it finds in imported modules of the user. A change of a constant in the
    kernel's module would change all cases, and no run could be compared with an earlier one. Python's and NumPy's own
    generators, which Hypothesis seeds and restores in each thread, are as before when the last thread leaves.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._kept: dict[str, Any] = {}
        self._generators: tuple[Any, Any] = (None, None)

    def __enter__(self) -> None:
        """Let Hypothesis know no constants of modules."""
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._generators = random.getstate(), np.random.get_state()  # noqa: NPY002 — the one that all share
            self._kept = {name: getattr(providers, name, None) for name in ("_get_local_constants", "CONSTANTS_CACHE")}
            if None in self._kept.values():  # an older or newer Hypothesis
                self._kept = {}
                return
            none = type(providers.GLOBAL_CONSTANTS)()
            providers._get_local_constants = lambda: none
            providers.CONSTANTS_CACHE = type(providers.CONSTANTS_CACHE)(1024)  # of the constants allowed in each place

    def __exit__(self, *_: object) -> None:
        """Restore what was there before the first thread."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for name, value in self._kept.items():
                    setattr(providers, name, value)
                random.setstate(self._generators[0])
                np.random.set_state(self._generators[1])  # noqa: NPY002


whatever_is_imported = _WhateverIsImported()


class _EndedError(BaseException):
    """Ends an exploration. Not an Exception: Hypothesis would run the case of such a one again, to reproduce it."""


def explore(
    strategy: st.SearchStrategy[CaseSpec], one: Callable[[CaseSpec], Mapping[str, float]], *, examples: int, seed: int
) -> None:
    """Draw `examples` specs and call `one` with each; it returns the values to maximize, by label.

    The same strategy, seed and returned values draw the same specs. What `one` raises ends it.
    """

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def attempt(spec: CaseSpec) -> None:
        try:
            shown = one(spec)
        except Exception as error:
            raise _EndedError(error) from error
        for label, value in shown.items():
            hypothesis.target(min(value, MOST), label=label)

    try:
        with whatever_is_imported:
            attempt()
    except _EndedError as ended:
        raise ended.args[0] from None
