"""Bounds on what is parsed: bodies, and texts in them that are JSON or Python themselves. Parsing holds every other
client up, so that it is bounded before.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sandbox.errors import InvalidProblem
from sandbox.serve.bounds import PYTHON_BYTES

FUNCTION_VALUES: Final = 2_000_000
"""Values in the arguments and results of a function, in texts."""
_LINE: Final = 10
"""A line of arguments takes as long as this many values."""
FUNCTION_CHARACTERS: Final = 16 << 20
"""Characters of the texts that hold a function's arguments and results."""
DIGITS: Final = 100_000
"""Digits in those texts of integers of 1,000 digits or more: the time to parse one grows faster than its length."""
_LONG: Final = re.compile(r"(?<![0-9])[0-9]{1000,}")
_MARKS: Final = (b",", b"[", b"{")


def count_values(body: bytes, most: int) -> int:
    """Return how many values a JSON text has at most: what separates and opens them, outside of strings. 0 where there
    are certainly no more than ``most``.
    """
    if sum(map(body.count, _MARKS)) <= most:
        return 0
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if (quotes := plain.count(b'"')) > 2 * most:
        return quotes // 2
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, _MARKS))


def check_parsed(given: Any) -> None:
    """Raise InvalidProblem where parsing what is in the JSON object of a problem would hold every other client up."""
    if not isinstance(given, dict) or not isinstance(given.get("cases"), list):
        return  # no problem: it is refused
    cases = [case for case in given["cases"] if isinstance(case, dict)]
    python = _texts([given], "preamble")
    if given.get("kind") == "assert":
        python += _texts(cases, "input")
    if (length := sum(map(len, python))) > PYTHON_BYTES:
        raise InvalidProblem(f"asserts of {length} characters; a server parses at most {PYTHON_BYTES}")
    if given.get("kind") == "function":
        _check_calls(_texts(cases, "input") + _texts(cases, "expected"))


def _texts(given: list[dict[str, Any]], name: str) -> list[str]:
    return [text for part in given if isinstance(text := part.get(name), str)]


def _check_calls(texts: list[str]) -> None:
    if (length := sum(map(len, texts))) > FUNCTION_CHARACTERS:
        raise InvalidProblem(f"{length} characters of values in texts; a server parses at most {FUNCTION_CHARACTERS}")
    digits = values = 0
    for text in texts:
        digits += sum(map(len, _LONG.findall(text)))
        if digits > DIGITS:
            raise InvalidProblem(f"{digits} digits of long integers; a server parses at most {DIGITS}")
        left = FUNCTION_VALUES - values
        values += _LINE * text.count("\n")
        values += count_values(text.encode("utf-8", "surrogatepass"), left) or sum(map(text.count, ",[{"))
        if values > FUNCTION_VALUES:
            raise InvalidProblem(f"{values} JSON values in texts; a server parses at most {FUNCTION_VALUES}")
