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
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import BeforeValidator, Field, ValidationError

from verify_norm.campaign.model import Unit
from verify_norm.core.errors import UsageError, quoted
from verify_norm.core.kernel import Kernel
from verify_norm.core.settings import Seconds
from verify_norm.search.options import Options, Strict, explained, split

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KERNELS = 'a list of kernels, such as ["layernorm_fwd", {kernel = "ops.py:norm", op = "rmsnorm"}]'
ACCELERATORS = 'a list of accelerators, such as ["H100", "A100"], or "cpu"'
BEGINNING = 900.0  # seconds that a unit may take besides its search: imports, builds of the kernel, a last case
OWN = ("kernels", "block", "configs", "accelerators", "untrusted")  # keys that are not settings of a run
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


def _kinds(value: Any) -> Any:
    """Return the names of accelerators: a list of them, or a text that separates them by commas; raise ValueError."""
    names = split(value) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise ValueError
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError
    return tuple(dict.fromkeys(name.strip() for name in names))


class Plan(Options):
    """Which kernels a campaign checks, and how: its own keys, and the options of a run.

    `examples` are the random cases of each kernel and type. They are parted into blocks of at most `block`; each is a
    unit of the campaign, which may take `seconds`. With configs = "all" each configuration of an autotuned kernel is
    checked too. Each of the `accelerators` gets all units, to be compared.
    """

    kernels: Annotated[tuple[Listed, ...], BeforeValidator(_entries), Field(description=KERNELS)]
    block: Annotated[int, Ge(1)] = 500
    configs: Literal["tuned", "all"] = "tuned"
    accelerators: Annotated[tuple[str, ...], BeforeValidator(_kinds), Field(description=ACCELERATORS)] = ()
    seconds: Seconds = 600.0

    @property
    def settings(self) -> dict[str, Any]:
        """Return the options of a run, as `verify_norm.search.request.request` takes them."""
        return self.model_dump(exclude={*OWN})

    @property
    def limit(self) -> float:
        """Return the seconds after which a unit is ended from outside; a search that works ends itself before."""
        return 2 * self.seconds + BEGINNING


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
        raise UsageError(f'plan {path}: expected an object such as {{"kernels": […]}}, got {quoted(found)}')
    return found


def checked(keys: Mapping[str, Any], path: str = "") -> Plan:
    """Return the plan of these keys, which stand in the file `path`; raises UsageError for the first wrong one."""
    where = f"plan {path}: " if path else ""
    if "kernels" not in keys:
        raise UsageError(f"{where}there is no key kernels: expected {KERNELS}")
    try:
        plan = Plan(**keys)
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        if place[:1] == ("kernels",) and len(place) > 1:
            entry = f"kernels, entry {int(place[1]) + 1}: "
            raise UsageError(f"{where}{entry}{explained(error, Listed)}") from None
        raise UsageError(f"{where}{explained(error, Plan)}") from None
    if plan.untrusted:
        raise UsageError(f"{where}untrusted: a campaign's seeds are known before it; use verify-norm --untrusted")
    return plan


def expand(plan: Plan, tell: Tell = lambda line: None, *, elsewhere: bool = False) -> tuple[Unit, ...]:
    """Return the units of a plan: first those with the corner tables, which take longest; then block after block.

    `tell` takes notes for the user. If the units run `elsewhere`, the plan's device need not be here. Raises UsageError
    where a kernel cannot be found, imported or bound, or offers none of the types.
    """
    found: dict[str, Unit] = {}
    device = "auto" if elsewhere and plan.device == "cuda" else plan.device
    for listed in plan.kernels:
        for unit in _of_entry(plan, listed, tell, device):
            found.setdefault(unit.id, unit)
    ordered = sorted(found.values(), key=lambda unit: unit.block)
    return tuple(replace(unit, number=number) for number, unit in enumerate(ordered))


def _of_entry(plan: Plan, listed: Listed, tell: Tell, device: str) -> Iterator[Unit]:
    """Yield the units of an entry of the plan, whose places in the plan are not known yet."""
    from verify_norm.search.request import interpret, request

    own = {name: getattr(listed, name) or getattr(plan, name) for name in ("contract", "only")}
    settings = plan.settings | own | {"device": device}
    interpret(always=device == "cpu")  # a file may import Triton
    for name in _names(plan, listed):
        asked = request(name, settings, op=listed.op or None, bind=listed.bind, tell=tell)
        blocks = _blocks(asked.settings.examples, plan.block)
        for kernel in asked.kernels:
            offered = (dtype for dtype in plan.dtypes if dtype in kernel.dtypes)  # one at least: `request` looked
            for dtype, (block, examples) in product(offered, enumerate(blocks)):
                who = (name, kernel.op, listed.bind, own["contract"], own["only"], dtype)
                fields = (*who, block, plan.seed + block, examples, source_digest(kernel))  # as Unit has them
                for accelerator in plan.accelerators or ("",):
                    yield Unit(_id(plan, (*fields, accelerator)), 0, *fields, accelerator)


def _names(plan: Plan, listed: Listed) -> Iterator[str]:
    """Yield the kernels of an entry, each followed by its configurations if the plan asks for all."""
    from verify_norm.loading.several import configured, expanded

    for name in expanded([listed.kernel]):
        yield name
        if plan.configs == "all":
            yield from configured(name)


def source_digest(kernel: Kernel) -> str:
    """Return the digest of the text of a kernel's file."""
    from verify_norm.search.journal import source

    return hashlib.sha256(source(kernel)).hexdigest()[:16]


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
