"""The limits that a row of a contest names: time and memory, in the units of the set that it is of.

time_limit: 2.0 | "2 seconds" | "1500 ms" | {seconds: 2, nanos: 500000000}     seconds where no unit is named
memory_limit: 256.0 | "256 megabytes"        memory_limit_bytes: 268435456     MiB where no unit is named
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from overlap.rows.row import SourceRow
from sandbox.core.nouns import MIB

TIME_UNITS: Final = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
}
MEMORY_UNITS: Final = {
    **dict.fromkeys(("", "m", "mb", "mib", "megabyte", "megabytes", "mebibytes"), MIB),
    **dict.fromkeys(("k", "kb", "kib", "kilobyte", "kilobytes"), 1 << 10),
    **dict.fromkeys(("g", "gb", "gib", "gigabyte", "gigabytes"), 1 << 30),
    **dict.fromkeys(("b", "byte", "bytes"), 1),
}
_MILLISECONDS: Final = 100
"""No contest gives a program this many seconds: sets that name no unit and have such figures count milliseconds."""
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", re.IGNORECASE)


def time_limit_s(row: SourceRow) -> float | None:
    """CPU seconds that the row gives a program; None where it does not say."""
    value = row.parsed("time_limit") if _is_object(row.values.get("time_limit")) else row.values.get("time_limit")
    if isinstance(value, Mapping):
        parts = [_number(value.get(name) or 0) for name in ("seconds", "nanos")]
        return _said(row, "time_limit", None if None in parts else parts[0] + parts[1] * 1e-9)  # type: ignore[operator]
    return _quantity(row, "time_limit", TIME_UNITS)


def memory_limit_bytes(row: SourceRow) -> int | None:
    """Bytes that the row gives a program; None where it does not say."""
    found = _quantity(row, "memory_limit_bytes", MEMORY_UNITS | {"": 1})
    if found is None:
        found = _quantity(row, "memory_limit", MEMORY_UNITS)
    return None if found is None else int(found)


def _quantity(row: SourceRow, name: str, units: Mapping[str, float]) -> float | None:
    value, unit = row.values.get(name), ""
    if isinstance(value, str) and (found := _QUANTITY.fullmatch(value)):
        value, unit = float(found[1]), found[2].lower()
    number = _number(value)
    if number is None or (unit and unit not in units):
        return _said(row, name, None)
    if not unit and units is TIME_UNITS and number >= _MILLISECONDS:
        unit = "ms"
    return _said(row, name, number * units[unit])


def _said(row: SourceRow, name: str, limit: float | None) -> float | None:
    """The limit, where it is one; what a row says and is none gets a note."""
    if limit is not None and 0 < limit < float("inf"):
        return limit
    if row.values.get(name) not in (None, "", 0, -1):
        row.notes.append(f"with a {name} that is no limit, and not used")
    return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_object(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("{")
