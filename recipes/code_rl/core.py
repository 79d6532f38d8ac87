"""Nouns of the recipe: a Row as it stood in a file, and the CodeProblem that a reader makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlap.errors import DataError
from sandbox.core import Problem

_SHOWN = 80
"""Characters of a faulty value that an error shows."""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A problem as the recipe sees it: what the policy is told, and what the sandbox judges by."""

    id: str
    statement: str
    """Natural language, without any prompt wrapping."""
    problem: Problem
    starter: str = ""
    """Code that the program begins with or must hold: a signature, a class, or an open ``def name(``."""
    reference: str | None = None
    """A whole program that passes all tests, where the source has one."""
    level: int = 0
    """Difficulty by the source's own scale; 0 means unknown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source. ``place`` is "path:line" ("id:row" on the hub): what an error names."""

    place: str
    values: Mapping[str, Any]
    name: str = ""
    """Names the row where it has no id of its own: "file/number"."""

    def fault(self, value: object, way_out: str) -> DataError:
        shown = value if isinstance(value, int | float | bool | None) else _shorten(value)
        return DataError(self.place, shown, way_out)

    def text(self, *names: str, default: str | None = None) -> str:
        """The first of these columns that is set, as text; ``default`` where none is."""
        for name in names:
            if (value := self.values.get(name)) is not None:
                if isinstance(value, str):
                    return value
                raise self.fault(value, f"{name} must be text, not {type(value).__name__}")
        if default is None:
            raise self.fault(sorted(self.values), f"column {names[0]!r} is missing or null")
        return default

    def parsed(self, name: str) -> Any:
        """A column that holds JSON as text, or the value itself."""
        value = self.values.get(name)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise self.fault(value, f"{name} is not JSON: {error}") from error

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
