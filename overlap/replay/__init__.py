"""What a run has kept, used again: its samples to learn from, its durations to simulate another schedule by.

Starts no engine and no verifier.
"""

from overlap.replay.judge_again import (
    KeptSample,
    PromptKey,
    Rejudged,
    RejudgedRun,
    judge_samples,
    kept_samples,
    rollouts_line,
    shown_samples,
)
from overlap.replay.kept_rollouts import (
    NEEDS,
    SavedGenerator,
    SavedVerifier,
    UnpublishedLearner,
    check_rollouts,
    rollouts_in,
    steps_in,
)
from overlap.replay.simulate import replay

__all__ = [
    "NEEDS",
    "KeptSample",
    "PromptKey",
    "Rejudged",
    "RejudgedRun",
    "SavedGenerator",
    "SavedVerifier",
    "UnpublishedLearner",
    "check_rollouts",
    "judge_samples",
    "kept_samples",
    "replay",
    "rollouts_in",
    "rollouts_line",
    "shown_samples",
    "steps_in",
]
