"""Scores a kernel that nobody trusts, for loops of agents: whether it is correct, and how fast."""
