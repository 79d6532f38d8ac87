"""Rewards from judgements, and `sandbox check-reward`, which tests any reward function.

Knows nothing of how a program is judged.
"""

from sandbox.rewards.outcome import Outcome, Reward, all_or_nothing, masked_if_weak, score, share_of_cases

__all__ = ["Outcome", "Reward", "all_or_nothing", "cli", "masked_if_weak", "score", "share_of_cases"]
