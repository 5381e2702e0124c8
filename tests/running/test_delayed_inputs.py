"""Inputs that arrive late: that they arrive. What that shows, only a GPU can tell (test_gpu)."""

import torch

from verify_norm.cases import make
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract
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


def test_a_cpu_has_no_streams():
    for name in ("layernorm_bwd", "rmsnorm_fp8_fwd"):
        assert not delayed_inputs.possible(make.case(CaseSpec(shape=(3, 4)), OPS[name], Contract()))
