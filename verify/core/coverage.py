"""What a run exercised: how many of its cases ran, and what those in which an output was compared have had in them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from typing_extensions import Self

from verify_norm.core import geometry
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

UNTIMED = "larger cases run after smaller ones, and none of these returned what can be compared"
LEAST_COMPARED = 0.1  # the share of the tried cases in which an output has to be compared


def barely(compared: int, tried: int) -> bool:
    """Return whether outputs were compared in too few of the tried cases for a pass: in none, or in under a tenth.

    >>> barely(40, 400), barely(39, 400), barely(0, 0)
    (False, True, True)
    """
    return not compared or compared < LEAST_COMPARED * tried


def out_of_time(seconds: float, kept: float = 0.0) -> str:
    """Return why a run ended early whose time was up, as `Coverage.ended` and `Skip.reason` have it.

    `kept` seconds of it are for making failures small, and for explaining them.

    >>> out_of_time(55.0), out_of_time(55.0, 22.0)
    ('the time limit of 55 s was reached', 'the time limit of 55 s was reached, less 22 s to study the findings')
    """
    return f"the time limit of {seconds:g} s was reached" + (f", less {kept:g} s to study the findings" if kept else "")


def ended_by_time(reason: str) -> bool:
    """Return whether a reason is that of `out_of_time`, in the words of this version or of 0.9.0.

    >>> ended_by_time(out_of_time(9, 0.5)), ended_by_time("the 55 s were over"), ended_by_time("interrupted")
    (True, True, False)
    """
    limit = r"the time limit of \S+ s was reached(, less \S+ s to study the findings)?"
    return re.fullmatch(rf"{limit}|the \S+ s were over", reason) is not None


def of_time(reason: str) -> bool:
    """Return whether a reason is that time is short, whatever the kernel does.

    >>> of_time(out_of_time(0.5)), of_time("over 1 s, its share of the 40 s of the run (--seconds)"), of_time("no eps")
    (True, True, False)
    """
    return ended_by_time(reason) or "(--seconds)" in reason or reason == UNTIMED


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a run was done, in cases.

    `planned` are the corner cases and the random ones. Corner cases are all that are not random: those of a corpus, the
    corner table, shapes of models; `corners_done` of them ran or were `refused`, because the kernel does not take them.
    At least one output was `compared` with the truth; `outputs` counts the same for each output. `ended` says why the
    run ended early. Two choices of a case, such as a type and a layout, are a pair (`verify_norm.cases.covering`):
    `pairs` of the `possible` ones met in cases that were compared. If 0 are possible, they were not counted.
    """

    planned: int
    corners: int
    corners_done: int
    refused: int
    compared: int
    outputs: dict[str, int]
    ended: str = ""
    pairs: int = 0
    possible: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the cases had in them in which an output was compared with the truth.

    The first four are the largest of any case: the rows, groups or channels of x (M), the elements that are normalized
    together (N), the channels of a group (C/G; 0 where an operator has no groups), and the elements of x. The others
    count cases: by the type of x, by a weight type that is not that of x, by the layout of any tensor, by the way that
    a check took in a further run (`verify_norm.core.finding.Tried`), by each norm operator of torch that ran inside the
    kernel (`verify_norm.running.operators`), by what a check noticed that is no finding (`notes`), and by a type of cos
    and sin, of scale and shift, or of a residual, that is not that of x (`others`). BatchNorm's training and evaluation
    count as ways of `modes`.
    """

    rows: int = 0
    length: int = 0
    group: int = 0
    elements: int = 0
    types: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    layouts: dict[str, int] = field(default_factory=dict)
    ways: dict[str, dict[str, int]] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        spec: CaseSpec,
        op: Op,
        layouts: Iterable[str] = (),
        ways: Iterable[tuple[str, str]] = (),
        operators: Iterable[str] = (),
        notes: Iterable[str] = (),
    ) -> Self:
        """Return what is in one case, with the layouts of its tensors, such as "x transposed".

        Its checks took these `ways`, each after the name of its check, and these `operators` ran in the kernel. Checks
        noticed what `notes` say.
        """
        rows, elements = geometry.size(spec, op)
        weights = [tensor.name for tensor in op.inputs if tensor.role == "weight" and getattr(spec, tensor.name, True)]
        mixed = weights and spec.weight_dtype not in (None, spec.dtype)
        beside = (spec.other_dtype if op.other_inputs else None, spec.residual_dtype if op.takes_residual else None)
        others = [dtype for dtype in beside if dtype not in (None, spec.dtype)]
        given = (name.rpartition(" ") for name in layouts)
        taken: dict[str, dict[str, int]] = {}
        for check, way in (*ways, *_of_training(spec, op)):
            taken.setdefault(check, {})[way] = 1
        return cls(
            rows=rows,
            length=geometry.row_length(spec, op),
            group=spec.shape[1] // geometry.groups(spec, op) if "num_groups" in op.attrs else 0,
            elements=elements,
            types={spec.dtype: 1},
            weights={str(spec.weight_dtype): 1} if mixed else {},
            layouts={layout: 1 for name, _, layout in given if getattr(spec, name, True)},  # of None there is none
            ways=taken,
            operators=dict.fromkeys(operators, 1),
            notes=dict.fromkeys(notes, 1),
            others=dict.fromkeys(others, 1),
        )

    def merge(self, other: Self) -> Self:
        """Return what was in both sets of cases together."""
        checks = dict.fromkeys((*self.ways, *other.ways))
        return type(self)(
            rows=max(self.rows, other.rows),
            length=max(self.length, other.length),
            group=max(self.group, other.group),
            elements=max(self.elements, other.elements),
            types=_sum(self.types, other.types),
            weights=_sum(self.weights, other.weights),
            layouts=_sum(self.layouts, other.layouts),
            ways={name: _sum(self.ways.get(name, {}), other.ways.get(name, {})) for name in checks},
            operators=_sum(self.operators, other.operators),
            notes=_sum(self.notes, other.notes),
            others=_sum(self.others, other.others),
        )


def _of_training(spec: CaseSpec, op: Op) -> Iterable[tuple[str, str]]:
    return [("modes", "training" if spec.training else "evaluation")] * ("training" in op.attrs)


def _sum(counts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + others.get(name, 0) for name in (*counts, *others)}
