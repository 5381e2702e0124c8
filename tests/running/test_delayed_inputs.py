"""Inputs that arrive late: that they arrive. What that shows, only a GPU can tell (test_gpu)."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from fake_gpu import FakeGpu, OnGpu

from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running import delayed_inputs


def test_all_bytes_arrive_where_they_belong(device):
    sources = [torch.arange(10000, dtype=torch.int32, device=device).to(torch.uint8), torch.full((7,), 9).byte()]
    sources[1] = sources[1].to(device)
    targets = [torch.zeros(10000, dtype=torch.uint8, device=device), torch.zeros(20, dtype=torch.uint8, device=device)]
    at = [targets[0].data_ptr(), targets[1].data_ptr() + 3]
    table = torch.tensor([[s.data_ptr(), t, s.numel()] for s, t in zip(sources, at, strict=True)], device=device)
    delayed_inputs.arrive[(3, 2)](table, EARLY=False, DELAY=0, BLOCK=1024)
    assert torch.equal(targets[0], sources[0])
    assert targets[1].tolist() == [0] * 3 + [9] * 7 + [0] * 10


def test_results_are_copied_before_anything_else_runs():
    def kernel(x, *, eps):
        return {"y": x, "statistics": (x[0], None, eps)}

    x = torch.ones(2, requires_grad=True)
    read = delayed_inputs.read_at_once(kernel)(x, eps=0.5)
    with torch.no_grad():
        x.zero_()
    assert read["y"].tolist() == [1.0, 1.0]
    assert read["statistics"] == (1.0, None, 0.5)
    assert not read["y"].requires_grad
    assert make.named(delayed_inputs.read_at_once(kernel), {"x": 1, "eps": 2, "bias": 3}) == {"x": 1, "eps": 2}


def test_a_cpu_has_no_streams():
    for name in ("layernorm_bwd", "rmsnorm_fp8_fwd"):
        assert not delayed_inputs.possible(make.case(CaseSpec(shape=(3, 4)), OPS[name], Contract()))


def on_gpu(op, spec):
    """A case whose tensors say that they are on a GPU."""
    case = make.case(spec, OPS[op], Contract())
    moved = {n: v.as_subclass(OnGpu) if isinstance(v, torch.Tensor) else v for n, v in case.arguments.items()}
    return replace(case, arguments=moved)


def test_inputs_are_delayed_up_to_the_limit_of_their_storages(monkeypatch):
    case = on_gpu("layernorm_bwd", CaseSpec((3, 4), x_layout="row_strided"))
    size = sum(case.arguments[name].untyped_storage().nbytes() for name in ("dy", "x", "mean", "rstd"))
    monkeypatch.setattr(torch.version, "cuda", "12")
    for limit, possible in ((size, True), (size - 1, False)):
        monkeypatch.setattr(delayed_inputs, "LIMIT", limit)
        assert delayed_inputs.possible(case) is possible
    monkeypatch.setattr(torch.version, "cuda", None)  # a GPU of AMD
    monkeypatch.setattr(delayed_inputs, "LIMIT", size)
    assert not delayed_inputs.possible(case)


class Recorded:
    """Stands for the kernel `arrive` and for torch.cuda: it keeps what it is asked for."""

    def __init__(self, monkeypatch, capability):
        self.gpu, self.launches, self.streams, self.tables = FakeGpu(monkeypatch), [], [], []
        monkeypatch.setattr(torch.cuda, "get_device_capability", {torch.device("cpu"): capability}.__getitem__)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(delayed_inputs, "_stream", lambda device: f"stream of {device}")
        monkeypatch.setattr(delayed_inputs, "arrive", self)
        self.empty, self.tensor, self.blocks = torch.empty, torch.tensor, []
        monkeypatch.setattr(torch, "tensor", self.table)

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, args, options))

    @contextmanager
    def stream(self, stream):
        self.streams.append(stream)
        yield

    def table(self, rows, device):
        self.tables.append((rows, device))
        return self.tensor(rows, device=device)

    def block(self, count, *, dtype, device):
        self.blocks.append((self.empty(count, dtype=dtype), device))
        return self.blocks[-1][0]


@pytest.mark.parametrize(("capability", "early"), [((8, 9), False), ((9, 0), True), ((10, 0), True)])
@pytest.mark.parametrize(("op", "names"), [("layernorm_bwd", ("dy", "x", "mean", "rstd")), ("rmsnorm_fwd", ("x",))])
def test_the_last_launch_before_the_kernel_writes_the_inputs(monkeypatch, op, names, capability, early):
    case, seen = on_gpu(op, CaseSpec((3, 4), weight=op == "layernorm_bwd")), Recorded(monkeypatch, capability)
    device = torch.device("cpu")
    with delayed_inputs.arriving(case):
        assert seen.gpu.waited == ["cpu"] * 2  # for what made the inputs, and for NaN in them
        assert all(case.arguments[name].isnan().all() for name in names)
    ((grid, (table,), options),) = seen.launches
    assert grid == (delayed_inputs.PROGRAMS, len(names))
    assert options == {"EARLY": early, "DELAY": delayed_inputs.DELAY, "BLOCK": delayed_inputs.BLOCK}
    assert [row[1:] for row in table.tolist()] == [
        [case.arguments[name].untyped_storage().data_ptr(), case.arguments[name].untyped_storage().nbytes()]
        for name in names
    ]
    assert (seen.streams, [on for _, on in seen.tables]) == (["stream of cpu"], [device])
    assert seen.gpu.waited == ["cpu"] * 3


def test_the_end_of_a_kernel_that_raises_is_waited_for(monkeypatch):
    seen = Recorded(monkeypatch, (9, 0))
    with pytest.raises(ValueError, match="no"), delayed_inputs.arriving(on_gpu("rmsnorm_fwd", CaseSpec((3, 4)))):
        raise ValueError("no")
    assert seen.gpu.waited == ["cpu"] * 3


@pytest.mark.parametrize("size", [0, 5000])
def test_what_the_allocator_returns_next_is_nan(monkeypatch, size):
    """Of its small blocks, which share 2 MiB, and of its large ones."""
    seen = Recorded(monkeypatch, (9, 0))
    monkeypatch.setattr(torch, "empty", seen.block)
    delayed_inputs.poison_allocator(size, torch.device("cuda:1"))
    assert [len(block) for block, _ in seen.blocks] == [2**19] * 4 + [2**21 + 2 * size]
    assert all(block.view(torch.float16).isnan().all() for block, _ in seen.blocks)
    assert {device for _, device in seen.blocks} == {torch.device("cuda:1")}


def test_as_much_memory_is_poisoned_as_the_inputs_take(monkeypatch):
    asked = []
    monkeypatch.setattr(delayed_inputs, "poison_allocator", lambda *given: asked.append(given))
    case = on_gpu("rmsnorm_fwd", CaseSpec((3, 4), x_layout="row_strided", weight=False))
    Recorded(monkeypatch, (9, 0))
    with delayed_inputs.arriving(case):
        pass
    assert asked == [(case.arguments["x"].untyped_storage().nbytes(), torch.device("cpu"))]
