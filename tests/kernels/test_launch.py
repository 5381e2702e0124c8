"""How a kernel is compiled for all sizes, and how one that is compiled is launched again."""

from types import SimpleNamespace

import pytest
import torch
import triton.language as tl

from verify_norm.kernels import launch

GPU = torch.device("cuda", 0)


def test_the_types_of_numbers_become_annotations():
    @launch.jit(int64="M N", float32="eps")
    def kernel(X, M, N, eps, K: tl.constexpr):
        pass

    types = {"M": tl.int64, "N": tl.int64, "eps": tl.float32, "K": tl.constexpr}
    assert kernel.fn.__annotations__ == types
    with pytest.raises(TypeError, match="kernel has no parameter P, Q"):
        launch.jit(kernel.fn, int32="Q P")


def test_a_compiled_kernel_is_launched_as_triton_launches_it(monkeypatch):
    calls, current = [], [1]

    class Kernel:
        def __getitem__(self, grid):
            def first(*arguments, **constants):
                calls.append(("first", current[0], grid, arguments, constants))
                run = lambda *all: calls.append(("run", current[0], *all))  # noqa: E731
                return SimpleNamespace(run=run, function="function", packed_metadata="metadata")

            return first

    class Device:
        def __init__(self, index):
            self.index, self.before = index, current[0]

        def __enter__(self):
            current[0] = self.index

        def __exit__(self, *error):
            current[0] = self.before

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: f"stream of {index}", raising=False)
    plan = launch.Plan(Kernel(), "K", GPU, options={"num_warps": 2})
    plan.launch(3, "x", 7)
    plan.launch(5, "y", 8)
    assert calls == [
        ("first", 0, (3,), ("x", 7, "K"), {"num_warps": 2}),
        ("run", 0, 5, 1, 1, "stream of 0", "function", "metadata", None, None, None, "y", 8, None),
    ]
    assert current == [1]


def test_launching_needs_no_more_python_than_triton_has(monkeypatch):
    """Above a function in C there is only what allocates scratch memory, in the version whose arguments are known."""
    names = ("launch", "launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")
    run = SimpleNamespace(**dict(zip(names, ("in C", "grid", "pdl", 0, 0), strict=True)))
    compiled = SimpleNamespace(run=run, function="function", packed_metadata="metadata")
    monkeypatch.setattr(launch.triton, "__version__", "3.6.0")
    options = ("function", "grid", "pdl", None, None, "metadata", None, None, None)
    assert launch._launcher(compiled) == ("in C", options)
    run.global_scratch_size = 128
    assert launch._launcher(compiled) == (run, ("function", "metadata", None, None, None))
    run.global_scratch_size = 0
    monkeypatch.setattr(launch.triton, "__version__", "3.7.1")
    assert launch._launcher(compiled)[0] is run
