"""An nn.Module as a kernel: a class or an instance, its own parameters left alone, and what cannot be one."""

from dataclasses import replace

import pytest
import torch
from directions import GROUPS, ROWS, both
from norms import Checkpointed
from torch import nn

from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.running.execute import execute


class PrivateRMSNorm(nn.Module):
    """An RMSNorm whose attribute for eps is private."""

    def __init__(self, dim):
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(dim)), 1e-3

    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self._eps)


class Fp32LayerNorm(nn.LayerNorm):
    """A LayerNorm whose constructor names no parameters."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Frozen(nn.Module):
    """BatchNorm in evaluation, which has no momentum."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((num_features,), value))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def test_a_momentum_is_asked_for_where_a_module_trains():
    (kernel,) = load_directions(Frozen, "batchnorm_fwd", taken="training=false,running")
    assert kernel.refuses(CaseSpec((4, 3, 5), training=False, momentum=0.3)) is None
    with pytest.raises(UsageError, match="no attribute for momentum"):
        load_directions(Frozen, "batchnorm_fwd", taken="running")


@pytest.mark.parametrize(
    ("target", "spec"),
    [
        (nn.LayerNorm, CaseSpec((2, 3, 8))),
        (nn.LayerNorm, CaseSpec((4, 2, 8), normalized_ndim=2, bias=False)),
        (nn.LayerNorm, CaseSpec((4, 8), weight=False, bias=False)),
        (nn.LayerNorm, CaseSpec((4, 8), weight=False, bias=True)),  # there is no such module: it is fitted
        (nn.LayerNorm(24, eps=1e-3), ROWS),
        (nn.LayerNorm((4, 6), elementwise_affine=False), ROWS),
        (nn.RMSNorm, ROWS),
        (nn.RMSNorm(16, eps=None), CaseSpec((3, 16), dtype="bfloat16", log2_scale=-8)),  # eps is that of float32
        (PrivateRMSNorm(16), ROWS),
        (Fp32LayerNorm, CaseSpec((2, 3, 8))),
        (Fp32LayerNorm, CaseSpec((4, 8), weight=False, bias=False, eps=1e-3)),
        (nn.GroupNorm, GROUPS),
        (nn.GroupNorm(2, 8, eps=1e-2), GROUPS),
        (nn.InstanceNorm2d, GROUPS),
        (nn.BatchNorm1d, CaseSpec((5, 3))),
        (nn.BatchNorm2d, CaseSpec((5, 3))),
        (nn.BatchNorm2d, CaseSpec((4, 3, 5), training=False)),
        (nn.BatchNorm2d, CaseSpec((4, 3, 5), running=False)),
        (nn.BatchNorm3d, CaseSpec((4, 3, 5, 2, 2), momentum=0.5, bias=False)),
        (nn.BatchNorm2d(7, eps=1e-3, momentum=0.3), CaseSpec((4, 3, 5))),
    ],
)
def test_torchs_own_modules_pass_in_both_directions(target, spec):
    found = both(target, spec)
    assert len(found) == 2
    assert set().union(*found.values()) == set(), found


def test_batch_norms_running_statistics_are_looked_at():
    class BatchNorm1d(nn.BatchNorm1d):
        def forward(self, x):
            y = super().forward(x)
            self.running_var.mul_(1.5)
            return y

    assert both(BatchNorm1d, CaseSpec((5, 3)))["batchnorm_fwd"] == {("accuracy", "running_var")}


def test_a_modules_own_parameters_and_mode_stay():
    module = nn.BatchNorm1d(3).eval()
    before = {name: value.clone() for name, value in module.state_dict().items() if name != "num_batches_tracked"}
    both(module, CaseSpec((5, 3)))
    assert not module.training
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("frozen", [(), ("weight",)])
@pytest.mark.parametrize("own", [False, True])
def test_a_backward_reads_the_weight_of_its_case_again(own, frozen):
    module = Checkpointed(16)
    found = both(module if own else Checkpointed, replace(ROWS, frozen=frozen), "rmsnorm")
    assert found == {"rmsnorm_fwd": set(), "rmsnorm_bwd": set()}
    assert isinstance(module.weight, nn.Parameter)
    assert bool((module.weight == 1).all())


class NoEps(nn.Module):
    def forward(self, x):
        return x


