"""Convert values of numpy, pandas and Parquet to plain values."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any, Final

_PLAIN: Final = frozenset({str, int, float, bool, type(None), bytes})
_AS_PLAIN: Final = ("tolist", "to_pylist", "as_py")
"""Methods by which arrays, columns and scalars of numpy, pandas and Arrow return what they hold."""
_MISSING: Final = frozenset({"NAType", "NaTType"})
_LITERALS_MAX: Final = 1 << 21
"""Parts of a Python literal, each of which takes a few hundred bytes while it is read."""
_NODES_MAX: Final = 1 << 23
"""Parts of one value: a list in a list in a list, each ten times, unfolds from a few bytes to as many as one likes."""


def plain_value(value: Any) -> Any:
    """Convert a value to texts, numbers, lists and dicts: arrays and tuples to lists, numpy's scalars to numbers,
    pandas' missing values and a NaN that is the value of a dict's key to None. Values of other types are returned.

    Raises ValueError for what is nested too deep, or has too many parts.
    """
    try:
        return _plain(value, [_NODES_MAX])
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _plain(value: Any, left: list[int]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    left[0] -= 1
    if isinstance(value, list | tuple):
        left[0] -= len(value)
        if left[0] < 0:
            raise ValueError(f"more than {_NODES_MAX} parts")
        return [item if type(item) in _PLAIN else _plain(item, left) for item in value]
    if isinstance(value, Mapping):
        left[0] -= len(value)
        return {_plain(name, left): _named(_plain(item, left)) for name, item in value.items()}
    if kind.__name__ in _MISSING:
        return None
    for name in _AS_PLAIN:
        if callable(getattr(kind, name, None)):
            found = getattr(value, name)()
            return found if type(found) is kind else _plain(found, left)
    return value


def _named(value: Any) -> Any:
    return None if type(value) is float and value != value else value


def python_literal(text: str) -> Any:
    """The value of a Python literal. Raises ValueError for anything else, and for a number beyond a double."""
    if sum(map(text.count, ",[({")) > _LITERALS_MAX:
        raise ValueError(f"no Python literal of at most {_LITERALS_MAX} parts")
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"no Python literal: {error}") from error
    if _has_infinity(value):
        raise ValueError("holds a number beyond a double")
    return value


def _has_infinity(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_infinity, value)) or any(map(_has_infinity, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(_has_infinity, value))
    return isinstance(value, float) and math.isinf(value)


def strange_encoding(text: str) -> str:
    """Return what the beginning of a text shows about its file's encoding; "" for nothing strange."""
    if text.startswith(("\ufeff", "\udcef\udcbb\udcbf", "ï»¿")):
        return "begins with a byte order mark (BOM)"
    if text.startswith(("\udcff\udcfe", "\udcfe\udcff", "ÿþ", "þÿ")) or "\0" in text[:4]:
        return "is UTF-16, read as UTF-8"
    return ""
