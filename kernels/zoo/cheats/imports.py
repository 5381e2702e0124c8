"""A right kernel whose module registers what libraries register as they are imported."""

import atexit
import contextvars
import gc

from verify_norm.kernels.zoo.eager import rmsnorm

_collections = [0]
_scale = contextvars.ContextVar("scale", default=1.0)


def _count(phase, facts):
    _collections[0] += 1


gc.callbacks.append(_count)
atexit.register(gc.collect)


def registers(x, weight, eps):
    """Its module has a callback of the garbage collector, as JAX has, and a function at exit."""
    return rmsnorm(x, weight, eps * _scale.get())
