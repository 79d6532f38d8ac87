"""Compare an output with what was expected: bytes in, a named mode, a plain yes or no.

    exact        byte for byte
    lines        line by line, trailing white space of a line and trailing blank lines ignored
    tokens       token by token; a token is compared as a number only where the *expected* token is written as a float
    float(eps)   token by token; where the expected token is written as a float, a number may differ from it by eps,
                 absolute or relative; where it is written as an integer, it must be that integer
    lcb, sf, code_contests    as those graders do (see published.py)
    kattis, kattis(...)       as the default output validator of contest packages, with its arguments (see kattis.py)
    checker      a program of the problem's author decides (see referee.py); there is nothing to compare here

`+listed` behind a mode: a function's result in a list of one is as good as the bare one (see `LISTED`).

A number is ASCII decimal: sign, digits, one dot, exponent of up to six digits; 0x10 and 1_000 are texts. So are
integers in tokens; in float(eps), -0 is 0, and 1e3 or 1000.0 are 1000, but 0101 is a text and not 101. There nan equals
nan, and inf or infinity, in any case, one of the same sign, and nothing else. Add a mode by one entry in `MODES`.
Values of functions are compared with their types, but for lcb (see published.py) and float(eps): its eps reaches the
floats in them, and an equal float is accepted for an expected integer.

All of it takes time that grows with the bytes compared: no pattern here can match one text in two ways.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any, Final

from sandbox.compare import published, values
from sandbox.compare.tokens import all_equal, is_within, read_decimal, tokens_of
from sandbox.errors import InvalidProblem

CHECKER: Final = "checker"
LISTED: Final = "+listed"
"""APPS writes the result 5 as [5], and its graders accept both, as no row says which of them its functions return."""

Matcher = Callable[[bytes, bytes], bool]

_ROW: Final = re.compile(rb"[^\n]*(?:\n|\Z)")
_WORD: Final = re.compile(rb"[^ \t\n\r\f\v]+")
_EXPONENT: Final = rb"[eE][-+]?\d{1,6}"
_FLOAT: Final = re.compile(rb"[-+]?(?:(?:\d+\.\d*|\.\d+)(?:%b)?|\d+%b)" % (_EXPONENT, _EXPONENT))
_NUMBER: Final = re.compile(rb"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:%b)?" % _EXPONENT)
_INTEGER: Final = re.compile(rb"[-+]?(?:0|[1-9]\d*)")  # with further digits in front it is a text of digits
_NO_NUMBER: Final = re.compile(rb"([-+]?)(?:(nan)|inf|infinity)", re.IGNORECASE)


def parse_mode(mode: str) -> Matcher:
    """The comparison that a mode names: matcher(output, expected). Raises InvalidProblem for an unknown one."""
    mode = mode.removesuffix(LISTED)
    if found := MODES.get(mode):
        return found
    if eps := _eps(mode):
        return _float_matcher(eps)
    if mode.startswith("kattis"):
        from sandbox.compare import kattis  # here, because the zygote imports this module and forks for every run

        if packaged := kattis.kattis_comparison(mode):
            return packaged
    names = ", ".join([*MODES, CHECKER, "float(1e-6)", "kattis(float_tolerance 1e-6)"])
    raise InvalidProblem(f"compare={mode!r} is unknown; use one of {names}")


def check_mode(mode: str) -> None:
    """Raises InvalidProblem for an unknown mode."""
    if mode != CHECKER:
        parse_mode(mode)


def same_result(mode: str, value: Any, expected: Any) -> bool:
    """Return whether the decoded result of a function is the expected JSON value."""
    if mode.endswith(LISTED):
        mode = mode.removesuffix(LISTED)
        if type(value) is list and len(value) == 1 and same_result(mode, value[0], expected):
            return True
    if mode == "lcb":
        return published.lcb_value(value, expected)
    return values.same(value, expected, _eps(mode) or "")


def _eps(mode: str) -> str | None:
    """The text of eps in float(eps), where that is a number between 0 and 1."""
    eps = mode[6:-1] if mode.startswith("float(") and mode.endswith(")") else ""
    return eps if _NUMBER.fullmatch(eps.encode("utf-8", "replace")) and 0 < float(eps) < 1 else None


def _lines(output: bytes, expected: bytes) -> bool:
    rows = tokens_of(_ROW, output.rstrip()), tokens_of(_ROW, expected.rstrip())
    return output == expected or all_equal(*rows, lambda a, b: a.rstrip() == b.rstrip())


def _tokens_with(equal: Matcher) -> Matcher:
    def matches(output: bytes, expected: bytes) -> bool:
        words = tokens_of(_WORD, output), tokens_of(_WORD, expected)
        return output.rstrip() == expected.rstrip() or all_equal(*words, equal)

    return matches


def _same_number(token: bytes, expected: bytes) -> bool:
    are_numbers = _FLOAT.fullmatch(expected) and _NUMBER.fullmatch(token)
    return bool(are_numbers) and read_decimal(token) == read_decimal(expected)


def _float_matcher(eps: str) -> Matcher:
    bound = functools.cache(lambda: read_decimal(eps))

    def close(token: bytes, expected: bytes) -> bool:
        if _FLOAT.fullmatch(expected) and _NUMBER.fullmatch(token):
            return is_within(read_decimal(token), read_decimal(expected), bound(), bound())
        if _INTEGER.fullmatch(expected) and (_INTEGER.fullmatch(token) or _FLOAT.fullmatch(token)):
            return read_decimal(token) == read_decimal(expected)
        return _same_special(token, expected)

    return _tokens_with(close)


def _same_special(token: bytes, expected: bytes) -> bool:
    """Two NaNs, or two infinities of one sign."""
    mine, theirs = _NO_NUMBER.fullmatch(token), _NO_NUMBER.fullmatch(expected)
    if mine is None or theirs is None or bool(mine[2]) != bool(theirs[2]):
        return False
    return bool(mine[2]) or (mine[1] == b"-") == (theirs[1] == b"-")


MODES: Final[dict[str, Matcher]] = {
    "exact": operator.eq,
    "lines": _lines,
    "tokens": _tokens_with(_same_number),
    "lcb": published.lcb,
    "sf": published.sf,
    "code_contests": published.code_contests,
}
