"""The laws that hold between runs of a kernel, which several checks use."""
