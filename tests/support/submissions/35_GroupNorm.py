"""A solution of KernelBench's problem 35."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, num_features: int, num_groups: int):
        super().__init__()
        self.gn = nn.GroupNorm(num_groups=num_groups, num_channels=num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.double().reshape(x.shape[0], self.gn.num_groups, -1)
        var, mean = torch.var_mean(groups, dim=-1, correction=0, keepdim=True)
        shape = (1, -1, *[1] * (x.dim() - 2))
        xhat = ((groups - mean) * torch.rsqrt(var + self.gn.eps)).reshape(x.shape)
        return (xhat * self.gn.weight.double().view(shape) + self.gn.bias.double().view(shape)).to(x.dtype)
