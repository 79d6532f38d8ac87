"""Values as they cross the jail's wall: builtin types only, written as tagged JSON, never pickled.

`encode` runs inside, beside the program: only exact builtin types pass, so an int subclass with its own `__eq__` stays
behind. `decode`, `same` and `canonical` run in the judge, on plain values that can no longer run anybody's code.

    JSON null, true, text, short integers, floats, lists   as themselves
    {"i": "0x.."}  {"t": [..]}  {"s": [..]}  {"z": [..]}    long int, tuple, set, frozenset
    {"d": [[k, v], ..]}  {"b": "hex"}  {"c": [re, im]}      dict, bytes, complex
"""

from __future__ import annotations

import gc
import json
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sandbox.compare import hashed

DEPTH_MAX: Final = 200
_SHORT: Final = 1 << 53
_KEY_BITS_MAX: Final = 14_000
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
_MAKERS: Final = {"t": tuple, "s": hashed.make_set, "z": hashed.make_frozenset}


class Unencodable(Exception):
    """A value that cannot cross: its type, or its depth."""


def encode(value: Any, depth: int = 0) -> Any:
    """`value` as JSON data. Raises Unencodable."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -_SHORT < value < _SHORT else {"i": hex(value)}
    if depth >= DEPTH_MAX:
        raise Unencodable(f"a value nested deeper than {DEPTH_MAX}")
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    for tag, known in (("t", tuple), ("s", set), ("z", frozenset)):
        if kind is known:
            return {tag: [encode(item, depth + 1) for item in value]}
    if kind in _DICTS:
        return {"d": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if kind is bytes:
        return {"b": value.hex()}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    raise Unencodable(f"a {kind.__name__}")


@contextmanager
def acyclic() -> Iterator[None]:
    """While values are made that hold no cycles: the collector would look through all of them time and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def decode(data: Any, depth: int = 0) -> Any:
    """The inverse of `encode`. Raises ValueError for anything that `encode` does not write."""
    if depth > DEPTH_MAX:
        raise ValueError("nested too deep")
    if isinstance(data, list):
        return [decode(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("not a tagged value")
    ((tag, body),) = data.items()
    try:
        return _decode_tagged(tag, body, depth + 1)
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"not a tagged value: {error}") from error


def _decode_tagged(tag: str, body: Any, depth: int) -> Any:
    if tag == "i":
        return int(body, 16)
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "c":
        return complex(*body)
    if tag == "d":
        return hashed.make_dict((decode(key, depth), decode(value, depth)) for key, value in body)
    return _MAKERS[tag](decode(item, depth) for item in body)


def loads(text: bytes | str) -> Any:
    """Parse JSON, with integers of any length. Raises ValueError, also for depth."""
    try:
        return json.loads(text, parse_int=_int)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _int(digits: str) -> int:
    """int(digits) beyond the interpreter's limit of 4300, a piece at a time."""
    if len(digits) <= 4000:
        return int(digits)
    if digits[0] == "-":
        return -_int(digits[1:])
    half = len(digits) // 2
    return _int(digits[:-half]) * int(10**half) + _int(digits[-half:])


def same(value: Any, expected: Any, eps: float = 0.0) -> bool:
    """Is a decoded result the expected JSON value, types included?

    True is not 1 and 1.0 is not 1. A tuple counts as a list and an integer key as its text, for JSON has no others.
    Where a float is expected an int of the same value will do. With `eps` a float will do where an int is expected,
    and where either is a float the difference may be `eps`, absolute or relative.
    """
    kind = type(expected)
    if kind is float or (kind is int and eps and type(value) is float):
        return type(value) in (int, float) and _close(value, expected, eps)
    if kind is list:
        return (
            type(value) in (list, tuple)
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


def _close(value: float, expected: float, eps: float) -> bool:
    if expected != expected:
        return value != value
    if value == expected:
        return True
    try:
        return abs(value - expected) <= eps * max(1.0, abs(expected)) and math.isfinite(expected)
    except OverflowError:
        return False
