"""The sizes of terms: they bound the results, and the condition of a mean by hand."""

import numpy as np
import pytest

from verify_norm.validation.certify import exact, problems, sizes


@pytest.mark.slow
def test_sizes_bound_the_results():
    for problem in problems.every("groupnorm"):
        truth, mine = exact.evaluate(problem), sizes.Sizes(problem)
        for kind, size in (("values", mine.values()), ("gradients", mine.gradients())):
            for name in set(truth[kind]) & set(size):
                room = 3 if kind == "values" else 4 * np.sqrt(problem.dy.size)  # of as many terms, of either sign
                assert (np.abs(truth[kind][name].astype(float)) <= room * size[name]).all(), (problem.family, name)
