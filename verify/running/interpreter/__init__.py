"""Triton's interpreter, with its conversions corrected."""
