"""What certificates prove, in words: one line for each theorem, whatever lengths of a row it has."""

import doctest
from dataclasses import replace

from verify_norm.core import proved
from verify_norm.core.proved import Proved, sentences

ONE = Proved(4096, "bfloat16", 1e-5, "contiguous", "every M", "NVIDIA H100", "strict", ("y", "rstd"))


def test_doctests():
    assert doctest.testmod(proved).failed == 0


def test_theorems_that_differ_in_the_length_of_a_row_alone_are_one_line():
    wide = replace(ONE, dtype="float32")
    assert sentences([ONE, replace(ONE, columns=768), wide, replace(ONE, columns=1024)]) == [
        f"proved for N = {lengths}, {dtype}, contiguous, eps = 1e-05, every M: y, rstd with contract strict, "
        "on an NVIDIA H100; sampled elsewhere"
        for lengths, dtype in (("768, 1024 and 4096", "bfloat16"), ("4096", "float32"))
    ]
    assert sentences([]) == []
