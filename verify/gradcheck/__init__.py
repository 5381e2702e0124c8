"""Checks the gradients of any torch function."""
