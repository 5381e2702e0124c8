"""The oracle: float64 references with manual gradients, and bounds on the rounding errors of correct kernels.

It imports NumPy alone.

- Operators: `layernorm`, `rmsnorm`, `groupnorm`, `batchnorm`, `instancenorm`, `l2norm`, `partial_rmsnorm`,
  `add_layernorm`, `add_rmsnorm`, `quantized`. Each derives its forward and its backward.
- What they share: `view` says how an operator sees its arrays, `norm` is the algebra of a normalized x and its
  gradient, `residual_sum` that of a fused addition, `fixed` that of given statistics, `activation` has the activations.
- Chains: `bases` lists the norms that a chain may have, `stages` what may stand before or behind them, and `chain`
  makes an operator of them. `operations` has operators that users write as a function in array operations.
- Error analysis: `arithmetic` has what a kernel's contract says, in numbers. `statistics_rounding` bounds the errors of
  the mean and rstd, `rounding` those of the outputs, in the worst case. `probable` has the errors of sums in random
  data, which are smaller.
- Derivatives of them: `jvp` is the derivative of each forward along a direction, `double_backward` the gradients of
  each backward.

Names in the error analysis:

- delta: a bound on the absolute error of a value, |computed − exact|, before its last rounding.
- unit: a relative error, of the magnitude that it is multiplied by.
- lost: a bound on the error of a gradient that arrives, of each element.
- off: a bound on the error of x itself, of each element, where a stage computes x; None where x is given.
- size, magnitude: absolute values, of exact values or of what a kernel may compute, that relative errors multiply.
- largest: a bound on a value that must not overflow.
- most: an upper bound on another quantity of the formula, with its error.
"""
