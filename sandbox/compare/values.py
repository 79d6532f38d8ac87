"""Values as they cross the jail's wall: builtin types only, written as tagged JSON, never pickled.

`encode` runs inside, beside the program: only exact builtin types pass, so an int subclass with its own `__eq__` stays
behind. `decode` and `same` run in the judge, on plain values that can no longer run any code.

    JSON null, true, text, short integers, floats, lists   as themselves
    {"i": "0x.."}  {"t": [..]}  {"s": [..]}  {"z": [..]}    long int, tuple, set, frozenset
    {"d": [[k, v], ..]}  {"b": "hex"}  {"c": [re, im]}      dict, bytes, complex
    {"q": [..]}  {"f": [n, d]}  {"n": "1.50"}  {"r": [..]}  deque, Fraction, Decimal, range
    {"y": [kind, ..]}                                       date, time and datetime without a zone, timedelta
    {"g": [..]}  {"k": [..]}  {"v": [..]}  {"m": [[k, v]]}  iterator, and a dict's keys, values and items: asserts only

A namedtuple crosses as a tuple, a bytearray as bytes, a scalar of numpy and a member of IntEnum or StrEnum as its
number or text.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from decimal import Decimal

from sandbox.compare import hashed
from sandbox.compare.tokens import is_within, read_decimal

DEPTH_MAX: Final = 200
_SHORT: Final = 1 << 53
_KEY_BITS_MAX: Final = 14_000
_FLOAT_MAX: Final = sys.float_info.max
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
_ROWS: Final[dict[str, Callable[[Any], Any]]] = {
    "t": tuple, "s": hashed.make_set, "z": hashed.make_frozenset, "q": deque, "g": iter,
}  # fmt: skip
_TAGS: Final[dict[type, str]] = {tuple: "t", set: "s", frozenset: "z", deque: "q"}
_VIEWS: Final[dict[type, str]] = {type({}.keys()): "k", type({}.values()): "v", type({}.items()): "m"}
_DATES: Final[dict[str, tuple[str, ...]]] = {
    "date": ("year", "month", "day"),
    "time": ("hour", "minute", "second", "microsecond"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds"),
}
_ITEMS_MAX: Final = 1 << 20  # of a range, and of an iterator that may have no end
_BITS_MAX: Final = 1 << 16  # of a fraction's parts, and digits of a decimal: longer ones take the judge's time


class Unencodable(Exception):
    """A value that cannot cross: its type, or its depth."""


Other = Callable[[Any, int], Any]


def encode_value(value: Any, depth: int = 0, other: Other | None = None) -> Any:
    """`value` as JSON data. `other` is asked for what has no form, with the depth. Raises Unencodable."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -_SHORT < value < _SHORT else {"i": hex(value)}
    if depth >= DEPTH_MAX:
        raise Unencodable(f"a value nested deeper than {DEPTH_MAX}")
    if kind is list:
        return [encode_value(item, depth + 1, other) for item in value]
    if kind in _TAGS:
        return {_TAGS[kind]: [encode_value(item, depth + 1, other) for item in value]}
    if kind in _DICTS:
        return {"d": [[encode_value(k, depth + 1, other), encode_value(v, depth + 1, other)] for k, v in value.items()]}
    if kind is bytes or kind is bytearray:
        return {"b": value.hex()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    return _encode_rare(value, kind, depth, other)


def _encode_rare(value: Any, kind: type, depth: int, other: Other | None) -> Any:
    if kind is range and len(value) <= _ITEMS_MAX:
        return {"r": [encode_value(part) for part in (value.start, value.stop, value.step)]}
    if _is(kind, "fractions", "Fraction") and max(map(int.bit_length, value.as_integer_ratio())) <= _BITS_MAX:
        return {"f": [encode_value(part) for part in value.as_integer_ratio()]}
    if _is(kind, "decimal", "Decimal") and _is_short(value):
        return {"n": str(value)}
    if (name := kind.__name__) in _DATES and _is(kind, "datetime", name) and getattr(value, "tzinfo", None) is None:
        return {"y": [name, *(getattr(value, part) for part in _DATES[name])]}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"t": [encode_value(item, depth + 1, other) for item in tuple.__iter__(value)]}
    plain = _scalar(value, kind)
    if type(plain) in (bool, int, float, complex, str):
        return encode_value(plain, depth)
    if other is not None:
        return other(value, depth)
    raise Unencodable(f"a {kind.__name__}")


def _is(kind: type, module: str, name: str) -> bool:
    """Return whether `kind` is `module.name`, without importing the module: every fork pays for what is loaded."""
    return kind is getattr(sys.modules.get(module), name, None)


def _scalar(value: Any, kind: type) -> Any:
    """Return the value of a member of an enumeration of numbers or texts, or of a scalar of numpy; else None."""
    if isinstance(value, Enum) and isinstance(value, int | float | str):
        return value._value_
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        return value.item()
    return None


def _is_short(value: Decimal) -> bool:
    return not value.is_finite() or (abs(value.adjusted()) <= _BITS_MAX and len(value.as_tuple().digits) <= _BITS_MAX)


def encode_lazy(value: Any, depth: int, other: Other | None = None) -> Any:
    """An iterator, by all that it has still to give, or a view of a dict; `other` as above. Raises Unencodable."""
    kind = type(value)
    if kind in _VIEWS:
        return {_VIEWS[kind]: [encode_value(item, depth + 1, other) for item in value]}
    if isinstance(value, Iterator):
        items = list(islice(value, _ITEMS_MAX + 1))
        if len(items) <= _ITEMS_MAX:
            return {"g": [encode_value(item, depth + 1, other or encode_lazy) for item in items]}
    raise Unencodable(f"a {kind.__name__}")


