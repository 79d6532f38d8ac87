"""Bounds on what is parsed: bodies, and texts in them that are JSON or Python themselves. Parsing holds every other
client up, so that it is bounded before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from sandbox.errors import InvalidProblem
from sandbox.serve.bounds import PYTHON_BYTES

TEXT_VALUES: Final = 200_000
"""Of one text inside a body that is JSON itself."""
FUNCTION_VALUES: Final = 2_000_000
"""Of the arguments and results of a function, in texts."""
_LINE: Final = 10
"""A line of arguments takes as long as so many values."""
_DATA: Final = frozenset(("input", "inputs", "output", "outputs", "expected"))
"""Fields that hold what a program reads and prints, or arguments and results of a function."""
FUNCTION_CHARACTERS: Final = 16 << 20
"""Characters of the texts that hold a function's arguments and results."""
DIGITS: Final = 100_000
"""Digits in those texts of integers of 1,000 digits or more: the time to parse one grows faster than its length."""
_LONG: Final = re.compile(r"(?<![0-9])[0-9]{1000,}")
_MARKS: Final = (b",", b"[", b"{")


def count_values(body: bytes, most: int) -> int:
    """How many values a JSON text has at most: what separates and opens them, outside of strings. 0 where they are
    certainly no more than ``most``.
    """
    if sum(map(body.count, _MARKS)) <= most:
        return 0
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if (quotes := plain.count(b'"')) > 2 * most:
        return quotes // 2
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, _MARKS))


def check_parsed(given: Any) -> None:
    """Raise InvalidProblem where parsing what is in a problem or in a label would hold every other client up."""
    python, values, data, function = 0, 0, list[str](), False
    for name, text in _texts(given):
        function = function or name in ("fn_name", "entry_point")
        if name in _DATA:
            data.append(text)
        else:
            python += len(text)
            if python > PYTHON_BYTES:
                raise InvalidProblem(f"asserts of {python} characters; a server parses at most {PYTHON_BYTES}")
    if not function:
        return
    if (length := sum(map(len, data))) > FUNCTION_CHARACTERS:
        raise InvalidProblem(f"{length} characters of values in texts; a server parses at most {FUNCTION_CHARACTERS}")
    digits = 0
    for text in data:
        digits += sum(map(len, _LONG.findall(text)))
        if digits > DIGITS:
            raise InvalidProblem(f"{digits} digits of long integers; a server parses at most {DIGITS}")
        values += _LINE * text.count("\n") + _values(text, FUNCTION_VALUES - values)
        if values > FUNCTION_VALUES:
            raise InvalidProblem(f"{values} JSON values in texts; a server parses at most {FUNCTION_VALUES}")


def _texts(given: Any) -> Iterator[tuple[str, str]]:
    """Each text that stands in a value, or in JSON inside of it, and under which name."""
    waiting, left = [("", given)], TEXT_VALUES
    while waiting:
        name, part = waiting.pop()
        match part:
            case str() if name in _DATA or part.lstrip()[:1] not in ("[", "{"):
                yield name, part
            case str():
                left -= (count := _values(part, left))
                if left < 0:
                    raise InvalidProblem(f"a text holds {count} JSON values; a server parses at most {TEXT_VALUES}")
                try:
                    waiting.append((name, json.loads(part)))
                except (ValueError, RecursionError):
                    yield name, part
            case {"cases": list(cases), "kind": kind}:
                yield from (("fn_name", "") for _ in range(kind == "function"))
                parsed = {"assert": (("", "input"),), "function": (("input", "input"), ("input", "expected"))}
                named = parsed.get(kind, ()) if isinstance(kind, str) else ()
                waiting += [(to, case.get(key)) for case in cases if isinstance(case, dict) for to, key in named]
            case list():
                waiting += [(name, entry) for entry in part if isinstance(entry, str | list | dict)]
            case dict():
                waiting += [(name if name in _DATA else key, entry) for key, entry in part.items()]


def _values(text: str, most: int) -> int:
    """How many JSON values a text has at most; counted outside of its strings only where they may be too many."""
    return count_values(text.encode("utf-8", "surrogatepass"), most) or sum(map(text.count, ",[{"))
