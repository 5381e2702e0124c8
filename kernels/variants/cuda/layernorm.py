"""LayerNorm's forward in CUDA C++ in five steps, from the simplest to the fastest, as seed 004 builds it.

1. A thread a row, one running sum.
2. Kernels for mean, for rstd and for y, the sums halved in shared memory.
3. A warp a row: cooperative groups, streaming loads and stores.
4. The same, with the variance as E[x²] − E[x]².
5. A block a row, reduced by warps and then by their sums; E[x²] − E[x]² too.

The ideas are those of llm.c's layernorm_forward.cu (https://github.com/karpathy/llm.c), which the seed explains; the
code, layernorm.cu, is our own, for any strides, lengths, counts and addresses, and for None. 1, 2 and 3 are right;
4 and 5 lose the variance where |mean| is large against the deviations: the verifier has to detect them.

NVRTC compiles them for types, a block size and an architecture when one is first called for these, by way of
cuda-core: `pip install 'verify-norm[cuda]'`.
"""

import functools
import importlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.arguments import dense, normalized, rows, split

Shape = int | Sequence[int] | None
Outputs = tuple[Tensor, Tensor, Tensor]

BLOCK = 512  # threads; the one of seed 004's table
BLOCKS = tuple(range(32, 1025, 32))  # whole warps, as many as a block may have
WARP = 32
CPP = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
GRID = 2**31 - 1  # blocks along a grid's first axis
GRID_Y = 65535  # and along its second
OF_BOTH = ("thread_a_row", "normalize_elements", "warp_a_row", "warp_a_row_one_pass", "block_a_row_one_pass")
OF_X = ("mean_of_rows", "rstd_of_rows")  # templates of x's type alone


def layernorm_fwd_cuda1(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape = None
) -> Outputs:
    """Return LayerNorm by a thread a row: y, mean and rstd, as `forward` does."""
    return forward(1, x, weight, bias, eps, normalized_shape)


def layernorm_fwd_cuda2(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape = None
) -> Outputs:
    """Return LayerNorm by three kernels, a block a row for each statistic: y, mean and rstd, as `forward` does."""
    return forward(2, x, weight, bias, eps, normalized_shape)


def layernorm_fwd_cuda3(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape = None
) -> Outputs:
    """Return LayerNorm by a warp a row: y, mean and rstd, as `forward` does."""
    return forward(3, x, weight, bias, eps, normalized_shape)


def layernorm_fwd_cuda4(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape = None
) -> Outputs:
    """Return LayerNorm by a warp a row and E[x²] − E[x]²: y, mean and rstd, as `forward` does, but for the variance."""
    return forward(4, x, weight, bias, eps, normalized_shape)


def layernorm_fwd_cuda5(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape = None
) -> Outputs:
    """Return LayerNorm by a block a row and E[x²] − E[x²]: y, mean and rstd, as `forward`, but for the variance."""
    return forward(5, x, weight, bias, eps, normalized_shape)


def forward(
    step: int,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    normalized_shape: Shape = None,
    *,
    block: int = BLOCK,
) -> Outputs:
    """Return LayerNorm of x (…, *normalized_shape) by a step of the ladder, on torch's current stream.

    Parameters
    ----------
    step
        of the ladder, 1 to 5.
    x
        float32, float16 or bfloat16 on a GPU, of any strides.
    weight, bias
        None, or of shape normalized_shape, of x's type or float32.
    eps
        added to the variance, under the root.
    normalized_shape
        the trailing dimensions that make a row; None: those of the weight (or bias), else the last one.
    block
        threads a block, a multiple of 32 up to 1024.

    Returns
    -------
    y (as x, contiguous), mean and rstd (float32, one a row).

    Raises
    ------
    ValueError, TypeError : x is not on a GPU, an argument does not fit x, a row has no elements, or another block size.
    ImportError : cuda-core or the toolkit's headers are missing.
    """
    if isinstance(x, Tensor) and not x.is_cuda:
        raise ValueError(f"CUDA C++ runs on a GPU alone, and x is on {x.device}")
    if step not in range(1, 6):
        raise ValueError(f"the ladder has steps 1 to 5, not {step}")
    if block not in BLOCKS:
        raise ValueError(f"a block has a multiple of 32 threads, up to 1024, not {block}")
    shape = normalized(x, weight, bias, normalized_shape)
    m, n = split(x, shape)
    if not n:
        raise ValueError(f"normalized_shape {shape} holds no elements to normalize")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        weight, bias = weight.float(), bias.float()  # kernels have one type for both; float32 holds every 16-bit value
    x2, weight, bias = rows(x, m, n), dense(weight), dense(bias)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(2))
    if m:
        with torch.cuda.device_of(x):
            _launch(step, block, x2, y, weight, bias, mean, rstd, float(eps))
    return y, mean, rstd


