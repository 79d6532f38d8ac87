"""The loop: prompts → requests → trajectories → scored → groups → batches → steps → weights.

Consumes  prompts; produces a StepResult per step
Waits for a lease, a lane of the engine or of the verifier, a full batch, the learner, the load of the weights
Woken by  the end of any of them: all run in one task group, and the first failure ends it
"""

from overlap.pipeline.advantage import estimator
from overlap.pipeline.assemble import Assembler, likely_cause
from overlap.pipeline.control import Control, LoopState, OnSave
from overlap.pipeline.dataset_filter import PromptSplit, check_splits, filter_prompts
from overlap.pipeline.flow import Pending
from overlap.pipeline.group import DROP_REASONS
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import Position, overlapped, serial
from overlap.pipeline.prompts import PromptStream

__all__ = [
    "DROP_REASONS",
    "Assembler",
    "Components",
    "Control",
    "LoopState",
    "OnSave",
    "Pending",
    "Position",
    "PromptSplit",
    "PromptStream",
    "StepResult",
    "check_splits",
    "estimator",
    "filter_prompts",
    "likely_cause",
    "overlapped",
    "serial",
]
