"""dropout_add_layernorm and dropout_add_rmsnorm in torch, right and wrong by the name of the mistake, for tests."""

import torch


def forward(how="", centred=True):
    """The forward of a fused addition behind a dropout, float32 inside."""

    def dropped(x, mask, p):
        x = x.float()
        if how == "a reciprocal from Python":
            return torch.where(mask, x * (1.0 / (1.0 - p)), 0.0)
        if how == "a product with the mask":
            return x * mask * (1.0 / (1.0 - p))
        if how == "p in float32":
            return torch.where(mask, x / (1.0 - torch.tensor(p)), 0.0)
        if how == "float64":
            return torch.where(mask, x.double() / (1.0 - p), 0.0)
        if how == "the mask is ignored":
            return x / (1.0 - p)
        if how == "not scaled":
            return torch.where(mask, x, 0.0)
        if how == "inverted":
            return torch.where(mask, 0.0, x / (1.0 - p))
        if how == "the scale in bfloat16":
            return torch.where(mask, x * torch.tensor(1.0 / (1.0 - p)).bfloat16().float(), 0.0)
        if how == "p for 1 - p":
            return torch.where(mask, x / max(p, 2.0**-10), 0.0)
        if how == "the mask of the first row":
            return torch.where(mask.reshape(-1, mask.shape[-1])[:1].reshape(-1), x / (1.0 - p), 0.0)
        return torch.where(mask, x / (1.0 - p), 0.0)

    def fwd(x, residual, mask, weight, eps, normalized_shape, dropout_p, bias=None, weight_offset=0.0):
        h = dropped(x, mask, dropout_p) + residual.float()
        if how == "the sum is dropped":
            h = torch.where(mask, (x.float() + residual.float()) / (1.0 - dropout_p), 0.0)
        rows = h.reshape(-1, torch.Size(normalized_shape).numel())
        of = x.float().reshape(rows.shape) if how == "statistics of x" else rows
        mean = of.mean(1, keepdim=True) if centred else torch.zeros_like(rows[:, :1])
        rstd = ((of - mean).square().mean(1, keepdim=True) + eps).rsqrt()
        y = ((rows - mean) * rstd).reshape(x.shape)
        y = y if weight is None else y * (weight.float() + weight_offset)
        y = (y if bias is None else y + bias.float()).to(x.dtype)
        saved = (mean[:, 0].float(), rstd[:, 0].float()) if centred else (rstd[:, 0].float(),)
        return (y, h.to(residual.dtype), *saved)

    return fwd


def backward(how="", centred=True):
    """Its backward."""

    def run(dy, dresidual_out, residual_out, mask, weight, rstd, normalized_shape, dropout_p, **others):
        shape, scale = residual_out.shape, 1.0 / (1.0 - dropout_p)
        rows = residual_out.float().reshape(len(rstd), -1)
        d = dy.float().reshape(rows.shape)
        mean = others["mean"][:, None] if centred else 0.0
        xhat, r = (rows - mean) * rstd[:, None], rstd[:, None]
        g = d if weight is None else d * (weight.float() + others.get("weight_offset", 0.0)).reshape(-1)
        c2 = g.mean(1, keepdim=True) if centred else 0.0
        dh = (r * (g - c2 - xhat * (g * xhat).mean(1, keepdim=True))).reshape(shape)
        passed = 0.0 if dresidual_out is None else dresidual_out.float()
        dresidual = dh if how == "dresidual_out is lost" else dh + passed
        dx = torch.where(mask, dresidual * scale, 0.0)
        if how == "a quotient":
            dx = torch.where(mask, dresidual / (1.0 - torch.tensor(dropout_p)), 0.0)
        if how == "a product with the mask":
            dx = dresidual * mask * scale
        if how == "dx is not dropped":
            dx = dresidual
        if how == "dx is not scaled":
            dx = torch.where(mask, dresidual, 0.0)
        if how == "dresidual is dropped":
            dresidual = dx
        if how == "dresidual_out is not dropped":
            dx = torch.where(mask, dh * scale, 0.0) + passed
        if how == "dy is dropped":
            dx = dresidual = backward("", centred)(
                dy=torch.where(mask, dy * scale, 0.0).to(dy.dtype), dresidual_out=dresidual_out, mask=mask | True,
                residual_out=residual_out, weight=weight, rstd=rstd, normalized_shape=normalized_shape, dropout_p=0.0,
                **others,
            )[1]  # fmt: skip
        if how == "dx of the rounded dresidual":
            dx = torch.where(mask, dresidual.to(dy.dtype).float() * scale, 0.0)
        dw = None if weight is None else (d * xhat).sum(0).reshape(normalized_shape).to(weight.dtype)
        made = (dx.to(dy.dtype), dresidual.to(dy.dtype), dw)
        bias = others.get("bias")
        db = None if bias is None else d.sum(0).reshape(normalized_shape).to(bias.dtype)
        return (*made, db) if centred else made

    return run
