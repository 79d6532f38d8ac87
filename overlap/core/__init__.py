"""Data types and interfaces: what the parts of a run hand to each other, and what each part must offer.

Imports nothing of overlap's; every other package may import it.
"""

from overlap.core.chat_turns import Spoken, Used
from overlap.core.interfaces import Generator, Learner, Verifier
from overlap.core.interfaces import TaskInterface as Task
from overlap.core.kept_groups import kept_groups
from overlap.core.nouns import (
    Batch,
    ClusterFigures,
    Finish,
    Group,
    LeftOut,
    NodeFigures,
    Part,
    Probe,
    Prompt,
    Request,
    Scored,
    Split,
    StepReport,
    Trajectory,
    VersionSpan,
    WeightUpdate,
)
from overlap.core.token_array import Packed
from overlap.core.tolerance import equal_rewards, reaches
from overlap.core.user_code import described_error, line_of, shortened

__all__ = [
    "Batch",
    "ClusterFigures",
    "Finish",
    "Generator",
    "Group",
    "Learner",
    "LeftOut",
    "NodeFigures",
    "Packed",
    "Part",
    "Probe",
    "Prompt",
    "Request",
    "Scored",
    "Split",
    "Spoken",
    "StepReport",
    "Task",
    "Trajectory",
    "Used",
    "Verifier",
    "VersionSpan",
    "WeightUpdate",
    "described_error",
    "equal_rewards",
    "kept_groups",
    "line_of",
    "reaches",
    "shortened",
]
