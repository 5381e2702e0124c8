"""What a certificate of `verify-norm prove` says of the kernel of a report."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Proved:
    """A theorem that holds for the kernel as it is now; with `stale`, which says why not, it claims nothing.

    columns, dtype, eps, layout : what the certificate fixes
    domain : the numbers of rows, in words
    device : the one whose properties the launches were recorded with
    contract, outputs : what is kept, and by which outputs
    """

    columns: int
    dtype: str
    eps: float
    layout: str
    domain: str
    device: str
    contract: str
    outputs: tuple[str, ...]
    stale: str = ""


def sentences(proofs: Iterable[Proved]) -> list[str]:
    """Return what is proved, a line for each theorem, whatever lengths of a row it has.

    >>> one = Proved(1000, "bfloat16", 1e-5, "contiguous", "every M", "NVIDIA H100", "strict", ("y",))
    >>> sentences([one, replace(one, columns=4096)])
    ['proved for N = 1000 and 4096, bfloat16, contiguous, eps = 1e-05, every M: y with contract strict, on an \
NVIDIA H100; sampled elsewhere']
    >>> sentences([replace(one, stale="its source has changed")])
    ['nothing is proved for N = 1000, bfloat16: the certificate is stale: its source has changed']
    """
    lengths: dict[Proved, list[int]] = {}
    for one in proofs:
        lengths.setdefault(replace(one, columns=0), []).append(one.columns)
    return [_sentence(one, _listed(columns)) for one, columns in lengths.items()]


def _sentence(one: Proved, lengths: str) -> str:
    if one.stale:
        return f"nothing is proved for N = {lengths}, {one.dtype}: the certificate is stale: {one.stale}"
    where = f"N = {lengths}, {one.dtype}, {one.layout}, eps = {one.eps:g}, {one.domain}"
    what = f"{', '.join(one.outputs)} with contract {one.contract}, on an {one.device}"
    return f"proved for {where}: {what}; sampled elsewhere"


def _listed(numbers: list[int]) -> str:
    *others, last = map(str, sorted(numbers))
    return f"{', '.join(others)} and {last}" if others else last
