"""How a kernel is searched: the options of a run, their defaults and ranges."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from verify_norm.core.dtypes import KERNEL_DTYPES

Count = Annotated[int, Ge(0)]
Seconds = Annotated[float, Ge(0.1)]
Workers = Annotated[int, Ge(1), Le(64)]  # each has the memory of torch and of its cases


@dataclass(frozen=True, slots=True)
class Settings:
    """How a kernel is searched. The defaults and ranges of every interface (command line, Python, pytest) are these."""

    dtypes: tuple[str, ...] = KERNEL_DTYPES  # of x
    checks: tuple[str, ...] = ()  # names; all that apply if there are none
    examples: Count = 1500  # cases after the corner table: all pairs of choices, then random ones
    tables: bool = True  # whether the corner table, all pairs of choices and the table of large cases run
    seconds: Seconds = 55.0  # for the whole search
    seed: Count = 0  # of the random cases
    device: str = "cpu"
    # Random shapes (on a GPU those of models too), norm shapes of real models, or both.
    shapes: Literal["fuzz", "models", "all"] = "fuzz"
    # For one case, and more if it is larger or the kernel may build; None is the device's limit.
    timeout: Seconds | None = None
    workers: Workers | None = None  # processes that examine cases at the same time; None: as many as help
    isolate: bool = True  # whether the kernel runs in a process of its own
    untrusted: bool = False  # whether that process has neither truth nor verdict, in a sandbox
    allow_incomplete: bool = False  # whether a run passes that ended before all corner cases
    require_own: bool = False  # whether a norm operator of torch that runs inside the kernel is a finding
    contract: str = ""  # what the kernel promises besides its own contract, such as "llama,inplace=y:x"
    only: str = ""  # what it takes besides what it declares itself, such as "ndim=2,N%8=0"


DEFAULTS = Settings()
PAIR_EXAMPLES = 100  # by default, of `same`, whose cases run two kernels
