"""Numbers as they are written, exactly: a double would take 1e-400 for 0, and 0.300001 for more than 1e-6 from 0.3.

The `decimal` module is imported on first use, because the zygote imports this module and forks for every run.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from decimal import Context, Decimal

_DIGITS: Final = 50  # of differences and bounds


def read_decimal(text: bytes | str) -> Decimal | None:
    """A number that is written in ASCII decimal; None where its exponent has too many digits."""
    from decimal import Decimal, InvalidOperation

    try:
        return Decimal(text if isinstance(text, str) else text.decode())
    except InvalidOperation:
        return None


def is_within(
    number: Decimal | None, target: Decimal | None, absolute: Decimal | None, relative: Decimal | None
) -> bool:
    """Return whether a finite number is no further from the target than one of the tolerances that are given."""
    if number is None or target is None:
        return False
    context = _context()
    try:
        apart = context.subtract(number, target).copy_abs()
        return (absolute is not None and apart <= absolute) or (
            relative is not None and apart <= context.multiply(relative, target.copy_abs())
        )
    except ArithmeticError:  # the difference is past what a Decimal can hold
        return False


@functools.cache
def _context() -> Context:
    from decimal import MAX_EMAX, MIN_EMIN, Context

    return Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)