class Two(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma, self.scale = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))
        self.eps = 1e-5

    def forward(self, x):
        return x


class Folded(nn.Module):
    """A norm with a buffer whose name is also one of a weight: `read` says which of the two it takes."""

    read = "gamma"

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.gamma, self.eps = nn.Parameter(torch.ones(hidden_size)), eps
        self.register_buffer("scale", torch.ones(hidden_size))

    def forward(self, x):
        weight = getattr(self, self.read)
        return nn.functional.rms_norm(x, weight.shape, weight, self.eps)


class FoldedOnce(Folded):
    read = "scale"


def test_a_parameter_is_the_weight_and_no_buffer_is():
    assert not any(both(Folded, CaseSpec((4, 8)), "rmsnorm").values())
    assert ("accuracy", "y") in both(FoldedOnce, CaseSpec((4, 8)), "rmsnorm")["rmsnorm_fwd"]


class Raises(nn.Module):
    def __init__(self, dim):
        raise ValueError("dim is to be 4096")

    def forward(self, x):
        return x


class Asks(nn.Module):
    def __init__(self, dim, sharding):
        super().__init__()

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("target", "op", "said"),
    [
        (NoEps, "rmsnorm_fwd", "has no attribute for eps: give its value, such as --bind eps=1e-5"),
        (nn.BatchNorm1d(3, momentum=None), "batchnorm_fwd", "a momentum of None, a cumulative average"),
        (Two, "rmsnorm_fwd", "has two parameters that could be its weight: gamma and scale"),
        (Raises, "rmsnorm_fwd", "(dim=8) cannot be constructed: ValueError: dim is to be 4096"),
        (Asks, "rmsnorm_fwd", "unknown argument sharding; rmsnorm_fwd offers eps, normalized_shape, features"),
    ],
)
def test_a_module_that_cannot_be_bound_is_told_in_one_line(target, op, said):
    with pytest.raises(UsageError) as caught:
        load_directions(target, op)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_module_whose_parameters_no_call_can_replace_is_told_in_one_line():
    for target, said in (
        (torch.jit.script(PrivateRMSNorm(8)), "by torch.jit"),
        (nn.DataParallel(nn.RMSNorm(8)), "an nn.D"),
    ):
        with pytest.raises(UsageError, match=f"is {said}.*name the module inside"):
            load_directions(target, "rmsnorm_fwd", "eps=1e-3")


def test_a_module_that_makes_its_parameters_in_its_first_call_has_to_be_called_once():
    for target in (nn.LazyBatchNorm1d, nn.LazyBatchNorm1d()):
        with pytest.raises(UsageError, match="name an instance that has been called once"):
            load_directions(target, "batchnorm")
    module = nn.LazyBatchNorm1d()
    module(torch.ones(2, 3))
    assert not any(both(module, CaseSpec((5, 3))).values())


class OfANumber(nn.Module):
    """ConvNeXt's LayerNorm, which makes a tuple of its size."""

    def __init__(self, normalized_shape, eps=1e-6):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(normalized_shape)), nn.Parameter(torch.zeros(normalized_shape))
        self.eps, self.normalized_shape = eps, (normalized_shape,)

    def forward(self, x):
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class OfASum(OfANumber):
    def __init__(self, normalized_shape, eps=1e-6):
        super().__init__(normalized_shape + 0, eps)


class NoneByDefault(OfANumber):
    """Cohere's LayerNorm: its size has a default, with which it cannot be made."""

    def __init__(self, hidden_size=None, eps=1e-5, bias=False):
        super().__init__(hidden_size + 0, eps)


@pytest.mark.parametrize("target", [OfANumber, OfASum, NoneByDefault])
def test_a_module_whose_size_is_a_number_gets_one(target):
    (kernel,) = load_directions(target, "layernorm_fwd")
    assert kernel.fitted(CaseSpec((4, 2, 8), normalized_ndim=2)).normalized_ndim == 1
    assert set().union(*both(target, CaseSpec((4, 8)), "layernorm").values()) == set()


def test_a_size_of_none_stays_where_another_argument_is_the_size():
    class Sized(OfANumber):
        def __init__(self, dim, hidden_dim=None, eps=1e-6):
            assert hidden_dim is None
            super().__init__(dim + 0, eps)

    assert load_directions(Sized, "layernorm_fwd")


