"""Rewards: pure functions of what `judge` returned or raised.

An outcome is a Judgement, or the SandboxError in its place. An error says nothing about the program, so its reward is
None: leave the sample out of the loss. It is never 0, which would teach that the program was wrong.

A weak judgement (the program could have forged it) is rewarded like any other; `masked_if_weak` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable

from sandbox.core.nouns import Judgement, Verdict
from sandbox.errors import SandboxError

Outcome = Judgement | SandboxError
Reward = Callable[[Outcome], float | None]


def all_or_nothing(outcome: Outcome) -> float | None:
    """1 when every case passed, otherwise 0."""
    if isinstance(outcome, SandboxError):
        return None
    return 1.0 if outcome.verdict is Verdict.AC else 0.0


def share_of_cases(outcome: Outcome) -> float | None:
    """Cases passed of all cases. Raises ValueError where judging stopped at a failure: use
    stop_at_first_failure=False.
    """
    return None if isinstance(outcome, SandboxError) else outcome.share


def score(outcome: Outcome) -> float | None:
    """The problem's own score: by points where it has subtasks, otherwise as `share_of_cases`, which may raise."""
    return None if isinstance(outcome, SandboxError) else outcome.score


def masked_if_weak(reward: Reward) -> Reward:
    """`reward`, and None for a judgement that the program could have forged."""

    def masked(outcome: Outcome) -> float | None:
        if isinstance(outcome, Judgement) and outcome.weak:
            return None
        return reward(outcome)

    return masked
