"""The constants: which fields a kernel has, and what a held group's blocks lack."""

from dataclasses import FrozenInstanceError, fields

import pytest

from verify_norm.kernels.groups import constants
from verify_norm.kernels.groups.chain import KERNELS


@pytest.mark.slow
@pytest.mark.parametrize(("even", "short"), [(True, ""), (False, "positions")])
def test_a_short_block_of_a_held_group_lacks_positions(even, short):
    held = constants.Held(None, "positions", 8, False, True, even, 4, 64, 1, 2)
    assert (short, "") == (held.SHORT, held.EVICT)
    with pytest.raises(FrozenInstanceError):
        held.EVEN = not even


@pytest.mark.parametrize("name", KERNELS)
def test_every_field_is_explained(name):
    _, form = KERNELS[name]
    said = [line.partition(" : ")[0] for line in constants.__doc__.splitlines() if " : " in line]
    explained = {word for names in said for word in names.split(", ")}
    assert {field.name for field in fields(form)} <= explained
