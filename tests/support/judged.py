"""Kernels for the tests of policies: made of a function, or a right one with its results bent; and a verdict read."""

from dataclasses import replace

from verify_norm.core.kernel import Kernel
from verify_norm.loading import registry
from verify_norm.validation.policies import Verdict


def made(run, op, **options):
    return Kernel("made", op, run=run, **options)


def bent(name, bend):
    """Return the torch kernel of that name with its results changed by `bend`."""
    kernel = registry.load(name)

    def run(**arguments):
        found = kernel.run(**{k: arguments[k] for k in names})
        return bend(found if isinstance(found, tuple) else (found,))

    names = kernel.run.__annotations__.keys() - {"return"}
    return replace(kernel, run=run)


def larger(outputs):
    return (outputs[0] * 1.5, *outputs[1:])


def not_applicable(verdict: Verdict) -> str:
    assert verdict.caught is None
    assert verdict.cases == 0 or "CPU" in verdict.detail
    assert verdict.detail.startswith("not applicable: ")
    return verdict.detail
