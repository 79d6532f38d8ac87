"""A row of a data set: where it stands, its columns, and why it cannot be used."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlap.core import LeftOut
from overlap.errors import DataError

MALFORMED = "malformed"
NO_TESTS = "no tests"
DUPLICATE = "id used twice"

IDS = ("id", "task_id", "problem_id", "question_id")
"""Columns in which the id of a row may stand."""
_SHOWN = 80
"""Characters of a faulty value that an error shows."""
_HELDOUT_SHARE = 10
"""One row in this many is held out where nobody says which."""


def is_held_out(id: str) -> bool:
    """Whether the row of this id is held out where no data is named for the evaluation: a tenth of all, by a hash."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % _HELDOUT_SHARE == 0


class Unusable(DataError):
    """A row that gives no problem: ``reason`` is the short text under which it is counted."""

    def __init__(self, place: str, value: object, way_out: str, reason: str = MALFORMED) -> None:
        super().__init__(place, value, way_out)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.value, self.way_out, self.reason)

    def left_out(self) -> LeftOut:
        return LeftOut(self.field, self.reason, f"{self.value!r}: {self.way_out}")


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a source. ``place`` is "path:line" ("id:row" on the hub): what an error names."""

    place: str
    values: Mapping[str, Any]
    name: str = ""
    """Names the row where it has no id of its own: "file/number"."""

    def fault(self, value: object, way_out: str, reason: str = MALFORMED) -> Unusable:
        shown = value if isinstance(value, int | float | bool | None) else _shorten(value)
        return Unusable(self.place, shown, way_out, reason)

    def without_tests(self) -> Unusable:
        """Nothing can pass by having no tests."""
        return self.fault(self.id(*IDS), "has no tests", NO_TESTS)

    def text(self, *names: str, default: str | None = None) -> str:
        """The first of these columns that is set, as text; ``default`` where none is."""
        for name in names:
            if (value := self.values.get(name)) is not None:
                if isinstance(value, str):
                    return value
                raise self.fault(value, f"{name} must be text, not {type(value).__name__}")
        if default is None:
            raise self.fault(sorted(map(str, self.values)), f"column {names[0]!r} is missing or null")
        return default

    def parsed(self, name: str) -> Any:
        """A column that holds JSON (or a Python literal) as text, or the value itself. Text in text is read twice."""
        value = self.values.get(name)
        for _ in range(2):
            value = self.literal(value, name) if isinstance(value, str) else value
        return value

    def literal(self, text: str, name: str) -> Any:
        """The value of a text in JSON; sets that were written with ``str`` hold Python's literals instead."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            complaint = error
        if text.lstrip()[:1] in ("{", "["):
            try:
                return ast.literal_eval(text.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                pass  # the complaint about JSON is the one to tell
        raise self.fault(text, f"{name} is not JSON: {complaint}") from complaint

    def id(self, *names: str) -> str:
        """An id column as text (numbers are common); without one, the row's name."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
                return str(value)
        return self.name or self.place


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
