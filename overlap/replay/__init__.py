"""What a run has kept, used again: its samples to learn from, its durations to simulate another schedule by.

Starts no engine and no verifier.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.replay.kept_rollouts import (
        NEEDS,
        SavedGenerator,
        SavedVerifier,
        UnpublishedLearner,
        check_rollouts,
        rollouts_in,
    )
    from overlap.replay.simulate import replay
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "kept_rollouts": (
                "NEEDS",
                "SavedGenerator",
                "SavedVerifier",
                "UnpublishedLearner",
                "check_rollouts",
                "rollouts_in",
            ),
            "simulate": ("replay",),
        },
    )

__all__ = [
    "NEEDS",
    "SavedGenerator",
    "SavedVerifier",
    "UnpublishedLearner",
    "check_rollouts",
    "replay",
    "rollouts_in",
]
