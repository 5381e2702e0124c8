"""Operators that users write themselves: a function in array operations, its gradient, and the bound of both."""
