"""Comparisons that published graders make, so that their benchmarks can be matched exactly. Bytes in, yes or no out.

    lcb             LiveCodeBench: whole output and each line stripped, as many lines; a line is equal as text, or all
                    its tokens are decimal numbers and equal as such; results of functions are equal as in Python, where
                    1.0 and True are 1, with an outermost tuple as a list
    sf              SandboxFusion's common_oj: as many lines, each stripped and in lower case; a line is equal as text,
                    or is one number, within 1e-5 of the expected one, relative
    code_contests   tokens in lower case; equal as text, or two numbers less than 1e-5 apart, integers included

White space, digits and letters of `lcb` and `sf` are Python's (Unicode), those of `code_contests` ASCII. Lines and
tokens are taken one at a time: an output may be 16 MB of either.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final

from sandbox.compare.tokens import all_equal, tokens_of

_LINE: Final = re.compile(rb"[^\n]+|\n+")
_TOKEN: Final = re.compile(r"\S+")
_CONTEST_TOKEN: Final = re.compile(rb"[^ \n\t\r\v]+")
_CONTEST_NUMBER: Final = re.compile(rb"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|inf|infinity|nan(?:\(\w*\))?)")
_NUMERIC: Final = re.compile(r"[-+.\w]{1,64}|[-+.\d_eE]+")
_CLOSE: Final = 1e-5
_FLOOR: Final = 1e-10


def lcb(output: bytes, expected: bytes) -> bool:
    return _by_lines(output, expected, _same_decimals)


def lcb_value(value: Any, expected: Any) -> bool:
    """Compare a decoded result, which is of builtin types, with an expected JSON value."""
    with suppress(ArithmeticError):  # a Decimal that is a signalling NaN
        return bool((list(value) if type(value) is tuple else value) == expected)
    return False


def sf(output: bytes, expected: bytes) -> bool:
    return _by_lines(output, expected, _same_float)


def code_contests(output: bytes, expected: bytes) -> bool:
    if output == expected:
        return True

    def agree(equal: Callable[[bytes, bytes], bool]) -> bool:
        mine, theirs = (map(bytes.lower, tokens_of(_CONTEST_TOKEN, text)) for text in (output, expected))
        return all(a is not None and b is not None and equal(a, b) for a, b in zip_longest(mine, theirs))

    return agree(operator.eq) or agree(_same_contest)


def _by_lines(output: bytes, expected: bytes, equal: Callable[[str, str], bool]) -> bool:
    return output == expected or all_equal(_lines(output), _lines(expected), equal)


def _lines(text: bytes) -> Iterator[str]:
    """The stripped lines of the stripped text: blank ones only between others, and one blank line for a blank text."""
    blank, started = 0, False
    for found in _LINE.finditer(text):
        if found[0].startswith(b"\n"):
            blank += len(found[0])
        elif line := found[0].decode("utf-8", "surrogateescape").strip():
            if started:
                yield from ("" for _ in range(blank - 1))
            yield line
            blank, started = 0, True
    if not started:
        yield ""


def _same_decimals(mine: str, theirs: str) -> bool:
    from decimal import Decimal, DecimalException  # here: the zygote imports this module and forks for every run

    try:
        tokens = zip_longest(_TOKEN.finditer(mine), _TOKEN.finditer(theirs))
        return all(a and b and Decimal(a[0]) == Decimal(b[0]) for a, b in tokens)
    except DecimalException:  # no number, or one that equals nothing
        return False


def _same_float(mine: str, theirs: str) -> bool:
    """Or the same text, but for case: `lower` takes twelve bytes a letter, and makes at most three letters of one."""
    if len(mine) <= 3 * len(theirs) and len(theirs) <= 3 * len(mine) and mine.lower() == theirs.lower():
        return True
    if not (_NUMERIC.fullmatch(mine) and _NUMERIC.fullmatch(theirs)):  # float would quote all of it in its complaint
        return False
    try:
        number, target = float(mine), float(theirs)
    except ValueError:
        return False
    return abs(number - target) / max(abs(target), _FLOOR) < _CLOSE


def _same_contest(mine: bytes, theirs: bytes) -> bool:
    if not (_CONTEST_NUMBER.fullmatch(mine) and _CONTEST_NUMBER.fullmatch(theirs)):
        return mine == theirs
    return abs(_double(mine) - _double(theirs)) < _CLOSE


def _double(token: bytes) -> float:
    return math.nan if b"nan" in token else float(token)
