"""Reward functions with the signatures that other trainers document, each paying answers that hold the row's word.

``seen`` is what each was called with, for tests that call it in their own process.
"""

from __future__ import annotations

import asyncio
from typing import Any

seen: list[Any] = []


def trl_words(completions, answer, **kwargs):
    """Conversational or plain completions, a column of the data set as a list."""
    seen.append({"completions": completions, "answer": answer, **kwargs})
    texts = [said if isinstance(said, str) else said[0]["content"] for said in completions]
    return [None if word == "?" else float(word in text) for text, word in zip(texts, answer, strict=True)]


async def trl_later(prompts, completions, answer, **kwargs):
    await asyncio.sleep(0)
    return trl_words(completions, answer, prompts=prompts, **kwargs)


class TrlObject:
    """A callable object, which TRL takes too."""

    def __init__(self, paid: float) -> None:
        self.paid = paid

    def __call__(self, prompts, completions, answer, **kwargs):
        return [self.paid * float(word in str(said)) for said, word in zip(completions, answer, strict=True)]


trl_object = TrlObject(0.5)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    seen.append({"data_source": data_source, "extra_info": extra_info})
    return {"score": float(ground_truth in solution_str), "acc": True}


async def compute_score_later(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(ground_truth in solution_str)


def plain_words(problem, program, language):
    return float(problem["answer"] in program)


def either(*args, **kwargs):
    return 1.0


def nothing_known(a, b, c, d, e, f):
    return 1.0


def unlucky(prompts, completions, **kwargs):
    raise KeyError("no such word")


def wordy(prompts, completions, **kwargs):
    return ["yes" for _ in completions]


def forgetful(prompts, completions, **kwargs):
    return []
