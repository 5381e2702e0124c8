"""Runs a kernel once: guarded, poisoned, isolated."""
