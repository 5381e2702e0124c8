"""Scores an untrusted kernel, for loops of agents: whether it is correct, and how fast."""
