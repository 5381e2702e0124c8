"""How other projects test their kernels, emulated, so that the zoo can be held against their policies as well.

Each is what a published test does, with its shapes, types, data and tolerances, as far as our operators can say it;
`Policy.source` tells where it was read and what was left out. What passes here passes under that policy as published:
it says nothing of what else a project does to find bugs.

>>> list(POLICIES)
['tutorial', 'assert_close', 'gradcheck slow', 'gradcheck fast', 'Liger', 'flash-attention']
"""

from __future__ import annotations

from verify_norm.policies.flash import FLASH
from verify_norm.policies.liger import LIGER
from verify_norm.policies.pytorch import ASSERT_CLOSE, GRADCHECK
from verify_norm.policies.trial import Policy, Verdict
from verify_norm.policies.tutorial import TUTORIAL

__all__ = ["POLICIES", "Policy", "Verdict"]

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (TUTORIAL, ASSERT_CLOSE, *GRADCHECK, LIGER, FLASH)}
