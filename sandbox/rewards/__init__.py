"""Rewards: from judgements and from answers, and `sandbox check-reward`, which tests any reward function.

Knows nothing of how a program is judged.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.rewards import cli as cli
    from sandbox.rewards.answer_text import answer_behind, program_of_answer
    from sandbox.rewards.calls import call_text, line_text, result_texts
    from sandbox.rewards.contest import CONTEST_MODULES, CONTEST_PREAMBLE
    from sandbox.rewards.extract import extract_program, fence_tags, fenced_blocks
    from sandbox.rewards.function_path import named_function
    from sandbox.rewards.ground_truth import problem_in, problem_of
    from sandbox.rewards.outcome import Outcome, Reward, all_or_nothing, masked_if_weak, score, share_of_cases
    from sandbox.rewards.styles import STYLES, Answered, BadReward, MissingColumn, Style, StyleError, find_style
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "CONTEST_MODULES",
    "CONTEST_PREAMBLE",
    "STYLES",
    "Answered",
    "BadReward",
    "MissingColumn",
    "Outcome",
    "Reward",
    "Style",
    "StyleError",
    "all_or_nothing",
    "answer_behind",
    "call_text",
    "cli",
    "extract_program",
    "fence_tags",
    "fenced_blocks",
    "find_style",
    "line_text",
    "masked_if_weak",
    "named_function",
    "problem_in",
    "problem_of",
    "program_of_answer",
    "result_texts",
    "score",
    "share_of_cases",
]
