"""A row of a data set: its place, its columns, and why it cannot be used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from overlap.core import LeftOut
from overlap.core.errors import ConfigError, DataError
from sandbox.compare.values import finite_float
from sandbox.core.plain import plain_value, python_literal

MALFORMED = "malformed"
NO_TESTS = "no tests"
DUPLICATE = "id used twice"

IDS = ("id", "task_id", "problem_id", "question_id")
"""Columns in which the id of a row may stand."""
_SPLITS = {"train": "train", "heldout": "heldout", "test": "heldout", "validation": "heldout"}
_LISTS_MAX = 1 << 23
_SHOWN = 80
"""Characters of a faulty value that an error shows."""
_HELDOUT_SHARE = 10
"""One row in this many is held out where the held-out rows are not named."""


def is_held_out(id: str) -> bool:
    """True when the row of this id is held out where no data is named for the evaluation: a tenth of all, by a hash."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % _HELDOUT_SHARE == 0


def own_split(split: object, place: str, field: str) -> str:
    """Meaning of the column ``split`` of a row: "train", "heldout", or "" where there is none. Raises ConfigError for
    ``field``, from which the row at ``place`` comes.
    """
    if split is None or split == "":
        return ""
    if (meant := _SPLITS.get(split) if isinstance(split, str) else None) is None:
        way_out = f"its split is {_shorten(repr(split))}; use one of {', '.join(_SPLITS)}, or leave the column out"
        raise ConfigError(field, place, way_out)
    return meant


def held_out(rows: Iterable[tuple[str, object, str]], field: str) -> list[bool]:
    """Which rows of one source are held out, by (id, column ``split``, place) of each: those whose ``split`` says so,
    or, where no row has one, a tenth by a hash of the id. Raises ConfigError as ``own_split``.
    """
    known = list(rows)
    meant = [own_split(split, place, field) for _, split, place in known]
    return [split == "heldout" for split in meant] if any(meant) else [is_held_out(id) for id, _, _ in known]


class Unusable(DataError):
    """A row that gives no problem: ``reason`` is the short text under which it is counted."""

    def __init__(
        self, place: str, value: object, way_out: str, reason: str = MALFORMED, by_choice: bool = False
    ) -> None:
        super().__init__(place, value, way_out)
        self.reason, self.by_choice = reason, by_choice

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.value, self.way_out, self.reason, self.by_choice)

    def left_out(self) -> LeftOut:
        return LeftOut(self.field, self.reason, f"{self.value!r}: {self.way_out}", self.by_choice)


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a source. ``place`` is "path:line" ("id:row" on the hub): what an error names.

    Its values are plain, whatever library read them (``sandbox.core.plain.plain_value``), which raises ValueError.
    """

    place: str
    values: Mapping[str, Any]
    name: str = ""
    """Names the row where it has no id of its own: "file/number"."""
    notes: list[str] = field(default_factory=list)
    """Remarks of the reader of the row (``Prompt.notes``)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", plain_value(self.values))

    def having(self, **values: Any) -> SourceRow:
        """The same row with these columns, too."""
        return replace(self, values={**self.values, **values})

    def fault(self, value: object, way_out: str, reason: str = MALFORMED, *, by_choice: bool = False) -> Unusable:
        shown = value if isinstance(value, int | float | bool | None) else _shorten(value)
        return Unusable(self.place, shown, way_out, reason, by_choice)

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
            return decoded(text)
        except (ValueError, RecursionError) as error:
            complaint = error
        if text.lstrip()[:1] in ("{", "[", "("):
            with suppress(ValueError):  # the complaint about JSON is the one to tell
                return python_literal(text)
        raise self.fault(text, f"{name} is not JSON: {complaint}") from complaint

    def id(self, *names: str) -> str:
        """An id column as text (numbers are common); without one, the row's name."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
                return str(value)
        return self.name or self.place


def made_row(place: str, values: object, name: str) -> SourceRow | Unusable:
    """The row of these columns, or why it is none."""
    if not isinstance(values, Mapping):
        return SourceRow(place, {}).fault(values, "a row must be an object of columns")
    try:
        return SourceRow(place, values, name)
    except ValueError as error:
        return SourceRow(place, {}).fault(values, str(error))


def decoded(text: str) -> Any:
    """The value of JSON text. Raises ValueError, also for a number beyond a double and for more parts than memory may
    be needed for, and RecursionError.
    """
    if text.count("[") + text.count("{") > _LISTS_MAX or text.count(",") > 4 * _LISTS_MAX:
        raise ValueError(f"more than {_LISTS_MAX} lists, or {4 * _LISTS_MAX} values")
    found = json.loads(text, parse_float=finite_float)
    return plain_value(found) if "NaN" in text else found


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
