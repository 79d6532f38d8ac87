"""Take a policy's answer from the text that a trainer hands over: without the prompt and the tokens that end it."""

from __future__ import annotations

import re
from typing import Final

from sandbox.rewards.extract import extract_program

_TOKEN: Final = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</s>|<eos>|<end_of_turn>|<pad>)\Z")
"""A special token of a chat template, at the end of an answer."""
_TOKEN_MAX: Final = 48
"""Characters of one, at most."""
_TOKENS_MAX: Final = 10_000
_TAIL: Final = 200
"""Characters of a prompt by whose end its answer is found, where the prompt was cut at its beginning."""


def program_of_answer(answer: str, language: str = "python") -> str:
    """The program in an answer, "" for none, by the rule of `extract`. Special tokens that end it are no part of it."""
    return extract_program(without_tokens(answer), language=language)


def without_tokens(answer: str) -> str:
    """An answer without the special tokens that end it, and the white space between and behind them."""
    end = len(answer)
    for _ in range(_TOKENS_MAX):
        bare = end
        while bare and answer[bare - 1].isspace():
            bare -= 1
        found = _TOKEN.search(answer, max(0, bare - _TOKEN_MAX), bare)
        if found is None:
            break
        end = found.start()
    return answer[:end]


def answer_behind(query: str, prompt: str) -> str | None:
    """Return the answer behind a query's prompt; a token may precede the prompt, which may be cut at its beginning.
    None where the prompt is not found: code in a prompt must not be rewarded.
    """
    if not prompt:
        return query
    if prompt in query:
        return query.partition(prompt)[2]
    _, found, answer = query.rpartition(prompt[-_TAIL:])  # the last: a prompt may say the same over and over
    return answer if found else None
