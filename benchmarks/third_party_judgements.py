"""What was made of each finding about other people's kernels, after looking into it: read by third_party.py.

"defect" is said of what breaks the library's documentation, or what its own path of higher precision does; "refusal" of
an error in place of a result; "outside" of what the library does not claim; "open" of what is not settled yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from verify_norm.spec import Finding


@dataclass(frozen=True)
class Judgement:
    """Of findings whose device, kernel, check and output match: patterns as in a shell."""

    devices: str
    kernel: str
    checks: str
    outputs: str
    verdict: Literal["defect", "refusal", "outside", "open"]
    reason: str

    def about(self, device: str, finding: Finding) -> bool:
        texts = (device, finding.kernel, finding.check, finding.output or "none")
        patterns = (self.devices, self.kernel, self.checks, self.outputs)
        return all(
            any(fnmatch(text, one) for one in pattern.split("|")) for text, pattern in zip(texts, patterns, strict=True)
        )


JUDGEMENTS: tuple[Judgement, ...] = ()
