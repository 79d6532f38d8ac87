"""A text shortened for people and files: its two ends, its size, and the digest of the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandbox.core.checks import encode_text, printable

EXCERPT_CHARS: Final = 800
_WIDEST: Final = 4
"""Bytes of the longest character in UTF-8."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning and the end of a text, or all of it where it is short.

    It can always be written: bytes that are not UTF-8 and lone surrogates stand in it as escapes, as in `\\xff`.
    """

    head: str
    tail: str = ""
    size: int = 0
    """Bytes of the whole, in UTF-8."""
    sha256: str = ""
    """Of the whole, in hexadecimal; "" where `head` is the whole, to the byte."""

    @classmethod
    def of(cls, text: str | bytes, limit: int = EXCERPT_CHARS) -> Excerpt:
        """Keep at most about `limit` characters: three quarters from the beginning, one quarter from the end."""
        data = encode_text(text) if isinstance(text, str) else text
        if len(data) <= _WIDEST * limit:
            shown = data.decode("utf-8", "backslashreplace")
            if len(shown) <= limit:
                exact = shown.encode() == data
                return cls(shown, "", len(data), "" if exact else hashlib.sha256(data).hexdigest())
        return cls.of_ends(data[: _WIDEST * limit], data[-_WIDEST * limit :], len(data), hashlib.sha256(data), limit)

    @classmethod
    def of_ends(cls, begin: bytes, end: bytes, size: int, digest: Any, limit: int = EXCERPT_CHARS) -> Excerpt:
        """The excerpt of a longer text from its two ends, of 4 * limit bytes each, and the hash object of the whole."""
        tail = max(1, limit // 4)
        first = begin.decode("utf-8", "backslashreplace")[: limit - tail]
        last = end.decode("utf-8", "backslashreplace")[-tail:]
        return cls(first, last, size, digest.hexdigest())

    @property
    def whole(self) -> bool:
        """Whether `head` is the text, without anything left out or escaped."""
        return not self.sha256

    def to_json(self) -> str | dict[str, Any]:
        """The text itself where it is whole, otherwise an object with head, tail, bytes and sha256."""
        if self.whole:
            return self.head
        return {"head": self.head, "tail": self.tail, "bytes": self.size, "sha256": self.sha256}

    @classmethod
    def from_json(cls, value: str | Mapping[str, Any]) -> Excerpt:
        """Raises KeyError and TypeError for anything that `to_json` does not write."""
        if isinstance(value, str):
            return cls(value, "", len(encode_text(value)))
        return cls(value["head"], value["tail"], value["bytes"], value["sha256"])

    def __str__(self) -> str:
        """For people: without control characters, and with the size of the whole where something is left out."""
        head, tail = (printable(part, "\n\t") for part in (self.head, self.tail))
        return f"{head} … ({self.size} bytes) … {tail}" if tail else head
