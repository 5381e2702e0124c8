"""Renders and compares results; runs nothing."""
