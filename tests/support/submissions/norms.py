"""Solutions of KernelBench's problems 33, 34, 36, 39 and 40, and submissions in gpu-mode's form; `Wrong…` are wrong."""

import torch
from torch import nn

EPS = 1e-5


def _normalized(x, dims, eps=EPS):
    var, mean = torch.var_mean(x.double(), dim=dims, correction=0, keepdim=True)
    return (x.double() - mean) * torch.rsqrt(var + eps), mean, var


class BatchNorm(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.bn = nn.BatchNorm2d(num_features)

    def forward(self, x):
        xhat, mean, var = _normalized(x, (0, 2, 3))
        count = x.numel() // x.shape[1]
        for running, now in ((self.bn.running_mean, mean), (self.bn.running_var, var * count / max(count - 1, 1))):
            running.copy_((0.9 * running.double() + 0.1 * now.flatten()).to(running.dtype))
        weight, bias = (p.double().view(1, -1, 1, 1) for p in (self.bn.weight, self.bn.bias))
        return (xhat * weight + bias).to(x.dtype)


class InstanceNorm(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.inorm = nn.InstanceNorm2d(num_features=num_features)

    def forward(self, x):
        return _normalized(x, (2, 3))[0].to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.num_features, self.eps = num_features, eps

    def forward(self, x):
        return (x.double() * torch.rsqrt(x.double().pow(2).mean(dim=1, keepdim=True) + self.eps)).to(x.dtype)


class WrongRMSNorm(RMSNorm):
    def forward(self, x):
        return (x.double() / (x.double().pow(2).mean(dim=1, keepdim=True).sqrt() + self.eps)).to(x.dtype)


class L2Norm(nn.Module):
    def forward(self, x):
        return (x.double() / torch.linalg.vector_norm(x.double(), dim=1, keepdim=True)).to(x.dtype)


class LayerNorm(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x):
        dims = tuple(range(x.dim() - len(self.ln.normalized_shape), x.dim()))
        return (_normalized(x, dims)[0] * self.ln.weight.double() + self.ln.bias.double()).to(x.dtype)


def custom_kernel(data):
    x, weight, eps = data
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight.double()).to(x.dtype)
