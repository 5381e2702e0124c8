"""A case in words, as reports name it, and how many there are."""

from dataclasses import fields

from verify_norm.core import ways
from verify_norm.core.spec import CaseSpec
from verify_norm.core.specials import special_words

FIELDS = {
    "log2_scale": "scale 2^{}",
    "dy_data": "dy {}",
    "dy_log2_scale": "scale of dy 2^{}",
    "weight_data": "weight {}",
}
# By other fields, or not at all: of its further runs a case does not say what they show, a finding's message does.
UNTOLD = ("shape", "dtype", "special_in", "special_at", "seed", "poison", "further", "variant", *ways.WAYS)


def case(spec: CaseSpec) -> str:
    """Return a case in a few words: its shape and type, and its fields that differ from the defaults.

    >>> case(CaseSpec((2, 3), offset=-10.0, x_layout="transposed", log2_scale=4))
    '2×3 float32, offset -10.0, scale 2^4, x transposed'
    >>> case(CaseSpec((2, 3), special="nan", special_in="weight", dy_data="zero_rows"))
    '2×3 float32, dy zero rows, nan in the first element of weight'
    """
    words = [f"{'×'.join(map(str, spec.shape))} {spec.dtype}"]
    for one in fields(spec):
        value = getattr(spec, one.name)
        if one.name in UNTOLD or value == one.default:
            continue
        if one.name.endswith("_layout"):
            words.append(f"{one.name.removesuffix('_layout')} {value}")
        elif one.name == "frozen":
            words.append(f"{' and '.join(value)} frozen")
        elif one.name == "data":
            words.append(str(value))
        elif one.name == "special":
            words.append(special_words(spec))
        else:
            shown = value.replace("_", " ") if isinstance(value, str) else value
            words.append(FIELDS.get(one.name, one.name.replace("_", " ") + " {}").format(shown))
    return ", ".join(words)


def count(number: int, noun: str) -> str:
    """Return a number of things, such as "1 case" or "2,000 cases"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def told_apart(off: float, allowed: float, digits: int = 3) -> tuple[str, str]:
    """Return a deviation and what is allowed, in so many digits that they differ.

    >>> told_apart(0.5, 0.25), told_apart(0.5001, 0.5)
    (('0.5', '0.25'), ('0.5001', '0.5'))
    """
    enough = next((n for n in range(digits, 17) if f"{off:.{n}g}" != f"{allowed:.{n}g}"), 17)
    return f"{off:.{enough}g}", f"{allowed:.{enough}g}"
