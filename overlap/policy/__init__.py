"""From the name of a policy to a Hugging Face checkpoint directory.

What for: engine and learner get a path. Knows nothing of what loads it.
"""

from overlap.policy.adapted import adapted_layers, linear_layers
from overlap.policy.check import policy_digest
from overlap.policy.resolve import DEFAULT_POLICY, is_hub_policy, policies_dir, resolve_config, resolve_policy
from overlap.policy.tiny import make_tiny_policy

__all__ = [
    "DEFAULT_POLICY",
    "adapted_layers",
    "is_hub_policy",
    "linear_layers",
    "make_tiny_policy",
    "policies_dir",
    "policy_digest",
    "resolve_config",
    "resolve_policy",
]
