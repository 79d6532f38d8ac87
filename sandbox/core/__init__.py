"""Data types: problems, programs, limits, judgements. They validate themselves on construction.

Everything else in the sandbox uses them. They know nothing of how a program is judged.
"""

from sandbox.core.checks import Convention, Isolation, Kind, printable
from sandbox.core.nouns import (
    COMPILE_LIMITS,
    MIB,
    REFEREE_LIMITS,
    SOURCE_BYTES_MAX,
    Case,
    CaseResult,
    Judgement,
    Limits,
    Problem,
    Program,
    Subtask,
    Verdict,
)

__all__ = [
    "COMPILE_LIMITS",
    "MIB",
    "REFEREE_LIMITS",
    "SOURCE_BYTES_MAX",
    "Case",
    "CaseResult",
    "Convention",
    "Isolation",
    "Judgement",
    "Kind",
    "Limits",
    "Problem",
    "Program",
    "Subtask",
    "Verdict",
    "printable",
]
