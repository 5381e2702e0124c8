"""Rows of any length: LayerNorm, RMSNorm and their fused forms."""
