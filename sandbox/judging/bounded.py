"""What an assert's outside part calls, bounded: the values are a program's, and the time is the judge's.

Long integers multiply and divide in the square of their length, and `sum` copies what it has so far with every item.
What would take more than about a second raises ValueError; no honest test comes near.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sandbox.compare import hashed

_WORK_MAX: Final = 1 << 30  # words or items that are read or copied


def total(items: Iterable[Any], start: Any = 0) -> Any:
    """sum(items, start)."""
    items = list(items)
    sizes = [_size(start), *map(_size, items)]
    # Numbers grow to the longest of them; lists and tuples to their whole length.
    longest = max(sizes) if all(isinstance(item, int | float | complex) for item in items) else sum(sizes)
    if len(sizes) * longest > _WORK_MAX and longest > 1:
        raise ValueError("too long a sum")
    return sum(items, start)


def check_operands(left: Any, right: Any) -> None:
    """Raises ValueError where a product or a quotient of the two would take too long."""
    if isinstance(left, int) and isinstance(right, int) and _size(left) * _size(right) > _WORK_MAX:
        raise ValueError("too long a product or quotient")


def _size(value: Any) -> int:
    """In words or items."""
    if isinstance(value, int):
        return 1 + value.bit_length() // 64
    return len(value) if isinstance(value, list | tuple) else 1


BOUNDED: Final = {"dict": hashed.make_dict, "frozenset": hashed.make_frozenset, "set": hashed.make_set, "sum": total}
