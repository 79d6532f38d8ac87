"""The default output validator of the Kattis problem package format, as the mode `kattis` or `kattis(ARGUMENTS)`.

    case_sensitive                  letters must have the same case; without it A and a are the same (ASCII)
    space_change_sensitive          white space must be the same, byte for byte; without it it only parts tokens
    float_absolute_tolerance eps    where the expected token is a number, any number within eps will do
    float_relative_tolerance eps    the same with eps times the expected number; given both, either is enough
    float_tolerance eps             eps for both

Under a tolerance a whole number is a number as any other, so 1 and 1.0 are the same. A number is written in decimal,
with an exponent or without; nan, inf and hexadecimal are text. Numbers are compared as they are written and not as
doubles, so that a tolerance of 0 is exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandbox.compare.tokens import all_equal, is_within, read_decimal, tokens_of
from sandbox.errors import InvalidProblem

if TYPE_CHECKING:
    from decimal import Decimal

_MODE: Final = re.compile(r"kattis(?:\(([^()]*)\))?")
_NUMBER: Final = re.compile(rb"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_RUN: Final = re.compile(rb"[ \t\n\r\f\v]+|[^ \t\n\r\f\v]+")
_TOKEN: Final = re.compile(rb"[^ \t\n\r\f\v]+")
_TOLERANCES: Final = {
    "float_absolute_tolerance": ("absolute",),
    "float_relative_tolerance": ("relative",),
    "float_tolerance": ("absolute", "relative"),
}


@dataclass(frozen=True, slots=True)
class Flags:
    case_sensitive: bool = False
    space_change_sensitive: bool = False
    absolute: Decimal | None = None
    relative: Decimal | None = None


def kattis_comparison(mode: str) -> Callable[[bytes, bytes], bool] | None:
    """The comparison of a mode `kattis(...)`; None for another mode. Raises InvalidProblem for its arguments."""
    if not (found := _MODE.fullmatch(mode)):
        return None
    flags = read_flags((found[1] or "").split())
    return lambda output, expected: kattis_equal(output, expected, flags)


def read_flags(arguments: Sequence[str]) -> Flags:
    """Raises InvalidProblem for an argument that the default validator does not have, or that is there twice."""
    found: dict[str, bool | Decimal] = {}
    left = iter(arguments)
    for name in left:
        if name in ("case_sensitive", "space_change_sensitive"):
            found[name] = True
        elif name in _TOLERANCES:
            eps = _eps(name, next(left, ""))
            for side in _TOLERANCES[name]:
                if side in found:
                    raise InvalidProblem(f"kattis({' '.join(arguments)}): {name}: the {side} tolerance is given twice")
                found[side] = eps
        else:
            known = ", ".join(("case_sensitive", "space_change_sensitive", *_TOLERANCES))
            raise InvalidProblem(f"kattis({' '.join(arguments)}): argument {name!r} is unknown; use {known}")
    return Flags(**found)  # type: ignore[arg-type]


def _eps(name: str, text: str) -> Decimal:
    number = _number(text.encode())
    if number is None or number < 0:
        raise InvalidProblem(f"kattis: {name} {text!r}: give a number from 0 up, as in {name} 1e-6")
    return number


def kattis_equal(output: bytes, expected: bytes, flags: Flags) -> bool:
    find = _RUN if flags.space_change_sensitive else _TOKEN
    tokens = tokens_of(find, output), tokens_of(find, expected)
    return output == expected or all_equal(*tokens, lambda a, b: _same(a, b, flags))


def _same(token: bytes, expected: bytes, flags: Flags) -> bool:
    numeric = flags.absolute is not None or flags.relative is not None
    if numeric and (target := _number(expected)) is not None:
        return is_within(_number(token), target, flags.absolute, flags.relative)
    return not flags.case_sensitive and len(token) == len(expected) and token.lower() == expected.lower()


def _number(token: bytes) -> Decimal | None:
    return read_decimal(token) if _NUMBER.fullmatch(token) else None
