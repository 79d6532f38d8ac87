"""Data types and interfaces: what the parts of a run hand to each other, and what each part must offer.

Imports nothing of overlap's; every other package may import it.
"""

from overlap.core.chat_turns import Spoken, Used, unicode_of
from overlap.core.interfaces import Generator, Learner, Processless, ProcesslessEngine, ProcesslessVerifier, Verifier
from overlap.core.interfaces import TaskInterface as Task
from overlap.core.kept_groups import BY_INTEREST, KEPT_BYTES, SAMPLE_BYTES, TOKEN_BYTES, kept_groups
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
from overlap.core.turn_marks import TurnMarks
from overlap.core.user_code import described_error, line_of, line_of_dump, shortened

__all__ = [
    "BY_INTEREST",
    "KEPT_BYTES",
    "SAMPLE_BYTES",
    "TOKEN_BYTES",
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
    "Processless",
    "ProcesslessEngine",
    "ProcesslessVerifier",
    "Prompt",
    "Request",
    "Scored",
    "Split",
    "Spoken",
    "StepReport",
    "Task",
    "Trajectory",
    "TurnMarks",
    "Used",
    "Verifier",
    "VersionSpan",
    "WeightUpdate",
    "described_error",
    "equal_rewards",
    "kept_groups",
    "line_of",
    "line_of_dump",
    "reaches",
    "shortened",
    "unicode_of",
]
