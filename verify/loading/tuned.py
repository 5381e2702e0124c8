"""The configurations of kernels under @triton.autotune: a kernel's name with one of them after "@" runs with it alone.

A tuner that chooses another configuration on another day, or another GPU, ships another kernel. So `configured` names a
kernel once for each: "ops.py:norm@_norm(BLOCK=512,num_warps=8)".
"""

import copy
import dis
import functools
import re
import sys
from collections import Counter, deque
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from verify_norm.core.errors import UsageError, one_of

SIGN = "@"
FOREIGN = {
    *sys.stdlib_module_names,
    "torch",
    "triton",
    "numpy",
    "hypothesis",
    "pydantic",
}  # where no tuner of a kernel is
MOST = 20_000  # objects that are looked at


def parted(name: str) -> tuple[str, str]:
    """Return the name of a kernel or its target without the configuration, and the configuration.

    >>> parted("a@b/ops.py:norm@_norm(BLOCK=8)"), parted("layernorm_fwd")
    (('a@b/ops.py:norm', '_norm(BLOCK=8)'), ('layernorm_fwd', ''))
    """
    where, colon, attribute = name.rpartition(":")
    attribute, _, configuration = attribute.partition(SIGN)
    return f"{where}{colon}{attribute}", configuration


def configurations(target: Any) -> dict[str, tuple[Any, Any]]:
    """Return each configuration of each tuner that the target can reach, by its name, as the tuner and its Config.

    A tuner with one configuration has no choice, and is left out.
    """
    found: dict[str, tuple[Any, Any]] = {}
    called = Counter[str]()
    for tuner in tuners(target):
        every = vars(tuner).get("every", tuner.configs)
        function = tuner.base_fn.__name__
        called[function] += 1
        function += f"#{called[function]}" * (called[function] > 1)
        for text, configuration in zip(_texts(every), every, strict=True) if len(every) > 1 else ():
            found[f"{function}({text})"] = tuner, configuration
    return found


def _texts(configs: list[Any]) -> Iterator[str]:
    """Yield what tells each configuration from the others: its own parameters, and of Triton's those that differ."""
    given = [one.all_kwargs() for one in configs]
    fixed = {name for name in given[0] if all(one.get(name) == given[0][name] for one in given)}
    met = Counter[str]()
    for one, parameters in zip(configs, given, strict=True):
        shown = {name: value for name, value in parameters.items() if name in one.kwargs or name not in fixed}
        text = re.sub(r"[^\w.+=,-]", "_", ",".join(f"{name}={value}" for name, value in shown.items()))
        met[text] += 1
        yield text + f"#{met[text]}" * (met[text] > 1)


def pin(target: Any, configuration: str) -> None:
    """Let a tuner that the target reaches take this configuration alone, in this process; raises UsageError.

    Other tuners are as they were. The kernel refuses a case for which its tuner would never take the configuration:
    because `prune_configs_by` leaves it out, or the GPU has no room for it.
    """
    found = configurations(target)
    if not found:
        raise UsageError(f"{SIGN}{configuration}: the kernel has no tuner with several configurations")
    tuner, chosen = found[one_of("configuration", configuration, found)]
    whole = copy.copy(tuner)
    whole.__dict__.pop("run", None)
    whole.configs = vars(tuner).get("every", tuner.configs)
    tuner.every, tuner.configs = whole.configs, [chosen]
    tuner.run = functools.partial(_run, tuner, whole, chosen)


def _run(tuner: Any, whole: Any, chosen: Any, *args: Any, **options: Any) -> Any:
    """Launch the kernel in the chosen configuration; raises RefusedError where its tuner would not choose it."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    from verify_norm.loading.returned import RefusedError

    asked = copy.copy(whole)  # what prunes may be called in several threads
    asked.nargs = dict(zip(tuner.arg_names, args, strict=False))
    if chosen not in asked.prune_configs(options):
        raise RefusedError(f"its tuner leaves {chosen} out here")
    try:
        return type(tuner).run(tuner, *args, **options)
    except (OutOfResources, CompileTimeAssertionFailure, PTXASError) as error:
        raise RefusedError(f"its tuner does not take {chosen}, for which there is no room: {error}") from error


def tuners(target: Any) -> list[Any]:
    """Return the tuners of Triton that a callable can reach: in what its code names, encloses, holds or imports."""
    if "triton" not in sys.modules:
        return []
    from triton.runtime.autotuner import Autotuner

    found, seen, left = [], dict[int, Any](), deque([target])
    while left and len(seen) < MOST:
        one = left.popleft()
        if id(one) in seen:
            continue
        seen[id(one)] = one  # so that no other object gets its number
        if isinstance(one, Autotuner):
            found.append(one)
        left.extend(_within(one))
    return found


def _within(value: Any) -> Iterator[Any]:
    """Yield what an object leads to."""
    if isinstance(value, FunctionType):
        if not _foreign(value.__module__) or value.__closure__ or vars(value):
            yield from _of_function(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, (classmethod, staticmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, type):
        for base in value.__mro__ if not _foreign(value.__module__) else ():
            yield from vars(base).values() if not _foreign(base.__module__) else ()
    elif not isinstance(value, (str, bytes, int, float, complex, CodeType, ModuleType, type(None))):
        yield type(value)
        yield from getattr(value, "__dict__", {}).values()  # of a foreign class too, such as torch.library's
        yield from (getattr(value, name, None) for name in _slots(type(value)))


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        yield from () if _foreign(base.__module__) else (names,) if isinstance(names, str) else names


def _of_function(function: FunctionType) -> Iterator[Any]:
    yield from vars(function).values()  # what functools.wraps and other decorators keep
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty yet
            continue
    if not _foreign(function.__module__):
        for code in _codes(function.__code__):
            yield from _named(code.co_names, function.__globals__, set())
            yield from _imported(code, function)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _named(names: tuple[str, ...], space: dict[str, Any], seen: set[int]) -> Iterator[Any]:
    """Yield what code means by these names: globals, and attributes of modules among them."""
    for name in names:
        value = space.get(name)
        if not isinstance(value, ModuleType):
            yield value
        elif id(value) not in seen and not _foreign(value.__name__):
            yield from _named(names, vars(value), seen | {id(value)})


def _imported(code: CodeType, function: FunctionType) -> Iterator[Any]:
    """Yield what code imports itself, if something has imported that already or it can be."""
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME" and len(before) > 1 and not _foreign(step.argval):
            names, level = before[-1] or (), before[-2] or 0
            try:
                module = __import__(step.argval, function.__globals__, None, names, level)
            except Exception:  # it is not there: a branch of the kernel that does not run here
                continue
            yield from _named(code.co_names, vars(module), set())
        before = [*before[-1:], step.argval]


def _foreign(module: Any) -> bool:
    return str(module or "").partition(".")[0] in FOREIGN
