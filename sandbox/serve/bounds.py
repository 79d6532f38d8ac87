"""The bounds on what clients may take of a server: the one place of these numbers.

Parsing holds every other client up, so that it is bounded before: bodies, and texts in them that are JSON or Python
themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sandbox.core.nouns import MIB, Limits
from sandbox.errors import InvalidProblem

QUEUE: Final = 1024
BODY_BYTES: Final = 64 * MIB
HELD_BYTES: Final = 1024 * MIB
JOBS_MAX: Final = 10_000
"""Jobs of one batch."""
PYTHON_BYTES: Final = 256 << 10
"""Bytes of the text of one problem that is parsed as Python: its asserts. Parsing it holds every other client up."""
TEXT_VALUES: Final = 200_000
"""JSON values of one text inside a body."""
FUNCTION_VALUES: Final = 2_000_000
"""Values in the arguments and results of a function, in texts."""
_LINE: Final = 10
"""A line of arguments takes as long as this many values."""
FUNCTION_CHARACTERS: Final = 16 << 20
"""Characters of the texts that hold a function's arguments and results."""
DIGITS: Final = 100_000
"""Digits in those texts of integers of 1,000 digits or more: the time to parse one grows faster than its length."""
LINES: Final = 1_000_000
FENCES: Final = 100_000
"""Fences in the answers of a request."""
RUN_S_MAX: Final = 600.0
"""The longest time that a client may ask for one run, or for one call of a session."""
MEMORY_BYTES: Final = 1024 * MIB
"""Memory of a session, and of a run of SandboxFusion's that leaves its memory open."""
SESSION_LIMITS: Final = Limits(cpu_s=RUN_S_MAX, wall_s=RUN_S_MAX, memory_bytes=MEMORY_BYTES)
"""Limits of one call in a session; memory is that of the session."""
RETRY_S: Final = 1
"""Seconds after which a client that was refused may ask again."""
_LONG: Final = re.compile(r"(?<![0-9])[0-9]{1000,}")
_MARKS: Final = (b",", b"[", b"{")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on requests and clients; those in seconds are waits for a client."""

    queue: int = QUEUE
    """Requests in hand, including running ones."""
    body_bytes: int = BODY_BYTES
    """Bytes of one request."""
    held_bytes: int = HELD_BYTES
    """Bytes of the bodies of all requests in hand."""
    body_s: float = 30.0
    """Seconds for the whole body of a request."""
    send_s: float = 30.0
    """Seconds for a client that reads no answer."""
    sessions: int = 64
    """Python sessions that are open at once."""


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
