"""Runs a kernel on all of a space that can be counted: every row of two bfloat16 values, every x, every eps."""
