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

    It can always be written: bytes that are not UTF-8 and lone surrogates are in it as escapes, as in `\\xff`.
    """

    head: str
    tail: str = ""
    size: int = 0
    """Bytes of the whole, in UTF-8."""
    sha256: str = ""
    """SHA-256 of the whole, in hexadecimal; "" where `head` is the whole, to the byte."""

    @classmethod
    def of(cls, text: str | bytes, limit: int = EXCERPT_CHARS) -> Excerpt:
        """Keep at most about `limit` characters: three quarters from the beginning, one quarter from the end."""
        data = encode_text(text) if isinstance(text, str) else text
        writer = ExcerptWriter(limit)
        writer.add(data)
        return writer.excerpt()

    @property
    def whole(self) -> bool:
        """True when `head` is the text, without anything left out or escaped."""
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
        """Return text for people: without control characters, with the size of the whole where a part is left out."""
        head, tail = (printable(part, "\n\t") for part in (self.head, self.tail))
        return f"{head} … ({self.size} bytes) … {tail}" if tail else head


class ExcerptWriter:
    """Makes the excerpt of a text that comes in parts, without keeping it."""

    def __init__(self, limit: int = EXCERPT_CHARS) -> None:
        self.limit = limit
        self._room = _WIDEST * limit
        self._begin = self._end = b""
        self._size = 0
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self._size += len(data)
        self._digest.update(data)
        if (left := self._room - len(self._begin)) > 0:
            self._begin += data[:left]
        self._end = data[-self._room :] if len(data) >= self._room else (self._end + data)[-self._room :]

    def excerpt(self) -> Excerpt:
        """The excerpt of all parts so far."""
        begin, end = (part.decode("utf-8", "backslashreplace") for part in (self._begin, self._end))
        if self._size == len(self._begin) and len(begin) <= self.limit:
            exact = begin.encode() == self._begin
            return Excerpt(begin, "", self._size, "" if exact else self._digest.hexdigest())
        tail = max(1, self.limit // 4)
        return Excerpt(begin[: self.limit - tail], end[-tail:], self._size, self._digest.hexdigest())
