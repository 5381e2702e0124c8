"""InstanceNorm is GroupNorm with a group for every channel: the same bits, and what stands for a group of one value."""

import pytest
import torch

from verify_norm.kernels.groupnorm import groupnorm_bwd, groupnorm_fwd
from verify_norm.kernels.groups import plan as group_plan
from verify_norm.kernels.instancenorm import instancenorm_bwd, instancenorm_fwd
from verify_norm.kernels.launch import H200

EPS = 1e-5


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_the_bits_of_groupnorm(norms, device, layout):
    x, dy = (norms.draw((2, 6, 4, 5), torch.float32, device, seed=s, layout=layout) for s in (1, 2))
    w, b = (norms.draw((6,), torch.float32, device, seed=s, mean=0.5) for s in (3, 4))
    got, want = instancenorm_fwd(x, w, b, EPS), groupnorm_fwd(x, w, b, 6, EPS)
    got += instancenorm_bwd(dy, x, w, b, *got[1:], EPS)
    want += groupnorm_bwd(dy, x, w, b, *want[1:], 6, EPS)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    exact = torch.nn.functional.instance_norm(x.double(), weight=w.double(), bias=b.double(), eps=EPS)
    norms.close("y", got[0], exact, 2.0**-19 * exact.abs().max())


def test_a_channel_of_one_value_is_its_bias(device):
    x, w, b = (torch.tensor(t, device=device) for t in ([[2.0, 3.0]], [5.0, 7.0], [1.0, -1.0]))
    y, mean, rstd = instancenorm_fwd(x, w, b, EPS)
    assert (y.tolist(), mean.tolist()) == ([[1.0, -1.0]], x.tolist())
    dx, dw, db = instancenorm_bwd(torch.ones_like(x), x, w, b, mean, rstd, EPS)
    assert (dx.tolist(), dw.tolist(), db.tolist()) == ([[0.0, 0.0]], [0.0, 0.0], [1.0, 1.0])


def test_thin_groups_of_adjacent_channels_are_loaded_by_lines():
    """A program that held one channel of channels_last would read 2 of 32 bytes."""
    held = group_plan.plan((64, 3136, 64), "positions", 8, 2, 1, H200)
    assert (held.members, held.constants["BLOCK_C"]) == (0, 1)
    assert group_plan.plan((64, 3136, 64), "channels", 8, 2, 1, H200).groups == 64
    assert group_plan.plan((64, 49, 64), "channels", 8, 2, 1, H200).constants["BLOCK_G"] == 32
    assert group_plan.plan((64, 3136, 4), "channels", 8, 2, 1, H200).groups > 1


@pytest.mark.parametrize(
    ("x", "message"), [(torch.zeros(4), "at least 2 dimensions"), (torch.zeros(2, 0, 3), "0 channels")]
)
def test_refusals(x, message):
    with pytest.raises(ValueError, match=message):
        instancenorm_fwd(x, None, None, EPS)
