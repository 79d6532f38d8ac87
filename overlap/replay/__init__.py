"""What a run has kept, used again: its samples to learn from, its durations to simulate another schedule by.

Starts no engine and no verifier.
"""

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
    "SavedGenerator",
    "SavedVerifier",
    "UnpublishedLearner",
    "check_rollouts",
    "replay",
    "rollouts_in",
    "steps_in",
]
