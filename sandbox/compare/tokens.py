"""Tokens of two outputs, and numbers as they are written, exactly: a double would take 1e-400 for 0, and 0.300001 for
more than 1e-6 from 0.3.

The `decimal` module is imported on first use, because the zygote imports this module and forks for every run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, AnyStr, Final, TypeVar

if TYPE_CHECKING:
    from decimal import Context, Decimal

T = TypeVar("T", str, bytes)

_DIGITS: Final = 50  # of differences and bounds


def tokens_of(pattern: re.Pattern[AnyStr], text: AnyStr) -> Iterator[AnyStr]:
    """All matches, one at a time: splitting a 16 MB flood at once would cost half a gigabyte."""
    return (found[0] for found in pattern.finditer(text))


def all_equal(mine: Iterable[T], theirs: Iterable[T], equal: Callable[[T, T], bool]) -> bool:
    """Return whether there are as many, and each two are the same or `equal`."""
    pairs = zip_longest(mine, theirs)
    return all(a is not None and b is not None and (a == b or equal(a, b)) for a, b in pairs)


def read_decimal(text: bytes | str) -> Decimal | None:
    """A number that is written in ASCII decimal; None where its exponent has too many digits."""
    from decimal import Decimal

    number = Decimal(text if isinstance(text, str) else text.decode(), _context())
    return None if number.is_nan() else number


def is_within(
    number: Decimal | None, target: Decimal | None, absolute: Decimal | None, relative: Decimal | None
) -> bool:
    """Return whether a finite number is no further from the target than one of the tolerances that are given."""
    if number is None or target is None:
        return False
    apart = _context().subtract(number, target).copy_abs()  # infinite where a Decimal cannot hold it
    bounds = (absolute, None if relative is None else _context().multiply(relative, target.copy_abs()))
    return apart.is_finite() and any(bound is not None and apart <= bound for bound in bounds)


@functools.cache
def _context() -> Context:
    from decimal import MAX_EMAX, MIN_EMIN, Context

    return Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