def _launch(
    step: int,
    block: int,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
) -> None:
    """Run the kernels of one step over the rows of x (M, N)."""
    affine = next((t.dtype for t in (weight, bias) if t is not None), torch.float32)
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability(x.device))
    kernel = functools.partial(compiled, x.dtype, affine, arch, block)
    out, w, b, mu, r = (0 if t is None else t.data_ptr() for t in (y, weight, bias, mean, rstd))
    size = (*x.shape, *x.stride())
    m, n = x.shape
    if step == 2:
        _run(kernel("mean_of_rows"), m, block, x.data_ptr(), mu, *size)
        _run(kernel("rstd_of_rows"), m, block, x.data_ptr(), mu, r, *size, eps)
        grid = min(m, GRID), min(-(-n // block), GRID_Y)
        _run(kernel("normalize_elements"), grid, block, x.data_ptr(), out, w, b, mu, r, *size)
    else:
        name, served = {  # the kernel, and rows a block
            1: ("thread_a_row", block),
            3: ("warp_a_row", block // WARP),
            4: ("warp_a_row_one_pass", block // WARP),
            5: ("block_a_row_one_pass", 1),
        }[step]
        _run(kernel(name), -(-m // served), block, x.data_ptr(), out, w, b, mu, r, *size, eps)


def _run(kernel: Any, grid: int | tuple[int, int], block: int, *arguments: int | float) -> None:
    """Launch on torch's stream: an int goes as 64 bits, of a size or an address, and a float as a double."""
    core = cuda_core()
    stream = core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
    core.launch(stream, _config(min(grid, GRID) if isinstance(grid, int) else grid, block), kernel, *arguments)


@functools.lru_cache(256)
def _config(grid: int | tuple[int, int], block: int) -> Any:
    return cuda_core().LaunchConfig(grid=grid, block=block)


@functools.cache
def compiled(x: torch.dtype, affine: torch.dtype, arch: str, block: int, name: str) -> Any:
    """Return a kernel of layernorm.cu by name, for types of x and the parameters, an architecture and a block size."""
    program, expressions = _program(x, affine, arch, block)
    return program.get_kernel(expressions[name])


@functools.cache
def _program(x: torch.dtype, affine: torch.dtype, arch: str, block: int) -> tuple[Any, dict[str, str]]:
    """Return all kernels for these, compiled at once because the headers take the time, and the name of each.

    Raises cuda-core's NVRTCError, with the compiler's messages for every kernel, where one does not compile.
    """
    core, source = cuda_core(), files(__package__).joinpath("layernorm.cu").read_text(encoding="utf-8")
    both, one = f"<{CPP[x]}, {CPP[affine]}, {block}>", f"<{CPP[x]}, {block}>"
    expressions = {name: name + both for name in OF_BOTH} | {name: name + one for name in OF_X}
    options = core.ProgramOptions(std="c++17", arch=arch, include_path=list(includes()), name="layernorm.cu")
    program = core.Program(source, "c++", options)
    return program.compile("cubin", name_expressions=tuple(expressions.values())), expressions


@functools.cache
def cuda_core() -> Any:
    """Return the module cuda.core, or raise ImportError, in one line."""
    for name in ("cuda.core", "cuda.core.experimental"):  # the second until 0.4
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "Program"):
            return module
    raise ImportError("cuda-core is not installed here: pip install 'verify-norm[cuda]'")


@functools.cache
def includes() -> tuple[str, ...]:
    """Return the folders with the toolkit's headers, of a wheel or an installed toolkit, or raise ImportError."""
    found = []
    for header in ("cooperative_groups.h", "cuda/std/type_traits"):  # the second, of CCCL, is included by the first
        folder = next((folder for folder in _folders() if (folder / header).is_file()), None)
        if folder is None:
            raise ImportError(f"no CUDA header {header} found: pip install 'verify-norm[cuda]', or set CUDA_HOME")
        found.append(str(folder))
    return tuple(dict.fromkeys(found))


def _folders() -> Iterator[Path]:
    """Yield where headers may be: beside NVRTC's wheel, then in a toolkit; CCCL has its own folder since CUDA 13."""
    wheels = importlib.util.find_spec("nvidia")
    near = [f for place in (wheels and wheels.submodule_search_locations) or () for f in sorted(Path(place).glob("*"))]
    nvcc = shutil.which("nvcc")
    roots = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and Path(nvcc).resolve().parents[1])
    for root in (*near, *roots, "/usr/local/cuda"):
        if root:
            yield from (Path(root, "include"), Path(root, "include", "cccl"))
