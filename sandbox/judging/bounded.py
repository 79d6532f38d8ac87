"""Arithmetic for asserts with bounded cost: the values are the program's, the time is the judge's.

Long integers multiply and divide in quadratic time, and `sum` copies its partial result for every item. Anything that
would take more than a good part of a second raises ValueError; no honest test comes near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from sandbox.compare import hashed

_SUM_MAX: Final = 1 << 28  # words or items that are copied
_PRODUCT_MAX: Final = 1 << 24  # words times words


def total(items: Iterable[Any], start: Any = 0) -> Any:
    """sum(items, start)."""
    items = list(items)
    size, work = _size(start), 0
    for item in items:  # numbers grow to the longest of them, lists and tuples to their whole length
        size = max(size, _size(item)) if isinstance(item, int | float | complex) else size + _size(item)
        work += size - 1
    if work > _SUM_MAX:
        raise ValueError("too long a sum")
    return sum(items, start)


def check_operands(left: Any, right: Any) -> None:
    """Raises ValueError where a product or a quotient of the two would take too long."""
    if isinstance(left, int) and isinstance(right, int) and _size(left) * _size(right) > _PRODUCT_MAX:
        raise ValueError("too long a product or quotient")


def _size(value: Any) -> int:
    """In words or items, at least 1."""
    if isinstance(value, int):
        return 1 + value.bit_length() // 64
    return 1 + len(value) if isinstance(value, list | tuple) else 1


BOUNDED: Final[dict[str, Callable[..., Any]]] = {
    "dict": hashed.make_dict,
    "frozenset": hashed.make_frozenset,
    "set": hashed.make_set,
    "sum": total,
}
