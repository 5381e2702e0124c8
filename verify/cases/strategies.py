"""Hypothesis strategies that draw specs instead of arrays."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from verify_norm.cases import axes, axes_of_values, further_runs, values
from verify_norm.cases.corner_lines import DROPOUTS, LONG, OUTPUT_SCALES, THIRD
from verify_norm.cases.corners import freezable, most_of
from verify_norm.core import geometry, only, ways
from verify_norm.core.geometry import differentiable, size, thawed
from verify_norm.core.layouts import aliased, aliases, layouts_drawn
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import LAYOUTS, CaseSpec, having

# Row lengths: powers of two, their neighbours, odd numbers, tile edges, and hidden sizes of models.
_LENGTHS = (
    *(1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 320, 511, 512, 513),
    *(640, 768, 1000, 1023, 1024, 1025, 1280, 1600, 2047, 2048, 2049, 3584, 4095, 4096, 4097, 5120, 8192, 8193, 12288),
    *(384, 896, 1152, 1536, 2304, 2560, 2880, 3072, 4608, 6144, 7168, 11008, 14336, 72, 96, 112, 160, 576, 5376),
    *(16384, 32768, 32769, 65536, 65537, 131072),
)
# Rows: none, one, odd numbers, and the neighbours of every count of blocks, partial buffers and programs in use.
_ROWS = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 127, 128, 129, 255, 256, 257, 1000, 4097),
    *(1025, 16384, 65537, 2**18 + 1, 2**20),
)
# In one case of four all tensors of x's shape have one of these layouts: kernels often take another path for it.
_ALIKE = tuple(layout for layout in LAYOUTS if layout not in ("contiguous", "scalar"))
_WEIGHT_TYPES = {"float32": (None,) * 6 + ("float16", "bfloat16")}  # of an x of this type
# Leading dimensions besides the rows: small numbers, and heads: of some the reciprocal in float32 is too small.
_LEADING = (1, 2, 3) * 4 + (8, 12, 16, 32, 40, 41, 47, 48, 55, 61, 64, 96, 128)
_MOMENTA = (0.1, 0.3, 1e-3, 0.9, 1.0, 0.0)
# Groups, channels of each, and channels of norms without groups: small numbers, and those of models.
_GROUPS = (1, 2, 3, 4, 8, 32, 1, 2, 3, 4, 6, 16, 64)
_WIDTHS = (1, 2, 3, 5, 10, 20, 4, 6, 7, 8, 9, 16, 30, 40, 60, 64, 80)
_CHANNELS = (1, 2, 3, 5, 8, 32, 16, 64, 128, 256, 512, 96, 672, 1280, 2560)
_TILES = (8, 16, 64, 128, 256)  # a length may be any multiple of one: a loop may be right for an even number of tiles


@lru_cache(None, typed=True)
def _sampled_from(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def _among(values: Iterable[Any]) -> st.SearchStrategy[Any]:
    """Return the strategy of one of these values. It is cached: Hypothesis validates a new strategy, which is slow."""
    return _sampled_from(*values)


@lru_cache(None)
def _usually(usual: str, others: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Return the strategy of one value in half of the cases, and of the others in the rest."""
    return st.one_of(st.just(usual), _among(others))


