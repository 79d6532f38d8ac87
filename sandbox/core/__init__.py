"""Data types: problems, programs, limits, judgements. They validate themselves on construction.

Everything else in the sandbox uses them. They know nothing of how a program is judged.
"""

from sandbox.core.checks import NAME_MAX, check_files, encode_text, printable, quoted, wrong_type
from sandbox.core.excerpt import EXCERPT_CHARS, Excerpt, ExcerptWriter
from sandbox.core.nouns import (
    COMPILE_LIMITS,
    MIB,
    REFEREE_LIMITS,
    SOURCE_BYTES_MAX,
    Case,
    CaseResult,
    Isolation,
    Judgement,
    Limits,
    Program,
    Subtask,
    Verdict,
    drop_later_excerpts,
)
from sandbox.core.plain import plain_value, python_literal, strange_encoding
from sandbox.core.problem import Convention, Kind, Problem
from sandbox.core.program_run import ProgramRun

__all__ = [
    "COMPILE_LIMITS",
    "EXCERPT_CHARS",
    "MIB",
    "NAME_MAX",
    "REFEREE_LIMITS",
    "SOURCE_BYTES_MAX",
    "Case",
    "CaseResult",
    "Convention",
    "Excerpt",
    "ExcerptWriter",
    "Isolation",
    "Judgement",
    "Kind",
    "Limits",
    "Problem",
    "Program",
    "ProgramRun",
    "Subtask",
    "Verdict",
    "check_files",
    "drop_later_excerpts",
    "encode_text",
    "plain_value",
    "printable",
    "python_literal",
    "quoted",
    "strange_encoding",
    "wrong_type",
]
