"""Certificates that are saved, and calls of the replay that a test makes of them.

`certificate.json` is of a forward of whole tiles. `launches.json` has, with one form each: `near.py:plain`, an
rmsnorm_fwd of two launches of which the second waits; `unproved.py:turns_bwd`, an rmsnorm_bwd whose
programs share tiles; and `unproved.py:rounded_sum_fwd`, an add_rmsnorm_fwd whose sum is rounded.
"""

import copy
import hashlib
import json
from pathlib import Path

from verify_norm.proof.replay.check import Call
from verify_norm.proof.replay.reading import read

FORWARD = json.loads((Path(__file__).parent / "certificate.json").read_text(encoding="utf-8"))
TWICE, TURNS, SUM = json.loads((Path(__file__).parent / "launches.json").read_text(encoding="utf-8"))


def call_of(certificate, m=1):
    """Return a call of the replay with m rows."""
    kernels = {digest: (one["name"], *read(one["ttir"])) for digest, one in certificate["kernels"].items()}
    return Call(certificate | {"kernels": kernels}, certificate["forms"][0], m, 0)


def altered(certificate, change):
    """Return a certificate after a change of it, with hashes that fit its TTIR."""
    found = copy.deepcopy(certificate)
    change(found)
    text = json.dumps(found)
    for digest, kernel in found["kernels"].items():
        text = text.replace(digest, hashlib.sha256(kernel["ttir"].encode()).hexdigest())
    return json.loads(text)


def ttir(old, new, count=1):
    """Return a change of the only kernel that has a text."""

    def change(found):
        (kernel,) = [one for one in found["kernels"].values() if old in one["ttir"]]
        kernel["ttir"] = kernel["ttir"].replace(old, new, count)

    return change
