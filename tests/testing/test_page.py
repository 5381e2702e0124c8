"""docs/how-to/assert-close.md: its code runs, and the failure that it shows is what the code prints."""

import re
from pathlib import Path

import pytest

from verify_norm import FindingsError

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "assert-close.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def test_" in block]
(MESSAGE,) = re.findall(r"```text title=\"failure.txt\"\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["assert_norm_close", "assert_norm_gradients_close", "bound"])
def test_its_tests_pass(block):
    names = {}
    exec(block, names)
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()


def test_its_failure_is_the_real_one():
    names = {}
    exec(BLOCKS[0].replace(', contract="llama"', ""), names)
    with pytest.raises(FindingsError) as raised:
        names["test_rms_norm"]()
    assert str(raised.value) == MESSAGE.rstrip()
