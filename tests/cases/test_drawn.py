"""Whatever a case can choose is drawn: in the corner table with the covering array, and among random cases."""

from random import Random

import pytest
from choices import axes_of, chosen, declarations, declared, default_run, fits, missing
from hypothesis.internal.conjecture.data import ConjectureData

from verify_norm.cases import strategies
from verify_norm.cases.axes import OF_FEW_SHAPES
from verify_norm.cases.exploration import whatever_is_imported
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.ops import OPS
from verify_norm.search.drawing import SMALL

RANDOM = 3000  # cases, at most
AXES = ("dtype", "data", "dy_data", "poison", "special", "special_in", "special_at", "frozen", "bias", "dresidual_out")
# Those of an activation draw what GroupNorm draws: nothing that they declare about their cases differs.
DISTINCT = {(op.inputs, op.attrs, op.view, op.quantized, op.forward is None): name for name, op in OPS.items()}
NAMES = [name for name in DISTINCT.values() if "modulate_layernorm" not in name]  # modulate_rmsnorm has its modulation


def random_cases(op):
    """Return random cases of a run on a CPU, as many as it takes to draw everything, or RANDOM; and what is missing.

    Each is drawn anew: Hypothesis's own engine also repeats numbers of earlier cases, and takes five times as long.
    """
    (elements, rows), specs, left, its_axes = SMALL["cpu"], [], declared(op), axes_of(op)
    strategy = strategies.specs(op, KERNEL_DTYPES, elements, frozen=bool(op.forward), rows=rows)
    numbers = Random(0)
    with whatever_is_imported:
        while left and len(specs) < RANDOM:
            specs.append(ConjectureData(random=numbers).draw(strategy))
            left -= chosen(specs[-1], op, its_axes)
    return specs, sorted(map(str, left))


@pytest.mark.parametrize("name", OPS)
def test_the_axes_have_every_value_of_a_choice(name):
    """But the layouts which few shapes have: the corner table does."""
    ways = {axis.name: set(axis.choices) for axis in axes_of(OPS[name])}
    for choice, values in declarations(OPS[name]).items():
        if choice in AXES or (choice.endswith("_layout") and len(values) > 1):
            words = "{1} {0}" if choice.endswith("_layout") else "{0} {1}"
            named = {
                words.format(choice.removesuffix("_layout"), value) for value in values if value not in OF_FEW_SHAPES
            }
            assert named <= ways.get(choice, named if len(values) == 1 else set()), choice


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_choice_is_in_the_corner_table_or_the_covering_array(name):
    cases = default_run(OPS[name], frozen=bool(OPS[name].forward))
    missed = missing(OPS[name], cases)
    assert [one for one in missed if not any(repr(layout) in one for layout in OF_FEW_SHAPES)] == []  # in corners


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_choice_is_among_the_random_cases(name):
    specs, left = random_cases(OPS[name])
    assert [spec for spec in specs if not fits(spec, OPS[name], SMALL["cpu"][0])] == []
    assert left == [], f"in {len(specs)} cases"
    if OPS[name].forward:  # in one case of four; of those drawn, in which a layout may not apply
        x = "residual_out" if "add_" in name else "x"
        alike = [spec for spec in specs if spec.dy_layout == getattr(spec, f"{x}_layout") != "contiguous"]
        assert len(alike) > len(specs) / 10
