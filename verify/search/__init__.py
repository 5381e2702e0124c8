"""Runs many cases of a kernel and makes its Report."""
