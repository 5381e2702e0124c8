"""The oracle: float64 references with manual gradients, and bounds on the rounding errors of correct kernels.

It imports NumPy alone. One module per operator holds the derivation, forward above backward. `norm` is the algebra that
they share, `view` how they see their arrays, `arithmetic`, `statistics_rounding` and `rounding` the error analysis.
`jvp` and `double_backward` are of second order.
"""
