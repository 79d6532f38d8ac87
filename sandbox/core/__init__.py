"""The nouns: problems, programs, judgements. They check themselves when they are made.

What for: what every room speaks of. Knows nothing of how a program is judged.
"""

from sandbox.core.checks import Convention, Isolation, Kind
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
from sandbox.core.text import printable

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
