"""Proves of Triton kernels, from their TTIR alone, what a run can only sample: memory, meaning and rounding."""
