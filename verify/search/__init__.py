"""Runs many cases of a kernel and makes its Report."""

PRELOAD = "verify_norm.search.preload"  # what the server of processes that examine cases imports
