"""Explorations: Hypothesis draws specs by a seed, and is steered towards those whose measured values are large."""

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from verify_norm.core.spec import CaseSpec

MOST = 1e6  # Hypothesis takes finite values only: larger ones, and inf, are cut to this


class _WhateverIsImported:
    """A context in which a seed draws the same cases, whatever modules are imported; several threads may be in it.

    Hypothesis also draws the constants that it finds in imported modules of the user. A change of a constant in the
    kernel's module would change all cases, and no run could be compared with an earlier one. Hypothesis seeds and
    restores the global generators of Python and NumPy in each thread; when the last thread leaves, they are as before.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._originals: dict[str, Any] = {}
        self._generators: tuple[Any, Any] = (None, None)

    def __enter__(self) -> None:
        """Let Hypothesis know no constants of modules."""
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._generators = random.getstate(), np.random.get_state()  # noqa: NPY002 — the one that all share
            self._originals = {
                name: getattr(providers, name, None) for name in ("_get_local_constants", "CONSTANTS_CACHE")
            }
            if None in self._originals.values():  # an older or newer Hypothesis
                self._originals = {}
                return
            none = type(providers.GLOBAL_CONSTANTS)()
            providers._get_local_constants = lambda: none
            providers.CONSTANTS_CACHE = type(providers.CONSTANTS_CACHE)(1024)  # of the constants allowed in each place

    def __exit__(self, *_: object) -> None:
        """Restore what was there before the first thread."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for name, value in self._originals.items():
                    setattr(providers, name, value)
                random.setstate(self._generators[0])
                np.random.set_state(self._generators[1])  # noqa: NPY002


whatever_is_imported = _WhateverIsImported()


class _EndedError(BaseException):
    """Ends an exploration. Not an Exception: Hypothesis would run the case of an Exception again, to reproduce it."""


def explore(
    strategy: st.SearchStrategy[CaseSpec],
    measure: Callable[[CaseSpec], Mapping[str, float]],
    *,
    examples: int,
    seed: int,
) -> None:
    """Draw `examples` specs and call `measure` with each; it returns the values to maximize, by label.

    The same strategy, seed and returned values draw the same specs. An exception of `measure` ends the exploration, and
    is raised.
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
            values = measure(spec)
        except Exception as error:
            raise _EndedError(error) from error
        for label, value in values.items():
            hypothesis.target(min(value, MOST), label=label)

    try:
        with whatever_is_imported:
            attempt()
    except _EndedError as ended:
        raise ended.args[0] from None
