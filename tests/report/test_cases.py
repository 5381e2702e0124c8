"""The words for what is in a case are all of them, and true."""

import re

import pytest
import torch

from verify_norm.cases.placement import GAP, placement
from verify_norm.core.spec import FAMILIES, LAYOUTS
from verify_norm.report.cases import DATA_WORDS, LAYOUT_WORDS

SIZES = {"B": 2, "H": 3, "S": 4, "C": 5, "new": torch.empty}


def test_every_layout_and_every_kind_of_data_has_words():
    assert (tuple(LAYOUT_WORDS), tuple(DATA_WORDS)) == (LAYOUTS, FAMILIES)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "`" in LAYOUT_WORDS[name]])
def test_the_tensor_in_the_words_has_the_layout(layout):
    (code,) = re.findall("`(.*)`", LAYOUT_WORDS[layout].replace("+ 3", f"+ {GAP}"))
    made = eval(code, SIZES)
    shape = (2, 3, 4, 5) if "H" in code else (2, 4, 5)
    assert tuple(made.shape) == shape
    assert made.stride() == placement(shape, layout).strides
