"""The names that other people use, beside our own."""

from verify_norm.loading.argument_names import ALIASES


def test_no_alias_is_a_name_of_ours():
    """But x, a sum where a backward has no x; scale, a weight where nothing is quantized; y_scale; dresidual."""
    theirs = {name for names in ALIASES.values() for name in names}
    assert theirs & set(ALIASES) == {"x", "scale", "y_scale", "dresidual"}
