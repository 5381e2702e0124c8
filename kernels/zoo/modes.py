"""Forward passes that take another path in one of torch's modes, and are wrong there alone."""

import torch
from torch import nn

from verify_norm.kernels.zoo.eager import layernorm, rmsnorm


def _narrow(x, weight, eps):
    """RMSNorm with x̂ rounded to the type of x, as it is kept for the backward."""
    rstd = rmsnorm(x, weight, eps)[1]
    xhat = (x.float() * rstd.reshape(*x.shape[:-1], 1)).to(x.dtype).float()
    return (xhat if weight is None else xhat * weight.float()).to(x.dtype), rstd


def trained(x, weight, eps):
    """Where x requires a gradient, y is made of the x̂ that is kept for the backward."""
    return (_narrow if x.requires_grad else rmsnorm)(x, weight, eps)


def tuned(x, weight, eps):
    """The same where the weight alone is trained."""
    return (_narrow if weight is not None and weight.requires_grad and not x.requires_grad else rmsnorm)(x, weight, eps)


def served(x, weight, eps):
    """The same in inference mode."""
    return (_narrow if torch.is_inference_mode_enabled() else rmsnorm)(x, weight, eps)


def reused(x, weight, eps):
    """Without gradients nobody needs x again, so y is written over it."""
    y, rstd = rmsnorm(x, weight, eps)
    return y if torch.is_grad_enabled() else x.copy_(y), rstd


_kept: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}


def versioned(x, weight, eps):
    """For a backward that recomputes y, rstd is kept by x and its version counter, which inference tensors lack."""
    y, rstd = rmsnorm(x, weight, eps)
    _kept.clear()
    _kept[id(x)] = x._version, x, rstd
    return y, rstd


def cast(x, weight, bias, eps):
    """The mean is a matrix product with 1/n, which autocast computes in bfloat16."""
    n = x.shape[-1]
    ones = torch.full((n, 1), 1.0, device=x.device)
    return layernorm(x, weight, bias, eps, (x.float() @ ones).float() / n)


def cast_into(x, weight, eps):
    """Sums by a matrix product are copied to a float32 buffer by index, which takes no other type."""
    n, r = x.shape[-1], x.float()
    sums = (r * r).reshape(-1, n) @ torch.ones(n, 1, device=x.device)
    total = torch.zeros(sums.shape, device=x.device)
    total.index_copy_(0, torch.arange(len(sums), device=x.device), sums)
    rstd = torch.rsqrt(total / n + eps)
    y = r * rstd.reshape(*x.shape[:-1], 1)
    return (y if weight is None else y * weight.float()).to(x.dtype), rstd.flatten()


def compiled(x, weight, eps):
    """Under torch.compile another path, whose eps is a constant."""
    return rmsnorm(x, weight, 1e-6 if torch.compiler.is_compiling() else eps)


class Evaluated(nn.Module):
    """In evaluation the product with the weight is in the type of x."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x):
        """Return y."""
        return (rmsnorm if self.training else _narrow)(x, self.weight, self.eps)[0]


def lowered(x, weight, eps):
    """Where torch may multiply matrices in TF32, x is taken in bfloat16."""
    exact = torch.get_float32_matmul_precision() == "highest"
    y, rstd = rmsnorm(x if exact else x.bfloat16(), weight, eps)
    return y.to(x.dtype), rstd


def default_type(x, weight, eps):
    """A buffer of torch's default type is written as one of float32, as through a pointer."""
    y, rstd = rmsnorm(x, weight, eps)
    held = torch.zeros(rstd.shape, device=x.device)
    held.view(torch.float32)[: len(rstd)] = rstd
    return y, held.float()


def recording_again(x, weight, eps):
    """Gradients are not recorded within, and recorded afterwards, as usual: its caller may have switched that off."""
    torch.set_grad_enabled(False)
    result = rmsnorm(x, weight, eps)
    torch.set_grad_enabled(True)
    return result


class Untracked(nn.Module):
    """BatchNorm that evaluates with mean 0 and variance 1 where it keeps no running statistics."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(num_features)), nn.Parameter(torch.zeros(num_features))
        self.eps, self.momentum = eps, 0.1

    def forward(self, x):
        """Return y."""
        rows = x.float().transpose(0, 1).flatten(1)
        mean, var = rows.mean(1), rows.var(1, correction=0)
        if not self.training:
            mean, var = torch.zeros_like(mean), torch.ones_like(var)
        rstd = torch.rsqrt(var + self.eps)
        of_channels = (t.float().reshape(-1, *[1] * (x.dim() - 2)) for t in (mean, rstd, self.weight, self.bias))
        mean, rstd, weight, bias = of_channels
        return ((x.float() - mean) * rstd * weight + bias).to(x.dtype)


class Batched(torch.autograd.Function):
    """Its rule for vmap takes the first sample's weight for all."""

    @staticmethod
    def forward(x, weight, eps):
        """Return y and rstd."""
        return rmsnorm(x, weight, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save nothing: this is a forward alone."""

    @staticmethod
    def vmap(info, in_dims, x, weight, eps):
        """Return y and rstd of a batch, and where it is in them."""
        x = x if in_dims[0] is None else x.movedim(in_dims[0], 0)
        weight = weight if in_dims[1] is None else weight.select(in_dims[1], 0)
        y, rstd = rmsnorm(x, weight, eps)
        return (y, rstd.reshape(x.shape[0], -1)), (0, 0)


def batched(x, weight, eps):
    """Under vmap over the weights, all samples have the weight of the first."""
    return Batched.apply(x, weight, eps)
