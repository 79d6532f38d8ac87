"""Finds a text in samples without parsing them: 200 MB in a tenth of a second."""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from pathlib import Path

from overlap.analysis import SampleHead

_NUMBERS = b', "token_ids": "'
"""Where the texts of a row end, and its numbers as base64 begin."""


def rows_with(text: str, path: Path, heads: Sequence[SampleHead]) -> list[SampleHead]:
    """The samples of ``heads`` in whose id, problem, prompt, answer, program, tests or messages ``text`` stands, as it
    is written.
    """
    wanted = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return [head for head in heads if _has(data, wanted, head.offset, head.offset + head.size)]
    except (FileNotFoundError, ValueError):  # no file, or an empty one
        return []


def _has(data: mmap.mmap, wanted: bytes, begin: int, end: int) -> bool:
    at = data.find(wanted, begin, end)
    if at < 0:
        return False
    numbers = data.find(_NUMBERS, begin, end)
    end = numbers if numbers >= 0 else end
    while 0 <= at < end:
        behind = at + len(wanted)
        if not (data[at - 1 : at] == b'"' and data[behind : behind + 2] == b'":'):  # else it is the name of a field
            return True
        at = data.find(wanted, behind, end)
    return False
