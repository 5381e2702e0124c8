"""The plan of a campaign, and the units that it stands for: the same ones on every machine.

    kernels = ["layernorm_*", "ops/norms.py", {kernel = "ops/fused.py:norm", op = "rmsnorm", contract = "llama"}]
    dtypes = ["fp32", "bf16"]
    examples = 10_000      # random cases of each kernel and type, after the corner table

Names and patterns are those of --kernel; paths are relative to the working folder. Importing this module loads no
torch.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import BeforeValidator, Field, ValidationError

from verify_norm.campaign.model import Unit
from verify_norm.core.errors import UsageError
from verify_norm.core.settings import Seconds
from verify_norm.core.spec import Kernel
from verify_norm.search.options import Options, Strict, explained

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KERNELS = 'a list of kernels, as ["layernorm_fwd", {kernel = "ops.py:norm", op = "rmsnorm"}]'
OWN = ("kernels", "block", "untrusted")  # keys that are not settings of a run
OF_UNIT = ("examples", "seed", "dtypes", "contract", "only")  # settings that a unit has itself
Tell = Callable[[str], None]


class Listed(Strict):
    """One entry of a plan's kernels: what --kernel takes, and what holds for it alone."""

    kernel: Annotated[str, Field(description="what --kernel takes, as a text", min_length=1)]
    op: Annotated[str, Field(description="an operator, as a text")] = ""
    bind: Annotated[str, Field(description="what --bind takes, as a text")] = ""
    contract: Annotated[str, Field(description="what --contract takes, as a text")] = ""
    only: Annotated[str, Field(description="what --only takes, as a text")] = ""


def _entries(value: Any) -> Any:
    """Return the entries of `kernels` as tables; raise ValueError for what is no list of some."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, (str, dict)) for one in value):
        raise ValueError
    return tuple({"kernel": one} if isinstance(one, str) else one for one in value)


class Plan(Options):
    """Which kernels a campaign checks, and how: its own keys, and the options of a run.

    `examples` are the random cases of each kernel and type. They are parted into blocks of at most `block`; each is a
    unit of the campaign, which may take `seconds`.
    """

    kernels: Annotated[tuple[Listed, ...], BeforeValidator(_entries), Field(description=KERNELS)]
    block: Annotated[int, Ge(1)] = 500
    seconds: Seconds = 600.0

    @property
    def settings(self) -> dict[str, Any]:
        """Return the options of a run, as `verify_norm.search.request.request` takes them."""
        return self.model_dump(exclude={*OWN})


def read(path: str) -> dict[str, Any]:
    """Return the keys of a plan's file, TOML or JSON by its name; raises UsageError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        found = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:  # ValueError: also of both parsers
        what = "JSON" if path.endswith(".json") else "TOML"
        said = getattr(error, "strerror", None) or f"not a plan in {what}: {error}"
        raise UsageError(f"plan {path}: {said}") from error
    if not isinstance(found, dict):
        raise UsageError(f'plan {path}: expected an object as {{"kernels": […]}}, got a {type(found).__name__}')
    return found


def checked(keys: Mapping[str, Any], path: str = "") -> Plan:
    """Return the plan of these keys, which stand in the file `path`; raises UsageError for the first wrong one."""
    where = f"plan {path}: " if path else ""
    if "kernels" not in keys:
        raise UsageError(f"{where}there is no key kernels: expected {KERNELS}")
    try:
        plan = Plan(**keys)
    except ValidationError as error:
        of_entry = error.errors()[0]["loc"][:1] == ("kernels",) and len(error.errors()[0]["loc"]) > 1
        entry = f"kernels, entry {int(error.errors()[0]['loc'][1]) + 1}: " if of_entry else ""
        raise UsageError(f"{where}{entry}{explained(error, Listed if entry else Plan)}") from None
    if plan.untrusted:
        raise UsageError(f"{where}untrusted: a campaign's seeds are known before it; use verify-norm --untrusted")
    return plan


def expand(plan: Plan, tell: Tell = lambda line: None) -> tuple[Unit, ...]:
    """Return the units of a plan: first those with the corner tables, which take longest; then block after block.

    `tell` takes notes for the user. Raises UsageError where a kernel cannot be found, imported or bound, or offers
    none of the types.
    """
    found: dict[str, Unit] = {}
    for listed in plan.kernels:
        for unit in _of_entry(plan, listed, tell):
            found.setdefault(unit.id, unit)
    ordered = sorted(found.values(), key=lambda unit: unit.block)
    return tuple(replace(unit, number=number) for number, unit in enumerate(ordered))


def _of_entry(plan: Plan, listed: Listed, tell: Tell) -> Iterator[Unit]:
    from verify_norm.loading.several import expanded
    from verify_norm.search.journal import source
    from verify_norm.search.request import interpret, request

    own = {name: getattr(listed, name) or getattr(plan, name) for name in ("contract", "only")}
    interpret(always=plan.device == "cpu")  # a file may import Triton
    for name in expanded([listed.kernel]):
        asked = request(name, plan.settings | own, op=listed.op or None, bind=listed.bind, tell=tell)
        for kernel in asked.kernels:
            for dtype in _offered(kernel, plan.dtypes):
                digest = hashlib.sha256(source(kernel)).hexdigest()[:16]
                for block, examples in enumerate(_blocks(asked.settings.examples, plan.block)):
                    who = (name, kernel.op, listed.bind, own["contract"], own["only"], dtype)
                    fields = (*who, block, plan.seed + block, examples, digest)
                    yield Unit(_id(plan, fields), 0, *fields)


def _offered(kernel: Kernel, dtypes: tuple[str, ...]) -> list[str]:
    offered = [dtype for dtype in dtypes if dtype in kernel.dtypes]
    if not offered:
        raise UsageError(f"{kernel.name} offers {', '.join(kernel.dtypes)}, and the plan asks for {', '.join(dtypes)}")
    return offered


def _blocks(examples: int, most: int) -> list[int]:
    """Return the number of random cases of each block: the first has the corner table, also without random cases.

    >>> _blocks(1200, 500), _blocks(0, 500)
    ([500, 500, 200], [0])
    """
    return [min(most, examples - first) for first in range(0, examples, most)] or [0]


def _id(plan: Plan, fields: tuple[Any, ...]) -> str:
    """Return the digest of a unit; how many processes examine its cases does not matter."""
    settings = plan.model_dump(mode="json", exclude={*OWN, *OF_UNIT, "workers"})
    return hashlib.sha256(json.dumps([fields, settings], sort_keys=True).encode()).hexdigest()[:16]


def digest(units: tuple[Unit, ...]) -> str:
    """Return the digest of a plan: of all its units."""
    return hashlib.sha256("".join(unit.id for unit in units).encode()).hexdigest()[:16]
