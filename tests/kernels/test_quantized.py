"""LayerNorm and RMSNorm into 8 bits: held to the truth, refused what they cannot do, whole under torch.compile."""

from dataclasses import replace

import pytest
import torch
from checking import ONE_WAY

from verify_norm.core.spec import FURTHER, LAWS, CaseSpec
from verify_norm.kernels import layernorm, quantized, rmsnorm
from verify_norm.loading.registry import load

NAMES = [f"{norm}_fwd_{kind}" for norm in ("layernorm", "rmsnorm") for kind in ("e4m3fn", "e5m2")]
MANY = tuple(name for name in FURTHER if name not in ("effects", "modes"))  # which hang on no data
VALUES = ("memory", "distribution", "degenerate", *LAWS)  # what hangs on data, where no other program is launched
SPECS = (
    CaseSpec((3, 40), scale=300.0, seed=1),
    CaseSpec((2, 3, 1030), dtype="bfloat16", scale=300.0, seed=2, further=MANY, **ONE_WAY),  # a chunk and a little
    CaseSpec((5, 64), dtype="float16", scale=1e6, bias=False, seed=3, further=MANY, **ONE_WAY),
    CaseSpec(
        (9, 7), weight=False, scale=2.0**-14, seed=4, further=MANY, **ONE_WAY
    ),  # rows beyond the last tile's are no rows
    CaseSpec((3, 50), data="heavy", scale=100.0, x_layout="transposed", seed=5, further=VALUES),
    CaseSpec((1, 33000), dtype="bfloat16", scale=100.0, seed=6, further=MANY, **ONE_WAY),  # longer than registers hold
    CaseSpec((0, 8), seed=7, further=VALUES),
    CaseSpec((4, 30), special="nan", seed=8, further=VALUES),
)


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.shape}-{spec.scale:g}")
def test_every_check(name, spec, findings):
    assert findings(load(name), [spec if "layernorm" in name else replace(spec, bias=True)]) == {}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_of_scale_one_it_is_the_norm_rounded(norms, device, dtype):
    x, w = norms.draw((6, 100), torch.float32, device, seed=1), norms.draw((100,), torch.float32, device, seed=2)
    one = torch.ones(1, device=device)
    y, mean, rstd = layernorm.layernorm_fwd(x, w, None, 1e-5)
    fused = quantized.quantized(x, w, None, one, 1e-5, quantized.Kind(dtype), None)
    assert torch.equal(fused[0].float(), y.to(dtype).float())
    assert torch.equal(fused[1], y.abs().max().reshape(1))
    assert torch.equal(fused[2], mean)
    assert torch.equal(fused[3], rstd)
    y, rstd = rmsnorm.rmsnorm_fwd(x, w, 1e-5, 1.0)
    fused = quantized.quantized(x, w, None, one, 1e-5, quantized.Kind(dtype, False, 1.0), None)
    assert torch.equal(fused[0].float(), y.to(dtype).float())
    assert torch.equal(fused[1], y.abs().max().reshape(1))
    assert torch.equal(fused[2], rstd)


@pytest.mark.parametrize("place", [0, 8191, 8192, 20000])
def test_amax_is_the_largest_of_all_tiles(device, place):
    most = torch.ones(20001, device=device)
    most[place] = 7.0
    amax = torch.full((1,), torch.nan, device=device)
    for count, largest in ((place + 1, 7.0), (max(place, 1), 1.0 if place else 7.0)):
        quantized.largest_plan(most.device).launch(1, most, amax, count)
        assert amax.item() == largest


@pytest.mark.parametrize(
    "scale", [torch.ones(2), torch.ones(1, dtype=torch.float64), torch.ones(1, device="meta")], ids=str
)
def test_a_scale_that_is_none_is_refused(device, scale):
    x = torch.ones(2, 8, device=device)
    scale = scale if scale.is_meta else scale.to(device)
    with pytest.raises(ValueError, match="scale must be one float32 on"):
        quantized.rmsnorm_fwd_e4m3fn(x, None, scale, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_whole_under_a_compiler(norms, device, name):
    x, w = norms.draw((4, 20), torch.float32, device, seed=1), norms.draw((20,), torch.float32, device, seed=2)
    scale, function = torch.full((1,), 300.0, device=device), getattr(quantized, name)

    def call(x, w, scale):
        return function(x, w, None, scale, 1e-5) if "layernorm" in name else function(x, w, scale, 1e-5)

    torch._dynamo.reset()
    compiled = torch.compile(call, backend="eager", fullgraph=True)(x, w, scale)
    for got, want in zip(compiled, call(x, w, scale), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got.float(), want.float())
