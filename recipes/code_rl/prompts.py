"""Prompts for the policy: the user's turn by the problem's kind, and how the answer begins.

Two forms. ``prefilled``: the assistant's turn begins with an open code fence and the starter, so that even a small chat
model goes on with code at once. ``reasoning``: the model has the turn for itself, thinks, and ends with a program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overlap.core import Prompt
from overlap.task import chat_prompt
from recipes.code_rl.core import CodeProblem

FENCE = "```python\n"
_STDIO = "Write a Python program. It reads from standard input and prints only the answer, without any prompt text."
_FUNCTION = "Write only the Python function, no example usage."
_REASONED = "Reason step by step, then give the whole Python program in one ```python block at the end."
_STDIO_REASONED = "The program reads from standard input and prints to standard output."


def user_turn(problem: CodeProblem) -> str:
    """The user's turn for a model that begins with code."""
    if problem.problem.kind == "stdio":
        return f"{_STDIO}\n\n{problem.statement}"
    return f"{_FUNCTION} {problem.statement}"


def prefilled(tokenizer: Any, problem: CodeProblem) -> Prompt:
    """Chat prompt whose answer is already inside a fence.

    The prefill ends without a line feed after a starter: tokenizers merge the feed with the indent that follows, so a
    policy that is given the feed alone goes on with a token it never saw there (pass@1 0.00 instead of 0.2 at 135M).
    """
    prefill = FENCE + problem.starter.rstrip()
    return chat_prompt(
        tokenizer, problem.id, user_turn(problem), prefill=prefill, data=_placeless(problem), place=problem.place
    )


def _placeless(problem: CodeProblem) -> CodeProblem:
    """Return the problem without place, split and notes: a prompt's data must not depend on the file's path."""
    return replace(problem, place="", split=None, notes=())


def reasoning(tokenizer: Any, problem: CodeProblem) -> Prompt:
    """Chat prompt for a model that thinks first."""
    parts = [problem.statement.strip()]
    if problem.problem.kind == "stdio":
        parts.append(_STDIO_REASONED)
    elif problem.starter:
        parts.append(f"Start from this code:\n{FENCE}{problem.starter.rstrip()}\n```")
    elif problem.problem.fn_name:
        parts.append(f"Name the function `{problem.problem.fn_name.split('.')[-1]}`.")
    return chat_prompt(
        tokenizer, problem.id, "\n\n".join([*parts, _REASONED]), data=_placeless(problem), place=problem.place
    )
