"""Finds a text in samples without parsing them: 200 MB in a tenth of a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from overlap.analysis.sample_file import SampleHead
from overlap.errors import ConfigError, error_reason

_NUMBERS = b', "token_ids": "'
"""Where the texts of a row end, and its numbers as base64 begin."""


def rows_with(text: str, path: Path, heads: Sequence[SampleHead]) -> list[SampleHead]:
    """The samples of ``heads`` in whose id, problem, prompt, answer, program, tests or messages ``text`` stands, as it
    is written.
    """
    wanted = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace")
    found = []
    try:
        with path.open("rb") as file:
            for head in heads:
                file.seek(head.offset)
                if _has(file.read(head.size), wanted):
                    found.append(head)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError("RUN", str(path), f"cannot be read ({error_reason(error)})") from error
    return found


def _has(row: bytes, wanted: bytes) -> bool:
    at = row.find(wanted)
    if at < 0:
        return False
    numbers = row.find(_NUMBERS)
    end = numbers if numbers >= 0 else len(row)
    while 0 <= at < end:
        behind = at + len(wanted)
        if not (row[at - 1 : at] == b'"' and row[behind : behind + 2] == b'":'):  # else it is the name of a field
            return True
        at = row.find(wanted, behind)
    return False
