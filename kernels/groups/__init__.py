"""Groups of channels: GroupNorm and its fused forms."""
