"""Two texts line by line: what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

CONTEXT, LINES = 2, 40
"""Equal lines around a difference, and lines shown in all."""


class DiffLine(NamedTuple):
    """``sign``: "-" is expected, "+" came, " " is in both, "…" stands for lines left out. ``number`` counts from 1 in
    its own text.
    """

    sign: str
    number: int
    text: str


def difference(expected: str, got: str) -> list[DiffLine]:
    """The lines in which the texts differ, with a few around them."""
    found = list(_lines(expected.splitlines(), got.splitlines()))
    more = len(found) - LINES
    return [*found[:LINES], DiffLine("…", 0, f"{more} more lines")] if more > 0 else found


def _lines(expected: list[str], got: list[str]) -> Iterator[DiffLine]:
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, expected[:2000], got[:2000], autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if number or group[0][1]:
            yield DiffLine("…", 0, "")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (DiffLine(" ", j + 1, got[j]) for j in range(j1, j2))
                continue
            yield from (DiffLine("-", i + 1, expected[i]) for i in range(i1, i2))
            yield from (DiffLine("+", j + 1, got[j]) for j in range(j1, j2))
