"""Forms in which other projects have kernels, as kernels of our operators. They are read as text; nothing is imported.

* "function": path/file.py:fn, package.module:attr or a name of ours.
* "kernelbench": the file of a solution, with ModelNew, of problem 33 to 36, 39 or 40 of level 1.
* "flashinfer": the file of a solution in flashinfer-trace, beside the file of its definition.
* "gpumode": a submission.py with custom_kernel(data).
"""

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verify_norm.core.errors import UsageError, one_of, quoted
from verify_norm.core.only import joined
from verify_norm.core.ops import OPS

ONE_EPS = "eps=1e-5"  # what torch's modules have, where a constructor has no argument for it


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel as the judge takes it: what `verify` calls kernel, op, bind and only."""

    target: str
    op: str | None
    bind: str = ""
    only: str = ""


# Problems of KernelBench's level 1, as subjects of a file `{path}`: how its ModelNew is called, and which cases its
# form can express.
MODEL, SHIM = "{path}:ModelNew", f"{__package__}.shims:kernelbench_"
ROWS = "weight=false,normalized_ndim=1,numel>0"
KERNELBENCH = {
    "33": Subject(MODEL, "batchnorm_fwd", f"{ONE_EPS},momentum=0.1", "ndim=4,weight,bias,running,training,numel>0"),
    "34": Subject(MODEL, "instancenorm_fwd", ONE_EPS, "ndim=4,numel>0"),
    "35": Subject(MODEL, "groupnorm_fwd", ONE_EPS, "ndim>=3,weight,bias,numel>0"),
    "36": Subject(f"{SHIM}rmsnorm", "rmsnorm_fwd", "path={path!r}", ROWS),
    "39": Subject(f"{SHIM}l2norm", "rmsnorm_fwd", "path={path!r}", f"{ROWS},eps=0,N=16+256+1024+16384"),
    "40": Subject(MODEL, "layernorm_fwd", ONE_EPS, "weight,bias,numel>0"),
}
FLASHINFER = {"rmsnorm": "rmsnorm_fwd", "fused_add_rmsnorm": "add_rmsnorm_fwd"}
ABSENT = {  # of gpu-mode's tuple: the cases that a submission without it can express
    "weight": "weight=false",
    "bias": "bias=false",
    "weight_offset": "weight_offset=0",
    "normalized_shape": "normalized_ndim=1",
    "dresidual_out": "dresidual_out=false",
    "scale": "scale=1",
    "training": "training",
    "momentum": "momentum=0.1",
}
CLAUSES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def subject(kernel: str, op: str | None, form: str, problem: str, folder: Path) -> Subject:
    """Return the kernel of a form; raises UsageError. Files that a form holds as text are written into `folder`.

    `problem` is the number of KernelBench's problem, the file of flashinfer's definition, or the names of what
    gpu-mode's tuple has, joined by +.
    """
    one_of("form", form, FORMS)
    if form == "function":
        if problem:
            raise UsageError(f"problem: expected none for form=function, got {problem!r}")
        if kernel.endswith(".py"):
            raise UsageError(f"kernel: expected a function of {kernel}, such as {kernel}:rms_norm, got the file alone")
        return Subject(kernel, op)
    path = _file(kernel)
    expected, read = FORMS[form]
    if not problem:
        raise UsageError(f"problem: expected {expected}, got nothing")
    return read(path, op, problem, folder)


def _file(name: str) -> str:
    """Return the path of a file; raises UsageError if there is none."""
    path = Path(name)
    if not path.is_file():
        alone = name.rpartition(":")[0]
        named = f": it is given without a name, as {alone}" if Path(alone).is_file() else ""
        raise UsageError(f"no file {name}{named}")
    return str(path.absolute())


def _kernelbench(path: str, op: str | None, problem: str, folder: Path) -> Subject:
    """Return a solution of KernelBench; the problem is its number, or the name of its file, which begins with it."""
    digits = re.match(r"\d*", Path(problem).name)
    assert digits is not None
    number = one_of("problem", digits[0] or problem, KERNELBENCH)
    known = KERNELBENCH[number]
    if op not in (None, known.op):
        raise UsageError(f"op: problem {number} of KernelBench is {known.op}, got {op}")
    return replace(known, target=known.target.format(path=path), bind=known.bind.format(path=path))


def _flashinfer(path: str, op: str | None, problem: str, folder: Path) -> Subject:
    """Return a solution of flashinfer-trace; the problem is the file of its definition."""
    definition, solution = _json(_file(problem)), _json(path)
    kind = one_of("op_type", str(_of(definition, "op_type", str)), FLASHINFER)
    if "add" in str(definition.get("name", "")) and kind == "rmsnorm":
        kind = "fused_add_rmsnorm"
    entry = str(_of(_of(solution, "spec", dict), "entry_point", str))
    file, colon, function = entry.partition("::")
    if not colon or not function.isidentifier():
        raise UsageError(f"entry_point: expected file.py::function, got {entry!r:.60}")
    for source in _of(solution, "sources", list):
        place = (folder / str(_of(source, "path", str))).resolve()
        if not place.is_relative_to(folder.resolve()):
            raise UsageError(f"sources: expected a path inside of the solution, got {source['path']!r:.60}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(str(_of(source, "content", str)), encoding="utf-8")
    eps = re.search(r"\beps(?:ilon)?\b\s*=\s*([0-9.]+(?:e-?\d+)?)", str(definition.get("reference", "")), re.IGNORECASE)
    bind = f"eps={eps[1]}" if eps else ""
    clauses = ["ndim=2,numel>0,weight,weight_dtype=x", bind]
    axes = _of(definition, "axes", dict)
    size = axes["hidden_size"].get("value") if "hidden_size" in axes else None
    if isinstance(size, int):
        clauses.append(f"N={size}")
    first: Any = next(iter(_of(definition, "inputs", dict).values()), None)
    dtype = str(_of(first, "dtype", str))
    if dtype in CLAUSES:
        clauses.append(f"dtype={CLAUSES[dtype]}")
    return Subject(f"{folder / file}:{function}", FLASHINFER[kind], bind, joined(*clauses))


def _gpumode(path: str, op: str | None, problem: str, folder: Path) -> Subject:
    """Return a submission to gpu-mode; the problem is the names in the tuple that it takes."""
    if op is None:
        raise UsageError("op: expected an operator, such as rmsnorm_fwd: custom_kernel does not tell; got none")
    names = problem.split("+")
    if not all(name.isidentifier() for name in names):
        raise UsageError(f"problem: expected {FORMS['gpumode'][0]}, got {problem!r:.60}")
    try:
        defined = {node.name for node in ast.parse(Path(path).read_bytes()).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be parsed: {error}") from error
    if "custom_kernel" not in defined:
        raise UsageError(f"{path} has no function custom_kernel")
    computes = OPS[one_of("op", op, OPS)]
    offered = (*(tensor.name for tensor in computes.inputs), *computes.attrs)
    for name in names:
        one_of("name in the tuple", name, offered)
    only = [clause for name, clause in ABSENT.items() if name in offered and name not in names]
    only += [name for name in ("weight", "bias") if name in names]
    given = "".join(f",{name}={name}" for name in names)
    bind = f"path={path!r},data={problem!r}{given}"
    return Subject(f"{__package__}.shims:gpumode", op, bind, joined("numel>0", *only))


def _json(path: str) -> dict[str, Any]:
    """Return the object in a file of JSON; raises UsageError."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected an object, got {quoted(found)}")
    return found


def _of(record: Any, name: str, kind: type) -> Any:
    """Return a field of an object; raises UsageError where it is not there, or of another kind."""
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise UsageError(f"{name}: expected a {kind.__name__}, got {value!r:.60}")
    return value


Reader = Callable[[str, str | None, str, Path], Subject]
FORMS: dict[str, tuple[str, Reader]] = {
    "function": ("none", lambda path, op, problem, folder: Subject(path, op)),
    "kernelbench": ("the number of a problem of level 1, such as 36", _kernelbench),
    "flashinfer": ("the file of the definition", _flashinfer),
    "gpumode": ("the names in the tuple, such as x+weight+eps", _gpumode),
}


def narrowed(found: Subject, only: str, bind: str) -> Subject:
    """Return the subject with the user's own clauses and names too."""
    return replace(found, only=joined(found.only, only), bind=",".join(filter(None, (found.bind, bind))))
