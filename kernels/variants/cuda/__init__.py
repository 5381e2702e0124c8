"""Kernels in CUDA C++, compiled by NVRTC when they are first called. Importing this loads nothing."""
