"""The steps of the derivation: what an operation on two values makes, by what they are, and how deep its sums are."""

from typing import Any, NamedTuple

STEPS = """add X0 RESIDUAL X|X X ΣX|ΣX X ΣX|ΣX ΣX ΣX|ΣXC² ΣXC² ΣXC²|VAR EPS VAR+EPS|W OFFSET W+|W 1 W+|W·XHAT B Y
add G G ΣG|ΣG G ΣG|ΣG ΣG ΣG|ΣGX ΣGX ΣGX|X·C1 C2 C2+X·C1|DX DH DX+DH|DY DY ΣDY|ΣDY DY ΣDY|ΣDY ΣDY ΣDY|ΣDY·X ΣDY·X ΣDY·X
sub X MEAN XC|G C2+X·C1 G−C2−X·C1|G C2 G−C2|G−C2 X·C1 G−C2−X·C1|G X·C1 G−X·C1|G−X·C1 C2 G−C2−X·C1
mul ΣX 1/N MEAN|XC XC ΣXC²|ΣXC² 1/N VAR|XC RSTD XHAT|XHAT W W·XHAT|XHAT W+ W·XHAT|W RSTD W·RSTD|W+ RSTD W·RSTD|DY W G
mul DY XHAT ΣDY·X|XC W·RSTD W·XHAT|DY W+ G|G XHAT ΣGX|ΣGX 1/N C1|ΣG 1/N C2|XHAT C1 X·C1|RSTD G−C2−X·C1 DX|RSTD G−X·C1 DX
div ΣX N MEAN|1 N 1/N|ΣXC² N VAR|1 STD RSTD|XC STD XHAT|ΣGX N C1|ΣG N C2
sqrt VAR+EPS VAR+EPS STD
rsqrt VAR+EPS VAR+EPS RSTD"""
UNCENTRED = "\nmul X X ΣXC²|X RSTD XHAT|X W·RSTD W·XHAT\ndiv X STD XHAT"
KEEPS = ("MEAN", "VAR", "VAR+EPS", "C1", "C2")  # has the depth of its sum
SUMS = {"MEAN": False, "VAR": True, "C1": True, "C2": False, "ΣDY·X": True, "ΣDY": False}  # of products or of terms


class Value(NamedTuple):
    """A value of programs: numbers, or elements of the field, −1 where they are garbage.

    The label says what a float is, with "~" if it is rounded, "0" for zeros and "?" for what no step makes; or of a
    pointer, such as "&3", the buffer. The depth is that of a float's sum.
    """

    v: Any
    label: str = ""
    depth: int = 0


def joined(labels: set[str]) -> str:
    """Return the label of what is one or the other: a 0 takes that of the other, and a term that of its sum."""
    longest = max(labels - {"0"}, key=len, default="0")
    return longest if labels <= {"0", longest, longest.removeprefix("Σ")} else "?"
