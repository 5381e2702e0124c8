"""What the plugin's tests get as `kernel` and `check`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

# options of verify_norm.search.options.Options, by pytest's names for them
SAME = ("examples", "seconds", "seed", "contract", "only", "workers", "untrusted", "require_own", "allow_incomplete")
OPTIONS = {name: f"norm_{name}" for name in SAME} | {"dtypes": "norm_dtype"}


def chosen(config: pytest.Config) -> dict[str, Any]:
    """Return the options of pytest's command line."""
    found = {name: getattr(config.option, theirs, None) for name, theirs in OPTIONS.items()}
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class NormKernel:
    """What a test gets as `kernel`: where to find it, and its operator, arguments, … if they are given."""

    target: str
    op: str | None = None
    bind: str = ""
    contract: str = ""
    only: str = ""


@dataclass(frozen=True, slots=True)
class NormCheck:
    """What a test gets as `check`. Called with the kernel, it fails, skips or returns, as the search found.

    `verdicts` holds the answer of the search for each kernel. `expected` is the reason of an expected failure.
    """

    name: str
    verdicts: Mapping[NormKernel, Mapping[str, Any]] = field(repr=False, hash=False)
    expected: str | None = None
    strict: bool = True  # an expected failure that passes fails

    def __call__(self, kernel: NormKernel) -> None:
        """Fail, skip or return."""
        __tracebackhide__ = True
        if not isinstance(kernel, NormKernel):
            raise TypeError(f"check: expected the kernel that the test was given, got {kernel!r:.60}")
        answer = self.verdicts[kernel]
        verdict = answer["verdicts"][self.name]
        if answer["others"]:
            pytest.fail(answer["others"], pytrace=False)
        if self.name == answer.get("bearer"):
            pytest.fail(answer["worse"], pytrace=False)
        if verdict["outcome"] == "failed":
            if self.expected is not None:
                pytest.xfail(self.expected)  # does nothing with --runxfail
            pytest.fail(verdict["reason"], pytrace=False)
        if verdict["outcome"] == "unchecked":
            pytest.fail(verdict["reason"], pytrace=False)
        if verdict["outcome"] == "skipped":
            pytest.skip(verdict["reason"])
        if self.expected is not None and self.strict:
            pytest.fail(f"expected to fail ({self.expected}) but passes: {verdict['reason']}", pytrace=False)


def of_item(item: pytest.Item) -> tuple[NormKernel, NormCheck] | None:
    """Return the kernel and the check of a test; None if it is not one of ours."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    kernel, check = params.get("kernel"), params.get("check")
    return (kernel, check) if isinstance(kernel, NormKernel) and isinstance(check, NormCheck) else None


def wanted(kernel: NormKernel, items: Iterable[pytest.Item]) -> dict[str, str | None]:
    """Return the checks that tests want of a kernel, each with the reason of an expected failure."""
    pairs = [pair for item in items if (pair := of_item(item)) is not None]
    return {check.name: check.expected for other, check in pairs if other == kernel}


def ids(kernels: list[NormKernel]) -> Iterable[str]:
    """Yield short ids that differ: the attribute's name, else the target, else that with operator and contract."""
    short = [kernel.target.rpartition(":")[2] for kernel in kernels]
    for name, kernel in zip(short, kernels, strict=True):
        if Counter(short)[name] == 1:
            yield name
        elif [other.target for other in kernels].count(kernel.target) == 1:
            yield kernel.target
        else:
            yield f"{kernel.target}({','.join(filter(None, (kernel.op, kernel.bind, kernel.contract, kernel.only)))})"
