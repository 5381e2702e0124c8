"""The random cases of a run: usual ones, then larger ones, as far as time allows; a seed draws the same ones."""

from collections.abc import Callable, Mapping

from verify_norm.cases import strategies
from verify_norm.core.geometry import size
from verify_norm.core.results import Settings
from verify_norm.core.spec import CaseSpec, Op
from verify_norm.running.patience import kind

# Elements of x and rows. A kernel in Triton's interpreter runs usual cases in the time of a run; torch also large ones.
USUAL = {"cpu": (2**14, 300), "cuda": (2**19, 2**16 + 1)}
LARGE = {"cpu": (2**18, 2**16 + 1), "cuda": (2**23, 2**20)}
LARGE_SHARE = 8  # one large case for so many usual ones


def planned(settings: Settings) -> int:
    """Return how many cases `draw` draws."""
    return settings.examples + settings.examples // LARGE_SHARE


def draw(
    op: Op,
    dtypes: tuple[str, ...],
    settings: Settings,
    usual: Callable[[CaseSpec], Mapping[str, float]],
    large: Callable[[CaseSpec], None],
    *,
    frozen: bool,
) -> None:
    """Call `usual` with each usual case, then `large` with each larger one, which may leave it out if it takes long.

    `usual` returns what to maximize. So that times change no case, the sizes are constants, `large` returns nothing,
    and what is left out is left to the caller to count.
    """
    elements, rows = USUAL[kind(settings.device)]
    most = LARGE[kind(settings.device)]

    def is_larger(spec: CaseSpec) -> bool:
        wanted = size(spec, op)
        return wanted[0] > rows or wanted[1] > elements

    def without_aim(spec: CaseSpec) -> dict[str, float]:
        large(spec)
        return {}

    drawn = strategies.specs(op, dtypes, elements, frozen=frozen, rows=rows)
    strategies.explore(drawn, usual, examples=settings.examples, seed=settings.seed)
    if count := settings.examples // LARGE_SHARE:
        drawn = strategies.specs(op, dtypes, most[0], frozen=frozen, rows=most[1]).filter(is_larger)
        strategies.explore(drawn, without_aim, examples=count, seed=settings.seed)