@contextmanager
def acyclic() -> Iterator[None]:
    """Pause garbage collection while values without cycles are made: it would look through all of them repeatedly."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


Known = Callable[[str, Any, int], Any]


def decode_value(data: Any, depth: int = 0, other: Known | None = None) -> Any:
    """The inverse of `encode`; `other` reads a tag that is not ours. Raises ValueError for anything else."""
    if depth > DEPTH_MAX:
        raise ValueError("nested too deep")
    if isinstance(data, list):
        return [decode_value(item, depth + 1, other) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("not a tagged value")
    ((tag, body),) = data.items()
    try:
        return _decode_tagged(tag, body, depth + 1, other)
    except (TypeError, KeyError, ArithmeticError) as error:
        raise ValueError(f"not a tagged value: {error}") from error


def _decode_tagged(tag: str, body: Any, depth: int, other: Known | None) -> Any:
    if tag == "i":
        return int(body, 16)
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "c":
        return complex(*body)
    if tag == "d":
        pairs = [(decode_value(key, depth, other), decode_value(value, depth, other)) for key, value in body]
        return hashed.make_dict(pairs)
    if type(body) is not list and (tag in _ROWS or tag in ("k", "v", "m")):
        raise ValueError("not a row")  # of a range it would be a long one, out of a short text
    if tag in _ROWS:
        return _ROWS[tag](decode_value(body, depth, other))
    if tag in ("k", "v", "m"):
        return _decode_view(tag, decode_value(body, depth, other))
    if tag == "y":
        return _decode_date(*body)
    if tag in ("r", "f", "n"):
        return _decode_number(tag, body)
    if other is not None:
        return other(tag, body, depth)
    raise ValueError(f"not a tagged value: {tag!r}")


def _decode_view(tag: str, items: list[Any]) -> Any:
    if tag == "v":
        return dict(enumerate(items)).values()
    if tag == "k":
        return hashed.make_dict((item, None) for item in items).keys()
    return hashed.make_dict(items).items()


def _decode_date(kind: str, *parts: int) -> Any:
    import datetime

    if kind not in _DATES or any(type(part) is not int for part in parts):
        raise ValueError("not a date")
    return getattr(datetime, kind)(*parts)


def _decode_number(tag: str, body: Any) -> Any:
    """range, Fraction or Decimal, no longer than `encode` lets pass."""
    from decimal import Decimal
    from fractions import Fraction

    if tag == "n":
        if type(body) is not str or len(body) > 2 * _BITS_MAX or not _is_short(number := Decimal(body)):
            raise ValueError("not a decimal")
        return number
    parts = decode_value(body)
    if any(type(part) is not int for part in parts):
        raise ValueError("not whole numbers")
    if tag == "f":
        if max(part.bit_length() for part in parts) > _BITS_MAX:
            raise ValueError("a fraction too long")
        return Fraction(*parts)
    row = range(*parts)
    if len(row) > _ITEMS_MAX:
        raise ValueError("a range too long")
    return row


def loads(text: bytes | str) -> Any:
    """Parse JSON, with integers of any length. Raises ValueError, also for depth and for a number beyond a double."""
    try:
        return json.loads(text, parse_int=_int, parse_float=finite_float)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def finite_float(digits: str) -> float:
    """The number of a JSON text. Raises ValueError for one beyond a double."""
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits[:40]} is beyond a double")
    return number


def _int(digits: str) -> int:
    """int(digits) beyond the interpreter's limit of 4300, a piece at a time."""
    if len(digits) <= 4000:
        return int(digits)
    if digits[0] == "-":
        return -_int(digits[1:])
    half = len(digits) // 2
    return _int(digits[:-half]) * int(10**half) + _int(digits[-half:])


def same(value: Any, expected: Any, eps: str = "") -> bool:
    """Return whether a decoded result is the expected JSON value, types included.

    True is not 1 and 1.0 is not 1. A tuple counts as a list and an integer key as its text, for JSON has no others.
    Where a float is expected an int of the same value will do. With `eps` a float of the same value will do where an
    int is expected, and from an expected float the difference may be `eps`, absolute or relative.
    """
    kind = type(expected)
    if kind is float:
        return type(value) in (int, float) and _close(value, expected, eps)
    if kind is int and eps and type(value) is float:
        return bool(value == expected)
    if kind is list:
        return (
            type(value) in (list, tuple, deque)
            and len(value) == len(expected)
            and all(same(a, b, eps) for a, b in zip(value, expected, strict=True))
        )
    if kind is dict:
        if type(value) is not dict or len(value) != len(expected):
            return False
        named = {_name(key): item for key, item in value.items()}
        return named.keys() == expected.keys() and all(same(named[key], expected[key], eps) for key in expected)
    return type(value) is kind and bool(value == expected)


def _name(key: Any) -> Any:
    """A key as JSON has it. One that is too long to be written in decimal is no JSON key."""
    return str(key) if type(key) is int and key.bit_length() < _KEY_BITS_MAX else key


def _close(value: float, expected: float, eps: str) -> bool:
    """Compare by the decimals to which the numbers are printed, as float(eps) compares what is printed."""
    if value == expected or (value != value and expected != expected):
        return True
    if not eps or abs(value) > _FLOAT_MAX or abs(expected) > _FLOAT_MAX or value != value or expected != expected:
        return False
    bound = read_decimal(eps)
    return is_within(read_decimal(repr(value)), read_decimal(repr(expected)), bound, bound)