@st.composite
def specs(
    draw: st.DrawFn,
    op: Op,
    dtypes: tuple[str, ...],
    elements: int,
    *,
    frozen: bool = False,
    gpu: bool = False,
    rows: int = 1100,
) -> CaseSpec:
    """Draw specs of `op` with at most about `elements` elements; `frozen` lets some inputs need no gradient.

    Further runs take the ways of a GPU with `gpu`, of torch's autograd with `frozen`. One case in four has its number
    of rows drawn first. There are at most `rows`: an interpreter takes time for each.
    """

    def choose(values: Iterable[Any]) -> Any:
        return draw(_among(values))

    shape, options = draw(_shape(op, elements, rows))
    dtype = choose(dtypes)
    names = {tensor.name for tensor in op.inputs}
    ndim = options.get("normalized_ndim", 1)
    alike = draw(_one_in_four(_ALIKE, None))
    options |= {
        field: alike if alike and tensor.extent == "data" else draw(_usually("contiguous", _layouts(tensor, op, ndim)))
        for field, tensor in layouts_drawn(op).items()
    }
    if "weight_offset" in op.attrs:
        options["weight_offset"] = choose((0.0, 1.0, THIRD, -0.25))
    if any(tensor.extent == "sample" for tensor in op.inputs):
        options["modulation"] = choose(axes_of_values.MODULATIONS)
        if len(shape) == 1 + ndim and choose((False, True)):
            shape = (1, *shape)  # rows are the tokens of one sample
    if only.applies("other_dtype", op) and dtype != "float32":
        options["other_dtype"] = choose((None, "float32"))
    if op.takes_residual and dtype != "float32":
        options["residual_dtype"] = choose((None, None, None, "float32"))
    if "dropout_p" in op.attrs:
        options["dropout_p"] = choose(DROPOUTS)
    if "variance_size" in op.attrs:
        options["variance_size"] = choose((None, 1, 2, 7, 64, LONG, most_of(prod(shape[-ndim:]))))
    if any(tensor.extent == "position" for tensor in op.inputs):
        options["rotary"] = choose(tuple(geometry.ROTARY))
    if op.scaled:
        options["scale"] = choose(OUTPUT_SCALES)
    if op.view == "channels":
        options |= draw(_mode(shape))
    if frozen and freezable(op):
        options["frozen"] = draw(_one_in_four(freezable(op), ()))
    spec = CaseSpec(
        shape=shape,
        dtype=dtype,
        weight_dtype=choose(_WEIGHT_TYPES.get(dtype, (None, "float32"))),
        weight=choose((True, True, True, False)),
        bias="bias" not in names or choose((True, True, True, False)),
        dresidual_out="dresidual_out" not in names or draw(st.booleans()),
        seed=draw(st.integers(0, values.SEEDS)),
        **values.chosen(choose, op, dtype),
        **options,
    )
    spec = geometry.needed(spec, op)
    spec = having(spec, values.special(choose, spec, op))
    if aliases(op):
        spec = aliased(replace(spec, alias=choose(("",) * 32 + aliases(op))), op)
    if batches := _batches(spec, op, 16 * elements, rows):
        spec = replace(spec, batch=choose((0,) * 15 * len(batches) + batches))
    # Where Hypothesis climbs it repeats the numbers of one case, so this one is a digest, which any change makes anew.
    number = crc32(repr(spec).encode())
    spec = further_runs.drawn(thawed(spec, differentiable(op)), number, op)
    return further_runs.named(spec, ways.offered(op, autograd=frozen, gpu=gpu), number // further_runs.ROUND)


def _batches(spec: CaseSpec, op: Op, elements: int, rows: int) -> tuple[int, ...]:
    """Return the batches of more rows than the case has, but at most so many elements and rows."""
    if op.view == "channels" or len(spec.shape) <= spec.normalized_ndim or not prod(spec.shape):
        return ()
    rows_each, elements_each = (n // spec.shape[0] for n in size(spec, op))  # of one place of the batch
    return tuple(m for m in _ROWS if spec.shape[0] < m and m * rows_each <= rows and m * elements_each <= elements)


@lru_cache(4096)
def _magnitude(most: int) -> st.SearchStrategy[int]:
    """Return numbers from 1 to `most` of any size: a threshold may lie between all the usual ones."""
    powers = _among(range(most.bit_length()))
    return powers.flatmap(lambda power: st.integers(1 << power, min((2 << power) - 1, most)))


@lru_cache(4096)
def _size(usual: tuple[int, ...], small: int, most: int) -> st.SearchStrategy[int]:
    """Return usual numbers, those up to `small`, and those up to `most` of any size."""
    return st.one_of(_among(usual), st.integers(1, small), _magnitude(most))


def _one_in_four(values: tuple[Any, ...], otherwise: Any) -> st.SearchStrategy[Any]:
    """Return the strategy of these values in one case of four, and of another one in the rest."""
    return _among((otherwise,) * 3 * len(values) + values)


def _layouts(tensor: Tensor, op: Op, ndim: int) -> tuple[str, ...]:
    layouts = axes.layouts(tensor, op)
    if tensor.role != "weight":
        return layouts
    excluded = ("contiguous",) if ndim > 1 else ("contiguous", "transposed")
    return tuple(layout for layout in layouts if layout not in excluded)


@lru_cache(None)
def _shape(op: Op, elements: int, rows: int) -> st.SearchStrategy[tuple[tuple[int, ...], dict[str, Any]]]:
    if op.view == "rows":
        return _among((False, False, False, True)).flatmap(
            lambda tall: _tall_shape(elements, rows) if tall else _row_shape(elements, rows)
        )
    if "num_groups" in op.attrs:
        return _group_shape(elements)
    samples = (1, 2, 3, 0, 5, 17) if op.view == "groups" else (1, 2, 3, 0, 5, 17, 64, 257, 1000)
    return _channel_shape(elements, samples)


@st.composite
def _mode(draw: st.DrawFn, shape: tuple[int, ...]) -> dict[str, Any]:
    """Draw the mode of BatchNorm: evaluation if a channel has a single value, and only with running statistics."""
    training = prod(shape[:1] + shape[2:]) != 1 and draw(_among((True, True, False)))
    running = not training or draw(_among((True, True, True, False)))
    return {"training": training, "running": running, "momentum": draw(_among(_MOMENTA))}


@lru_cache(None)
@st.composite
def _tall_shape(draw: st.DrawFn, elements: int, most: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw many rows first, as sums over rows need, and then how long they are."""
    rows = draw(_among([m for m in _ROWS if m <= min(elements, most)]))
    return (rows, draw(st.integers(1, min(elements // max(rows, 1), 64)))), {"normalized_ndim": 1}


@lru_cache(None)
@st.composite
def _row_shape(draw: st.DrawFn, elements: int, many: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    usual = [n for n in _LENGTHS if n <= elements]
    tile = draw(_among((None,) * 10 + tuple(tile for tile in _TILES if tile <= elements)))
    if tile:
        length = tile * draw(_magnitude(elements // tile))
    else:
        length = draw(_size(tuple(usual), min(elements, 600), elements))
    most = min(max(elements // length, 1), many)
    rows = draw(_size(tuple(m for m in _ROWS if m <= most), min(most, 70), most))
    normalized: tuple[int, ...] = (length,)
    for _ in range(draw(_among((0,) * 12 + (1,) * 5 + (2,)))):  # normalized_shape of two or three dimensions
        *outer, last = normalized
        first = draw(_among([k for k in (1, 2, 3, 4, 5) if last % k == 0]))
        normalized = (*outer, first, last // first)
    rank = draw(st.integers(0, 5 - len(normalized)))
    if rank == 0:
        return normalized, {"normalized_ndim": len(normalized)}
    leading: list[int] = []
    for _ in range(rank - 1):
        leading.append(draw(_among([k for k in _LEADING if k == 1 or k * prod(leading) <= most])))
    rows = rows // prod(leading) if rows >= prod(leading) else min(rows, 1)
    leading.insert(draw(st.integers(0, len(leading))), rows)  # a batch or a sequence may be the longer one
    return (*leading, *normalized), {"normalized_ndim": len(normalized)}


@st.composite
def _group_shape(draw: st.DrawFn, elements: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    most = max(elements // 512, 32)
    groups = draw(_among([g for g in _GROUPS if g <= most]))
    channels = groups * draw(_among([c for c in _WIDTHS if groups * c <= most]))
    samples = draw(_among((1, 2, 3, 0, 5, 17)))
    space = draw(_space(max(elements // (channels * max(samples, 1)), 1)))
    return (samples, channels, *space), {"num_groups": groups}


@st.composite
def _channel_shape(draw: st.DrawFn, elements: int, samples: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    channels = draw(st.one_of(_among([c for c in _CHANNELS if c <= elements]), _magnitude(min(elements, 2**14))))
    batch = draw(_among([n for n in samples if n * channels <= elements]))
    return (batch, channels, *draw(_space(max(elements // (channels * max(batch, 1)), 1)))), {}


@st.composite
def _space(draw: st.DrawFn, most: int) -> tuple[int, ...]:
    """Draw up to three spatial dimensions of at most `most` positions."""
    size = draw(st.one_of(st.integers(1, min(most, 64)), st.integers(1, most)))
    rank = draw(st.integers(0, 3))
    if rank < 2:
        return (size,) * rank
    side = max(int(size ** (1 / rank)), 1)
    return (side,) * (rank - 1) + (max(size // side ** (rank - 1), 1),)
