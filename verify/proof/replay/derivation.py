"""The steps of the derivation: what an operation on two values makes, by what they are, and how deep its sums are."""

from typing import Any

import numpy as np

from verify_norm.proof.replay.reading import Rejected

STEPS = """
add X0 RESIDUAL X|add X X ΣX|add ΣX X ΣX|add ΣX ΣX ΣX|div ΣX N MEAN|mul ΣX 1/N MEAN|sub X MEAN XC|mul XC XC ΣXC²
div 1 N 1/N|add ΣXC² ΣXC² ΣXC²|div ΣXC² N VAR|mul ΣXC² 1/N VAR|add VAR EPS VAR+EPS|sqrt VAR+EPS VAR+EPS STD
div 1 STD RSTD|rsqrt VAR+EPS VAR+EPS RSTD|mul XC RSTD XHAT|div XC STD XHAT|add W OFFSET W+|add W 1 W+
mul XHAT W W·XHAT|mul XHAT W+ W·XHAT|mul W RSTD W·RSTD|mul W+ RSTD W·RSTD|mul XC W·RSTD W·XHAT
add W·XHAT B Y|mul DY W G|mul DY W+ G|mul G XHAT ΣGX|add ΣGX ΣGX ΣGX|div ΣGX N C1
mul ΣGX 1/N C1|add G G ΣG|add ΣG G ΣG|add ΣG ΣG ΣG|div ΣG N C2|mul ΣG 1/N C2|mul XHAT C1 X·C1|add X·C1 C2 C2+X·C1
sub G C2+X·C1 G−C2−X·C1|sub G C2 G−C2|sub G−C2 X·C1 G−C2−X·C1|sub G X·C1 G−X·C1|sub G−X·C1 C2 G−C2−X·C1
mul RSTD G−C2−X·C1 DX|mul RSTD G−X·C1 DX|add DX DH DX+DH|mul DY XHAT ΣDY·X|add ΣDY·X ΣDY·X ΣDY·X|add DY DY ΣDY
add ΣDY DY ΣDY|add ΣDY ΣDY ΣDY|add 0 EPS VAR+EPS|add 0 OFFSET W+|add 0 1 W+|sub 0 MEAN XC
add 0 B Y|add 0 DH DX+DH|add C2 0 C2+X·C1"""
UNCENTRED = "|mul X X ΣXC²|mul X RSTD XHAT|div X STD XHAT|mul X W·RSTD W·XHAT"
KEEPS = ("MEAN", "VAR", "VAR+EPS", "C1", "C2")  # has the depth of its sum
ROUNDED, GARBAGE = 64, 127  # added to the label of a value that is rounded; of what no step makes, rounded or not
FLOATS = np.dtype([("v", np.uint64), ("depth", np.int32), ("label", np.uint8)], align=True)


def floats(v: Any, label: Any, depth: Any = 0) -> Any:
    """Return floats: each is an element of the field, with the label of what it is, and the depth of its sum."""
    made = np.empty(np.broadcast_shapes(np.shape(v), np.shape(label)), FLOATS)
    made["v"], made["label"], made["depth"] = v, label, depth
    return made


class Derivation:
    """Labels as numbers, 0 that of zeros; for each operator a table of what two make; and what a certificate claims.

    `narrow` is the type of outputs; `midway` has the labels that may be rounded before they are used, and to what.
    """

    def __init__(self, centred: bool, claims: Any, narrow: str, midway: dict[str, str]) -> None:
        self.claims, self.narrow, self.midway, self.depths = claims, narrow, midway, dict[str, int]()
        steps = [row.split() for row in (STEPS.replace("\n", "|") + UNCENTRED * (not centred)).split("|")[1:]]
        names = ["0", *dict.fromkeys(word for step in steps for word in step[1:] if word != "0")]
        self.codes = {name: code for code, name in enumerate(names)}
        self.names = names + [""] * (128 - len(names))
        self.sums = np.array([name.startswith("Σ") for name in self.names])
        self.keeps = np.array([name in KEEPS for name in self.names])
        every = np.arange(GARBAGE)
        self.tables = {step[0]: np.full((128, 128), GARBAGE, np.uint8) for step in steps}
        self.tables["add"][every, 0] = self.tables["add"][0, every] = self.tables["sub"][every, 0] = every
        self.tables["mul"][every, 0] = self.tables["mul"][0, every] = self.tables["div"][0, every[1:]] = 0
        for operator, *labels in steps:
            a, b, made = (self.codes[label] for label in labels)
            for left, right in ((a, b), (b, a)) if operator in ("add", "mul") else ((a, b),):
                self.tables[operator][left, right] = made

    def rounded(self, label: Any, element: str) -> Any:
        """Return the labels of values that are rounded: once, to the type of the outputs, or as the contract says."""
        same = [0, *(self.codes[name] for name, kind in self.midway.items() if kind == element)]
        return np.where(np.isin(label, same), label, label | ROUNDED if element == self.narrow else GARBAGE)

    def deep(self, operator: str, label: Any, a: Any, b: Any) -> Any:
        """Return the depths of what an operation makes: a product is the first rounding of its sum."""
        deeper = np.maximum(a["depth"], b["depth"])
        more = 1 if operator == "mul" else deeper + ((a["label"] > 0) & (b["label"] > 0))  # what adds a 0 is exact
        return np.where(self.sums[label], more, np.where(self.keeps[label], deeper, 0))

    def claimed(self, name: str, value: Any) -> None:
        """Raise Rejected if the certificate does not claim what a value is."""
        claim = self.claims.get(name, {"depth": {}})["depth"]
        for code in set(np.unique(value["label"]).tolist()) - {0, GARBAGE}:
            one, depth = self.names[code % ROUNDED], int(value["depth"][value["label"] == code].max())
            if depth > claim.get(one, claim.get(f"Σ{one}", -1)):
                raise Rejected(f"{name} is {one}, depth {depth}, and claimed as {claim}")
            self.depths[one] = max(depth, self.depths.get(one, 0))
