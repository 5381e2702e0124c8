"""How other projects test their kernels, emulated, so that the zoo can be tried against their policies as well.

Each policy is a published test with its shapes, types, data and tolerances, as far as our operators have them;
`Policy.source` names the source and what is left out. A kernel that passes here passes that policy as published, which
says nothing about a project's other tests.
"""

from verify_norm.validation.policies.agents import AGENTS
from verify_norm.validation.policies.flash import FLASH
from verify_norm.validation.policies.libraries import LIBRARIES
from verify_norm.validation.policies.liger import LIGER
from verify_norm.validation.policies.pytorch import ASSERT_CLOSE, GRADCHECK
from verify_norm.validation.policies.trial import Policy, Verdict
from verify_norm.validation.policies.tutorial import TUTORIAL

__all__ = ["POLICIES", "Policy", "Verdict"]

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (TUTORIAL, ASSERT_CLOSE, *GRADCHECK, LIGER, FLASH, *AGENTS, *LIBRARIES)
}
