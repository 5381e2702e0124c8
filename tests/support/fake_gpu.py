"""A small fake of a GPU: tensors of a CPU that say they are on one, and what torch.cuda tells and is asked."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from verify_norm.cases import make
from verify_norm.core.run import Case


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


class Graph:
    """A CUDA graph: it keeps the operations of a capture, and runs them again on the same memory."""

    def __init__(self):
        self.recorded = []

    def replay(self):
        for function, args, kwargs, returned in self.recorded:
            again = function(*args, **kwargs)
            if isinstance(returned, torch.Tensor) and returned.numel() and again is not returned:
                returned.copy_(again)


class _Recorded(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(function):
            raise RuntimeError("operation not permitted when stream is capturing")
        returned = function(*args, **(kwargs or {}))
        self.graph.recorded.append((function, args, kwargs or {}, returned))
        return returned


class Stream:
    """A stream of a device that does nothing of its own."""

    def __init__(self, index=0):
        self.index = index

    def wait_stream(self, other):
        pass


class FakeGpu:
    """Stands for torch.cuda: which device is current, which were waited for, and whether the context is dead."""

    def __init__(self, monkeypatch):
        self.current, self.waited, self.emptied, self.dead = 0, [], 0, False
        self.streams, self.pools, self.ended = [], 0, []
        self.patch = monkeypatch.setattr
        for name in ("device", "stream", "graph", "synchronize", "empty_cache", "current_device", "set_device"):
            self.patch(torch.cuda, name, getattr(self, name))
        self.patch(torch.cuda, "CUDAGraph", Graph)
        self.patch(torch.cuda, "graph_pool_handle", self.pool)
        self.patch(torch.cuda, "set_stream", self.streams.append)
        self.patch(torch._C, "_cuda_endAllocateToPool", lambda *of: self.ended.append(("end", *of)), raising=False)
        self.patch(torch._C, "_cuda_releasePool", lambda *of: self.ended.append(("release", *of)), raising=False)
        self.patch(torch.cuda, "Stream", lambda *device: Stream(self.current))
        self.patch(torch.cuda, "current_stream", lambda *device: Stream(self.current))
        self.patch(torch.cuda, "get_device_capability", lambda device: (8, 0))
        self.keeps(0)

    def keeps(self, reserved, allocated=0):
        """Let torch hold so many bytes of the GPU, and use so many of them."""
        held = {"reserved_bytes": reserved, "allocated_bytes": allocated}
        stats = {name: {"all": {"current": count}} for name, count in held.items()}
        self.patch(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)

    @contextmanager
    def device(self, device):
        before, self.current = self.current, torch.device(device).index or 0
        yield
        self.current = before

    @contextmanager
    def stream(self, stream):
        yield

    def pool(self):
        self.pools += 1
        return (0, self.pools)

    def graph(self, graph, pool=None, *, stream=None):
        assert stream is not None, "torch captures on a stream of the device that was current at the first capture"
        assert stream.index == self.current
        return _Recorded(graph)

    def synchronize(self, device=None):
        self.waited.append(str(device))
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def empty_cache(self):
        self.emptied += 1

    def current_device(self):
        return self.current

    def set_device(self, device):
        self.current = device

    def holds_cases(self, device):
        """Let cases of this device lie in the memory of the CPU."""
        on_cpu = make.case
        self.patch(make, "case", lambda spec, op, contract, _: on_cpu(spec, op, contract))
        self.patch(Case, "device", property(lambda case: device))
