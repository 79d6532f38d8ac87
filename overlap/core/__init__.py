"""Data types and interfaces: what the parts of a run hand to each other, and what each part must offer.

Imports nothing of overlap's; every other package may import it.
"""

from typing import TYPE_CHECKING

from overlap.core.chat_turns import Spoken, Used, unicode_of
from overlap.core.interfaces import Generator, Learner, Verifier
from overlap.core.interfaces import TaskInterface as Task
from overlap.core.nouns import (
    Batch,
    Finish,
    Group,
    LeftOut,
    Part,
    Probe,
    Prompt,
    Request,
    Scored,
    StepReport,
    Trajectory,
    VersionSpan,
    WeightUpdate,
)
from overlap.core.token_array import Packed

if TYPE_CHECKING:
    from overlap.core.no_process import Processless, ProcesslessEngine
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "no_process": (
                "Processless",
                "ProcesslessEngine",
            ),
        },
    )

__all__ = [
    "Batch",
    "Finish",
    "Generator",
    "Group",
    "Learner",
    "LeftOut",
    "Packed",
    "Part",
    "Probe",
    "Processless",
    "ProcesslessEngine",
    "Prompt",
    "Request",
    "Scored",
    "Spoken",
    "StepReport",
    "Task",
    "Trajectory",
    "Used",
    "Verifier",
    "VersionSpan",
    "WeightUpdate",
    "unicode_of",
]
