"""Turns a user's name into a Kernel that can be called."""
