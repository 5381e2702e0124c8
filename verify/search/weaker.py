"""The weaker contracts that may explain what was found about an output, in the order in which they are tried."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from verify_norm.cases import allowance
from verify_norm.core import contract_fields
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import Allowance
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import NAMES, WEAKER, Known, doubtful, joined, write
from verify_norm.core.ops import OPS

Candidate = tuple[Known, dict[str, Any]]  # with the fields that it changes of the kernel's own contract
# Fields that change no bound on the error of a result.
FREE = frozenset(("inplace", "output", "weight_grad", "saturate", "scale_floor", "e8m0", "packing", "deterministic"))
# Fields that replace a requirement by another one: a result that was right may be wrong under them.
INSTEAD = frozenset(("output", "weight_grad", "stats", "saturate", "scale_floor", "e8m0", "packing"))


@dataclass(frozen=True, slots=True)
class Weaker:
    """The contracts that are weaker than a kernel's own.

    `types` are the types of x and weight in which something was found about `output`; None stands for the call.
    """

    kernel: Kernel
    output: str | None
    types: list[tuple[str, str | None]]

    def contract(self, fields: dict[str, Any]) -> Contract:
        """Return the kernel's contract with these fields."""
        return contract_fields.make(asdict(self.kernel.contract) | fields)

    def together(self) -> list[dict[str, Any]]:
        """Return the fields of all that change the kernel's contract, together.

        Of those that promise something instead, such as another type, each is in one of several variants alone.
        """
        every = [fields for _, fields in self._changing(WEAKER)]
        most = joined(write(fields) for fields in every if INSTEAD.isdisjoint(fields))
        return [most, *(most | fields for fields in every if fields.keys() <= INSTEAD)]

    def free(self) -> list[Candidate]:
        """Return those that cost no accuracy."""
        return [(known, fields) for known, fields in self._changing(WEAKER) if fields.keys() <= FREE]

    def costly(self) -> list[Candidate]:
        """Return the others by what they allow, then names of libraries, then doubtful products, then z=x with these.

        None allows an output no more: such a one could only keep checks from looking.
        """
        found = [(known, fields) for known, fields in self._changing(WEAKER) if not fields.keys() <= FREE]
        found.sort(key=self._printed_gain)  # a tie by WEAKER
        found += self._changing(NAMES.values())
        found.sort(key=lambda one: doubtful(one[1], dict(self.types)))
        found += self._in_turn(found)
        return [(known, fields) for known, fields in found if self.allowance(fields).loses]

    def _in_turn(self, found: list[Candidate]) -> list[Candidate]:
        """Return those of a norm that rounds its result, where others work on it in turn: z=x with one more each."""
        rounds = [(known, fields) for known, fields in found if fields == {"z": "x"}]
        others = [(known, fields) for known, fields in found if not {"z", "products"} & fields.keys()]
        return [both(one, other) for one in rounds for other in others]

    def allowance(self, fields: dict[str, Any]) -> Allowance:
        """Return what a typical case allows in the type, and for the call in the output, that gains most."""
        op, own, weaker = self.kernel.op, self.kernel.contract, self.contract(fields)
        pairs = self.types
        if (
            "weight_grad" not in fields
        ):  # the weight's type counts only where its gradient is what the contract is about
            pairs = list(dict.fromkeys((dtype, None) for dtype, _ in pairs))
        found = []
        for pair in pairs:
            before, after = (allowance.allowances(op, contract, *pair) for contract in (own, weaker))
            names, types = [self.output] if self.output in before else before, allowance.types(op, *pair)
            found += [Allowance(allowance.words(op), name, types[name], before[name], after[name]) for name in names]
        return max(found, key=lambda one: one.gain)

    def _printed_gain(self, candidate: Candidate) -> float:
        """Return how many times as much it allows, with the digits that are printed."""
        return float(f"{self.allowance(candidate[1]).gain:.2g}")

    def _changing(self, contracts: Iterable[Known]) -> list[Candidate]:
        """Return the contracts that change the kernel's own."""
        own, op = self.kernel.contract, OPS[self.kernel.op]
        return [(known, fields) for known in contracts if (fields := known.of(own, op))]


def both(one: Candidate, other: Candidate) -> Candidate:
    """Return two weaker contracts as one."""
    (first, fields), (second, more) = one, other
    whose = "; ".join(filter(None, (first.whose, second.whose)))
    known = Known(f"{first.fields},{second.fields}", f"{first.words}; {second.words}", whose)
    return known, joined((write(fields), write(more)))
