"""The decorator that makes a test of `kernel` and `check` into one test for each kernel and check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.errors import LIST, UsageError, one_of
from verify_norm.pytest_plugin.items import NormKernel

if TYPE_CHECKING:
    from verify_norm.core.contract import Contract
    from verify_norm.core.user_operators import Operator

MARK = "verify_norm"


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
