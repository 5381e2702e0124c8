"""Specs and documents as JSON text, and files that are written whole or not at all."""

import json
import os
import re
import stat
import sys
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import isfinite, prod
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from verify_norm.core import ways
from verify_norm.core.dtypes import FLOATS
from verify_norm.core.errors import UsageError, one_of
from verify_norm.core.geometry import repeated
from verify_norm.core.ranges import out_of_range
from verify_norm.core.spec import ALIASES, COTANGENTS, FAMILIES, FURTHER, LAYOUTS, WEIGHTS, CaseSpec

ELEMENTS = 2**36  # the most that x can have: half a tebibyte in float64, more than any machine holds
SEE_CASE = "verify-norm schema case"
OBJECT = 'an object, as {"kernel": …, "shape": […]}'  # a replay line
JSON = ("{\n", "[\n", "[{\n", "[]")  # how the files begin that we write
_SPEC = TypeAdapter(CaseSpec)


def spec_text(kernel: str, spec: CaseSpec, op: str | None = None) -> str:
    """Return one line of JSON that replays a case: the kernel, and what differs from the defaults of CaseSpec."""
    named = {"kernel": kernel} | ({"op": op} if op else {})
    return json.dumps(jsonable(named | _changed(spec)), ensure_ascii=False)


def _changed(spec: CaseSpec) -> dict[str, Any]:
    default = {f.name: f.default for f in fields(CaseSpec) if f.default is not MISSING}
    return {k: v for k, v in asdict(spec).items() if k not in default or default[k] != v}


