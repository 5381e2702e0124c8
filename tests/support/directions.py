"""The findings of each direction of a callable on one case, for tests of loading."""

from verify_norm.core.contract import Contract
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.search.examine import examine

VALUES = ("signature", "accuracy", "statistics")
ROWS = CaseSpec((3, 16), seed=1)
GROUPS = CaseSpec((2, 6, 4), num_groups=3)
LOOSE = Contract(expanded=True, summation="sequential")  # torch's own


def both(target, spec, op=None, bind="", **options):
    """The findings of each direction on one case, fitted."""
    found = {}
    for kernel in load_directions(target, op, bind, contract=LOOSE):
        examined = examine(kernel, kernel.fit(spec), VALUES, "cpu")
        assert examined.unsupported is None
        found[kernel.op] = {(f.check, f.output) for f in examined.findings}
        assert "accuracy" in examined.looked or found[kernel.op]
    return found
