"""Turns a spec into arguments, truth and bound, and says which specs exist."""