def read_spec(text: str) -> tuple[str, str | None, CaseSpec]:
    """Return the kernel, the op if named, and the case of a replay line; raises UsageError that says what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError
        raise UsageError(f"cannot parse the spec as JSON: {error}; expected {OBJECT}") from error
    if not isinstance(data, dict):
        raise UsageError(f"the spec: expected {OBJECT}, got {short(data)}")
    for name in data:
        one_of("field of the spec", name, ["kernel", "op", *(f.name for f in fields(CaseSpec))], see=SEE_CASE)
    for required in ("kernel", "shape"):
        if required not in data:
            raise UsageError(f"the spec has no {required!r}")
    kernel, op = data.pop("kernel"), data.pop("op", None)
    for key, name in (("kernel", kernel), ("op", op)):
        if not isinstance(name, str) and (key, name) != ("op", None):
            raise UsageError(f"the spec's {key}: expected a name, got {short(name)}")
    try:
        spec = _SPEC.validate_json(json.dumps(data), strict=True)  # strict JSON: a list is a tuple
    except ValidationError as error:
        detail = error.errors()[0]
        refused = out_of_range(str(detail["loc"][0]), detail["input"]) if detail["loc"] else None
        raise UsageError(refused or f"the spec: {first_error(error)}") from error
    refuse_nonsense(spec)
    return kernel, op, spec


def refuse_nonsense(spec: CaseSpec) -> None:
    """Raise UsageError if a value of the case is impossible for its field, whatever the operator."""
    one_of("dtype", spec.dtype, FLOATS)
    one_of("dtype", spec.weight_dtype or spec.dtype, FLOATS)
    one_of("data family", spec.data, FAMILIES)
    one_of("dy_data", spec.dy_data, COTANGENTS)
    one_of("weight_data", spec.weight_data, WEIGHTS)
    for name in spec.frozen:
        one_of("frozen input", name, ways.LEAVES)
    for name in spec.further:
        one_of("further run", name, FURTHER)
    for name in ways.WAYS:
        one_of(name, getattr(spec, name), ("", *ways.known(name)), see=SEE_CASE)
    for name, value in asdict(spec).items():
        if name.endswith("_layout"):
            one_of(name, value, LAYOUTS)
        if name == "alias" and value:
            one_of(name, value, ALIASES)
        if refused := out_of_range(name, value):
            raise UsageError(refused)
    if any(n < 0 for n in spec.shape) or not spec.shape:
        raise UsageError(f"shape: expected one or more sizes, none negative, got {list(spec.shape)}")
    for name, shape in (("shape", spec.shape), ("batch", repeated(spec).shape)):
        if prod(shape) > ELEMENTS:
            raise UsageError(f"{name}: expected at most 2**36 elements, got {prod(shape):.3g} in {list(shape)}")
    if spec.normalized_ndim > len(spec.shape):
        raise UsageError(f"normalized_ndim: expected 1 to the rank of x, {len(spec.shape)}, got {spec.normalized_ndim}")


def write(text: str, path: str) -> None:
    """Write text to a file, as UTF-8; raises UsageError if that fails.

    A regular file is replaced whole or not at all, in its mode and where a link leads. A pipe, a device or an open
    descriptor, as /dev/stdout, is written into.
    """
    data = text.encode("utf-8", "backslashreplace")  # lone surrogates are escaped, as in JSON
    try:
        descriptor = _descriptor(path)
        if descriptor is not None or (os.path.exists(path) and not os.path.isfile(path)):
            sys.stdout.flush()  # it may lead to the same file
            with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
                file.write(data)
        else:
            _replace(os.path.realpath(path), data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _descriptor(path: str) -> int | None:
    """Return the number of the open file that a path stands for, as /dev/stdout or /dev/fd/3; None for others."""
    for _ in range(40):  # links, as many as Linux follows
        if opened := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", os.path.abspath(path)):
            return int(opened[1])
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def _replace(target: str, data: bytes) -> None:
    """Write a new file beside the target, and rename it: at any time the target is the old file or the new one."""
    temporary = os.path.join(os.path.dirname(target), f".verify-norm-{uuid4().hex}.part")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
            if os.path.exists(target):
                old = os.stat(target)
                with suppress(OSError):  # only root may give a file to others
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def writable(path: str, ours: tuple[str, ...] = JSON) -> None:
    """Raise UsageError, before a run, if its report cannot be written there; "" and "-" are no files.

    A file that does not begin as one of `ours` is kept: the name may be a slip, as that of the kernel's own file.
    """
    if path in ("", "-"):
        return
    if reason := _unwritable(path, ours):
        raise UsageError(f"cannot write {path}: {reason}")


def _unwritable(path: str, ours: tuple[str, ...]) -> str:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        return getattr(error, "strerror", None) or str(error)
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        return f"it is a {'disk' if stat.S_ISBLK(mode) else 'socket'}; expected a file, a pipe or a terminal"
    if _descriptor(path) is not None:
        return ""
    if os.path.exists(path) and not os.access(path, os.W_OK):
        return "Permission denied"
    if not stat.S_ISREG(mode):
        return ""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return f"no writable folder {folder}"
    return "" if _begins(path, ours) else "it is a file of something else; remove it, or name another file"


def _begins(path: str, ours: tuple[str, ...]) -> bool:
    """Return whether a file begins as one of `ours`, is empty or does not exist."""
    try:
        with open(path, "rb") as file:
            beginning = file.read(64).lstrip(b"\xef\xbb\xbf \r\n")
    except OSError:
        return not os.path.exists(path)
    return not beginning or beginning.startswith(tuple(text.encode() for text in ours))


def by_lines(value: dict[str, Any]) -> str:
    """Return an object as JSON, with one line for each field and for each member of a list in it."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(item)}" for key, item in value.items()) + "\n}"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and "schema" in value:
        return by_lines(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n " + ",\n ".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """Return the value in JSON's types: NaN and infinities become words, a CaseSpec what is not its default."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, CaseSpec):
        value = _changed(value)
    elif is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    return [jsonable(item) for item in value] if isinstance(value, (list, tuple)) else value


def first_error(error: ValidationError) -> str:
    """Return the first of pydantic's errors, on one line."""
    detail = error.errors()[0]
    place = ".".join(map(str, detail["loc"])) or "value"
    return f"{place}: {detail['msg'].replace('Input should be', 'expected')}, got {short(detail['input'])}"


def short(value: Any) -> str:
    """Return a value from a file, on one line of at most 60 characters."""
    return " ".join(json.dumps(value, ensure_ascii=False, default=str).split())[:60]
