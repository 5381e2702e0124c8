"""Tells whether a callable whose name says no direction has a backward at all."""

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import adapt, gradients
from verify_norm.running.runners import runner
from verify_norm.search import PRELOAD
from verify_norm.search.examine import examine_in

SHAPES = {"rows": ((4, 8), (3, 16)), "groups": ((2, 4, 8), (3, 4, 6)), "channels": ((2, 4, 8), (3, 4, 6))}  # small
TIMEOUT = 20.0  # seconds for a case, which may compile
FORWARD_ONLY = {  # what is said of a call without a gradient: what that means
    gradients.UNRECORDED: "autograd does not know how its y is made",
    f"returns no y, {gradients.GIVEN}": "it returns no y",
    "leaf Variable that requires grad": "it overwrites an input that needs a gradient",  # torch's words
    adapt.WRITES: "it writes into its arguments",
}


def forward_only(kernel: Kernel, settings: Settings) -> str:
    """Return why a backward that torch's autograd would make does not exist, as two small cases tell; "" if it may."""
    op = OPS[kernel.op]
    if not kernel.autograd or not kernel.dtypes:
        return ""
    where = runner(kernel, settings.device, isolate=settings.isolate, preload=PRELOAD, untrusted=settings.untrusted)
    try:
        for shape in SHAPES[op.view]:
            groups = 2 if "num_groups" in op.attrs else None
            case = kernel.fitted(CaseSpec(shape, dtype=kernel.dtypes[-1], num_groups=groups))
            examined = examine_in(where, case, ("signature",), settings.timeout or TIMEOUT)
            said = [examined.unsupported, examined.problem, *(finding.message for finding in examined.findings)]
            text = " ".join(filter(None, said))
            why = next((words for sign, words in FORWARD_ONLY.items() if sign in text), "")
            if not why:
                return ""
    finally:
        where.close()
    return why
