"""A kernel under test, as a record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verify_norm.core.contract import Contract
from verify_norm.core.spec import CaseSpec


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel under test: a callable on torch tensors whose arguments are bound by name.

    `target` says where to find it ("package.module:attr" or "path/file.py:attr"); loading sets `run`.
    `unsupported(spec)` returns why the kernel does not take a case, None if it does; `fit(spec)` returns the nearest
    case that it takes. `forward` names the forward kernel of a backward; loading sets `forward_run`. `bind` says how
    the arguments are bound (`verify_norm.loading.bind`). An `autograd` kernel is a backward that torch makes of a
    forward pass: it also takes `frozen`. `origin` is the package that registered the kernel.
    Arguments `unset` are None in every case, since the operator does not have them; those `kept` have the value of
    their default or of functools.partial. `only` says which cases it takes (`verify_norm.core.only`).
    An untrusted kernel runs in another process: `later` returns the tensors that a call has returned as they are there
    now, and checks that look into the kernel's process pass over it.
    """

    name: str
    op: str
    target: str = ""
    backend: Literal["triton", "torch", "cuda", "python"] = "python"
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    contract: Contract = field(default_factory=Contract)
    summary: str = ""
    unsupported: Callable[[CaseSpec], str | None] | None = None
    forward: str | None = None
    bind: str = ""
    autograd: bool = False
    origin: str = ""
    unset: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    only: str = ""
    fit: Callable[[CaseSpec], CaseSpec] | None = field(default=None, repr=False)
    run: Callable[..., Any] | None = None
    forward_run: Callable[..., Any] | None = None
    later: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(default=None, repr=False)

    @property
    def remote(self) -> bool:
        """Whether the kernel runs in another process, which this one does not look into (--untrusted)."""
        return self.later is not None

    def fitted(self, spec: CaseSpec) -> CaseSpec:
        """Return the nearest case that the kernel takes, as far as it says."""
        return spec if self.fit is None else self.fit(spec)

    def refuses(self, spec: CaseSpec) -> str | None:
        """Return why the kernel does not take this case; None if it does."""
        return None if self.unsupported is None else self.unsupported(spec)
