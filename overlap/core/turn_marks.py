"""Marks of turns that a text holds: the tokenizer would read them as marks of the chat template, and they are text.

messages ──▶ hidden ──▶ the chat template ──▶ ids: the template's marks as tokens, those of the texts spelt out
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

Encode = Callable[[str], Sequence[int]]
_STAND_IN = f"ovl7{secrets.token_hex(6)}"
"""Beginning of the stand-in for a mark while a template renders; it is random, so that no text contains it."""
_HIDDEN = re.compile(rf"{_STAND_IN}n(\d+)e")
_BARRED = re.compile(r"<([|\uff5c]).+\1>", re.DOTALL)
_ASKED = "ovl7asked"


class TurnMarks:
    """The texts that a tokenizer reads as single tokens with a meaning: its special tokens, and further added ones with
    which its chat template opens a turn. Not those of reasoning, which begin no turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._marks = sorted({mark for mark in _marks(tokenizer) if len(mark) > 1}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or r"(?!)")
        self._numbers = {mark: number for number, mark in enumerate(self._marks)}

    def among(self, text: str) -> bool:
        """True when a text contains a mark."""
        return self._pattern.search(text) is not None

    def hidden(self, value: Any) -> Any:
        """Messages or tools with a stand-in for each mark in their texts; the same object where there is none."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: f"{_STAND_IN}n{self._numbers[found[0]]}e", value)
        if isinstance(value, Mapping):
            made: Any = {self.hidden(name): self.hidden(entry) for name, entry in value.items()}
        elif isinstance(value, list | tuple):
            made = [self.hidden(entry) for entry in value]
        else:
            return value
        return value if made == value else made

    def shown(self, text: str) -> str:
        """A rendered text with the marks in the place of their stand-ins."""
        return _HIDDEN.sub(lambda found: self._marks[int(found[1])], text)

    def ids(self, text: str, encode: Encode) -> list[int]:
        """Ids of a rendered text. Without a stand-in they are the ids that ``encode`` returns for it."""
        first, *rest = _HIDDEN.split(text)
        found = list(encode(first)) if first or not rest else []
        for number, part in zip(rest[::2], rest[1::2], strict=True):
            mark = self._marks[int(number)]
            found += chain(encode(mark[0]), encode(mark[1:]), encode(part) if part else ())
        return found


def _marks(tokenizer: Any) -> Iterator[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    yield from (token.content for token in added if token.special)
    if hasattr(tokenizer, "decode"):
        yield from (str(tokenizer.decode([id])) for id in getattr(tokenizer, "all_special_ids", ()))
    rest = [token.content for token in added if not (token.special or "think" in token.content)]
    if rest and getattr(tokenizer, "chat_template", None):
        try:
            asked = [{"role": "user", "content": _ASKED}]
            text = str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))
        except Exception:  # a template is a program of the checkpoint; who renders meets the same
            return
        # Between bars are those of turns that this dialog has none of, as DeepSeek's of tools' results.
        source = str(tokenizer.chat_template)
        barred = {mark for mark in rest if _BARRED.fullmatch(mark) and mark in source}
        yield from (
            mark for mark in rest if (mark in text and not (mark.isspace() or mark.isalnum())) or mark in barred
        )
