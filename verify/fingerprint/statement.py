"""What a fingerprint says: one statement for each property, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import TypeAliasType

UNDECIDED = "undecided"
Tree = TypeAliasType("Tree", "int | tuple[Tree, ...]")  # a summand's index, or what is added together


@dataclass(frozen=True, slots=True)
class Statement:
    """One property of a kernel's arithmetic, as far as probing shows it.

    Parameters
    ----------
    name : the property, as "variance"; `NAMES` explains each.
    said : its value in one word or a few, as "two_pass"; "undecided" where the evidence is not enough.
    evidence : what was fed in and what came out; where undecided, why.
    confidence : 0 to 1, how likely a kernel that answers so is as said; 0 where undecided.
    dtype : the type of x that it was seen with.
    tree : the order of a sum: nested tuples of summands' indices, each tuple added before it is added to others.
    """

    name: str
    said: str
    evidence: str
    confidence: float
    dtype: str = "float32"
    tree: Tree | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All that could be said about one kernel; what is missing could not be probed.

    `runs` counts the kernel's runs that it took.
    """

    kernel: str
    op: str
    device: str
    statements: tuple[Statement, ...]
    runs: int = 0

    def of(self, name: str, dtype: str | None = None) -> Statement | None:
        """The statement of that name, for x of that type if given, else the first; None where there is none."""
        return next((s for s in self.statements if s.name == name and dtype in (None, s.dtype)), None)

    def said(self, name: str, dtype: str | None = None) -> str | None:
        """What that statement says; None where nothing is said, or it is undecided.

        >>> Fingerprint("k", "layernorm_fwd", "cpu", (Statement("divisor", "N", "...", 0.9),)).said("divisor")
        'N'
        """
        found = self.of(name, dtype)
        return None if found is None or found.said == UNDECIDED else found.said


NAMES: dict[str, str] = {
    "row accumulator": "type in which a row is summed: Σx, or Σx² in RMSNorm, or Σw·dy in a backward pass",
    "dweight accumulator": "type in which dweight is summed over the rows, inside one block of them",
    "dbias accumulator": "type in which dbias is summed over the rows, inside one block of them",
    "dweight partials": "narrowest type that a partial sum of dweight is kept in",
    "dbias partials": "narrowest type that a partial sum of dbias is kept in",
    "variance": "one_pass, two_pass, welford (or Chan's merging), shifted (by x[0]), centered (unknown how)",
    "divisor": "N or N-1",
    "eps place": "inside or outside the root, or what is the larger of both (clamped)",
    "eps value": "as given, or what takes its place",
    "statistics": "precision of the mean and rstd that a forward pass returns",
    "statistics source": "whether a backward pass uses the statistics that it is given, or has them recomputed",
    "used statistics": "precision of the statistics that a backward pass uses",
    "xhat": "whether x̂ is rounded to the type of x before it is multiplied",
    "form": "centred, (x − mean)·rstd, or expanded, x·a + b",
    "fma": "whether the last multiplication and addition are fused",
    "formula": "the one formula whose float32 evaluation gives y to the bit",
    "row order": "order of a row's sum",
    "dweight order": "order of dweight's sum over the rows",
    "dbias order": "order of dbias's sum over the rows",
    "long row sum": "sequential where thousands of a row's elements are added one after the other",
    "long dbias sum": "the same of dbias over thousands of rows",
    "long dweight sum": "the same of dweight",
    "deterministic": "the same bits at every run, or not",
    "batch invariant": "the same bits for a row whatever the other rows, or not",
}


def undecided(name: str, why: str, dtype: str = "float32") -> Statement:
    """A statement that says why nothing is said."""
    return Statement(name, UNDECIDED, why, 0.0, dtype)
