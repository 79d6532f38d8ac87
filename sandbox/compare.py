"""Does the output match what was expected? Bytes in, a named mode, a plain yes or no.

    exact        byte for byte
    lines        line by line, trailing white space of a line and trailing blank lines ignored
    tokens       token by token; a token is compared as a number only where the *expected* token is written as a float
    float(eps)   as tokens, and such a number may differ by eps, absolute or relative

A number is ASCII: sign, digits, one dot, exponent. So 007 is not 7, 1_000 is not 1000, and integers are compared as
text however long they are. nan matches only nan. Add a mode by one entry in `_MODES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from sandbox.errors import InvalidProblem

if TYPE_CHECKING:
    from decimal import Decimal

Matcher = Callable[[bytes, bytes], bool]

_FLOAT: Final = re.compile(rb"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d{1,6})?", re.ASCII)
_NUMBER: Final = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,6})?", re.ASCII)
_DIGITS_MAX: Final = 4096  # longer tokens are compared as text: Decimal is quadratic


def parse_mode(mode: str) -> Matcher:
    """The comparison that a mode names: matcher(output, expected). Raises InvalidProblem for an unknown one."""
    if matcher := _MODES.get(mode):
        return matcher
    if found := re.fullmatch(r"float\(([0-9.eE+-]+)\)", mode):
        try:
            eps = float(found[1])
        except ValueError:
            eps = -1.0
        if 0 < eps < 1:
            return _float_matcher(found[1])
    raise InvalidProblem(f"compare={mode!r} is unknown; use one of {', '.join(_MODES)}, float(1e-6)")


def tolerance(mode: str) -> float:
    """The eps of a mode for numbers inside function results; 0 where the mode has none."""
    parse_mode(mode)
    return float(mode[6:-1]) if mode.startswith("float(") else 0.0


def _exact(output: bytes, expected: bytes) -> bool:
    return output == expected


def _lines(output: bytes, expected: bytes) -> bool:
    if output == expected:
        return True
    mine, theirs = (text.rstrip().split(b"\n") for text in (output, expected))
    return len(mine) == len(theirs) and all(a.rstrip() == b.rstrip() for a, b in zip(mine, theirs, strict=True))


def _tokens_with(equal: Matcher) -> Matcher:
    def matches(output: bytes, expected: bytes) -> bool:
        if output.rstrip() == expected.rstrip():
            return True
        pairs = zip_longest(_words(output), _words(expected))
        return all(a is not None and b is not None and (a == b or equal(a, b)) for a, b in pairs)

    return matches


def _words(text: bytes) -> Iterator[bytes]:
    """Tokens one at a time: splitting a 16 MB flood at once would cost half a gigabyte."""
    return (found[0] for found in re.finditer(rb"[^ \t\n\r\f\v]+", text))


def _pair(token: bytes, expected: bytes) -> tuple[Decimal, Decimal] | None:
    if max(len(token), len(expected)) > _DIGITS_MAX:
        return None
    if not (_FLOAT.fullmatch(expected) and _NUMBER.fullmatch(token)):
        return None
    from decimal import Decimal  # here, because the zygote imports this module and forks for every run

    return Decimal(token.decode()), Decimal(expected.decode())


def _same_number(token: bytes, expected: bytes) -> bool:
    pair = _pair(token, expected)
    return pair is not None and pair[0] == pair[1]


def _float_matcher(eps: str) -> Matcher:
    def close(token: bytes, expected: bytes) -> bool:
        pair = _pair(token, expected)
        if pair is None:
            return False
        number, target = pair
        bound = type(target)(eps)
        return abs(number - target) <= max(bound, bound * abs(target))

    return _tokens_with(close)


_MODES: Final[dict[str, Matcher]] = {"exact": _exact, "lines": _lines, "tokens": _tokens_with(_same_number)}
