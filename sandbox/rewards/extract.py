r"""The one rule by which a program is taken out of an answer.

1. An answer that ended on a stop string loses that string: it marks the end and is no part of the program.
2. Thoughts do not count: everything up to the last ``</think>`` is dropped. An answer that begins with ``<think>``, or
   comes from a model that always thinks first (``thinks``), and never closes its thoughts holds no program.
3. Code is in fences, as in CommonMark: a line that opens with three or more backticks or tildes; it closes with a
   line of at least as many of the same sign and nothing else. Fences inside strings therefore only count when they
   are alone on a line. A fence that never closes runs to the end (a stop string may have cut it off).
4. When the prompt already opened the fence (``prefill``), the program is the block that begins there, and rule 2 is
   idle: a program holds no thoughts. Otherwise it is the last block tagged as the language (Python, where none is
   named); without one, the last block without a tag. Blocks of other languages are no programs.
5. No such block, or a blank one: no program, "". The task gives that reward 0 without running anything.

DeepCoder takes the last block of any language, in the thoughts too; verl splits at the last "```python".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sandbox.languages.table import find_language

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_FURTHER = {"python": ("python2", "py3")}
"""Tags of a language beside its names in the table of languages."""
_LOOSE = 3
"""Spaces by which a closing fence may be indented more than its opening one (CommonMark)."""
_TOKEN: Final = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</s>|<eos>|<end_of_turn>|<pad>)\Z")
"""A special token of a chat template, at the end of an answer."""
_TOKEN_MAX: Final = 48
"""Characters of one, at most."""
_TOKENS_MAX: Final = 10_000
_TAIL: Final = 200
"""Characters of a prompt by whose end its answer is found, where the prompt was cut at its beginning."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its tag in lower case ("" for none), its lines without the fences, and whether it was closed."""

    tag: str
    code: str
    closed: bool


def extract_program(
    answer: str, *, prefill: str = "", stop: Sequence[str] = (), thinks: bool = False, language: str = "python"
) -> str:
    """The program in ``answer`` (the whole answer, ``prefill`` included), or "" for none; the module has the rule."""
    answer = without_stop(answer, stop)
    if opens_fence(prefill):
        blocks = list(fenced_blocks(answer)) if answer.startswith(prefill) else []
        chosen = blocks[len(list(fenced_blocks(prefill))) - 1].code if blocks else ""
    else:
        tags = fence_tags(language)
        blocks = list(fenced_blocks(without_thoughts(answer, thinks=thinks)))
        tagged = [block.code for block in blocks if block.tag in tags]
        plain = [block.code for block in blocks if not block.tag]
        chosen = (tagged or plain or [""])[-1]
    return chosen if chosen.strip() else ""


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


def fence_tags(language: str) -> frozenset[str]:
    """Tags of the blocks in a language: its names and other ones that are in use, in lower case."""
    table = find_language(language)
    return frozenset((table.name, *table.aliases, *_FURTHER.get(table.name, ())))


def without_stop(answer: str, stop: Sequence[str]) -> str:
    """``answer`` without the stop string that it ends with, the longest if several fit."""
    ended = max((s for s in stop if answer.endswith(s)), key=len, default="")
    return answer[: len(answer) - len(ended)]


def without_thoughts(answer: str, *, thinks: bool = False) -> str:
    """Return the text after the last ``</think>``; without one, nothing if the answer is (or must be) all thoughts."""
    _, closed, said = answer.rpartition("</think>")
    unfinished = not closed and (thinks or answer.lstrip().startswith("<think>"))
    return "" if unfinished else said


def opens_fence(prefill: str) -> bool:
    """Return whether ``prefill`` ends inside a fenced block."""
    blocks = list(fenced_blocks(prefill))
    return bool(blocks) and not blocks[-1].closed


def fenced_blocks(text: str) -> Iterator[Block]:
    """All fenced blocks of a text, in order; the last one may be open."""
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _FENCE.fullmatch(line.rstrip("\r"))
        if opening and not (opening["fence"][0] == "`" and "`" in opening["info"]):
            yield _block(opening, lines)


def _block(opening: re.Match[str], lines: Iterator[str]) -> Block:
    indent = len(opening["indent"])
    words = re.split(r"[\s{},.:]+", opening["info"].strip().lower().lstrip("{."))
    body: list[str] = []
    for line in lines:
        closing = _FENCE.fullmatch(line.rstrip("\r"))
        if closing and _closes(opening, closing):
            return Block(words[0], _joined(body), closed=True)
        body.append(line[indent:] if not line[:indent].strip() else line)
    return Block(words[0], _joined(body), closed=False)


def _closes(opening: re.Match[str], closing: re.Match[str]) -> bool:
    return (
        closing["fence"][0] == opening["fence"][0]
        and len(closing["fence"]) >= len(opening["fence"])
        and not closing["info"].strip()
        and len(closing["indent"].expandtabs(4)) <= len(opening["indent"].expandtabs(4)) + _LOOSE
    )


def _joined(lines: list[str]) -> str:
    code = "\n".join(lines)
    return code if not code or code.endswith("\n") else code + "\n"
