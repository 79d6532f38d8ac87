"""Rewards: from judgements and from answers, and `sandbox check-reward`, which tests any reward function.

Knows nothing of how a program is judged.
"""