class Around(nn.Module):
    """A module around a norm of torch, whose eps is its own."""

    def __init__(self, normalized_shape):
        super().__init__()
        self.first, self.norm = nn.Identity(), nn.LayerNorm(normalized_shape, eps=1e-3)

    def forward(self, x):
        return self.norm(self.first(x))


class AroundTwo(Around):
    def __init__(self, normalized_shape):
        super().__init__(normalized_shape)
        self.second = nn.LayerNorm(8, eps=1e-6, elementwise_affine=False)


def test_eps_is_that_of_the_norm_inside():
    (kernel,) = load_directions(Around, "layernorm_fwd")
    assert kernel.fitted(CaseSpec((4, 8))).eps == 1e-3
    assert set().union(*both(Around, CaseSpec((4, 8)), "layernorm").values()) == set()
    with pytest.raises(UsageError, match="no attribute for eps"):
        load_directions(AroundTwo, "layernorm_fwd")


class AroundInstances(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.norm = nn.InstanceNorm2d(num_features)

    def forward(self, x):
        return self.norm(x)


def test_the_ranks_of_a_norm_inside_are_those_of_the_module():
    (kernel,) = load_directions(AroundInstances, "instancenorm_fwd")
    assert [len(kernel.fitted(CaseSpec(shape)).shape) for shape in ((2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6))] == [
        4
    ] * 3


class OfBuffers(nn.Module):
    """Its eps is a buffer, which a model in bfloat16 rounds."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.register_buffer("epsilon", torch.tensor(float(eps)))

    def forward(self, x):
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.weight.float()).to(x.dtype)


def test_a_module_is_converted_to_the_type_of_its_weight_as_a_model_is():
    spec = CaseSpec((4, 8), dtype="bfloat16", eps=1e-3, log2_scale=-8)
    found = both(OfBuffers, spec, "rmsnorm")
    assert ("accuracy", "y") in found["rmsnorm_fwd"]
    wide = both(
        OfBuffers, CaseSpec((4, 8), dtype="bfloat16", weight_dtype="float32", eps=1e-3, log2_scale=-8), "rmsnorm"
    )
    assert set().union(*wide.values()) == set()


@pytest.mark.parametrize("name", ["weight", "gamma", "running_mean"])
def test_a_weight_that_is_no_parameter_is_told(name):
    class Plain(nn.Module):
        def __init__(self, num_features, eps=1e-5, momentum=0.1):
            super().__init__()
            self.eps, self.momentum = eps, momentum
            setattr(self, name, torch.ones(num_features))

        def forward(self, x):
            return x

    op = "batchnorm_fwd" if name == "running_mean" else "rmsnorm_fwd"
    with pytest.raises(
        UsageError, match=rf"Plain\.{name} is a plain tensor, which no optimizer and no state_dict knows"
    ):
        load_directions(Plain, op)


class ZeroCentered(nn.Module):
    """A LayerNorm with a flag for the offset of its weight."""

    def __init__(self, hidden_size, eps=1e-5, zero_centered_gamma=False):
        super().__init__()
        self.weight = nn.Parameter(torch.full((hidden_size,), 1.0 - zero_centered_gamma))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma

    def forward(self, x):
        centred = x.float() - x.float().mean(-1, keepdim=True)
        xhat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return (xhat * (self.weight.float() + self.zero_centered_gamma) + self.bias.float()).to(x.dtype)


@pytest.mark.parametrize(
    ("target", "bind", "offset"),
    [
        (ZeroCentered, "", 0.0),
        (ZeroCentered, "zero_centered_gamma=True", 1.0),
        (ZeroCentered(8), "", 0.0),
        (ZeroCentered(8, zero_centered_gamma=True), "", 1.0),
    ],
)
def test_the_offset_of_a_weight_is_what_an_attribute_says(target, bind, offset):
    (kernel,) = load_directions(target, "layernorm_fwd", bind)
    spec = kernel.fit(CaseSpec((4, 8), weight_offset=1.0 - offset))
    assert (spec.weight_offset, type(spec.weight_offset)) == (offset, float)
    run = execute(kernel, make.case(spec, OPS["layernorm_fwd"], Contract()))
    assert (run.outputs["y"].ratio <= 1).all()
