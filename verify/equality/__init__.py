"""Compares two kernels of one operator bit for bit, and says since which size and in which arithmetic they differ."""
