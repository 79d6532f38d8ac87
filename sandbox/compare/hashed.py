"""Build sets and dicts of values that a program chose, in linear time.

Hashes of integers, floats and tuples are predictable: n of them with one hash take n² comparisons, and half a million
fit into a result. So hashes are counted before a table is built, and anything that would take more than `PER_ITEM`
comparisons per item is refused. (The worst honest input, the powers of two, takes 95 in the largest result.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

PER_ITEM: Final = 128


class Crowded(ValueError):
    """Too many different values with one hash."""


def make_set(items: Iterable[Any] = (), /) -> set[Any]:
    """set(items). Raises Crowded, and TypeError as `set` does."""
    items = list(items)
    check_hashing_cost(items)
    return set(items)


def make_frozenset(items: Iterable[Any] = (), /) -> frozenset[Any]:
    """frozenset(items). Raises Crowded, and TypeError as `frozenset` does."""
    return frozenset(make_set(items))


def make_dict(items: Any = (), /, **named: Any) -> dict[Any, Any]:
    """dict(items, **named). Raises Crowded, and what `dict` raises."""
    if not isinstance(items, dict):
        items = [(key, value) for key, value in items]
        check_hashing_cost([key for key, _ in items])
    return dict(items, **named)


def check_hashing_cost(items: Sequence[Hashable]) -> None:
    """Raises Crowded for what would take too many comparisons in one table."""
    budget = PER_ITEM * len(items)
    if len(items) <= 2 * PER_ITEM:
        return
    crowds = Counter(map(str, map(hash, items)))  # texts, whose hashes are randomized
    if sum(size * size for size in crowds.values()) <= 2 * budget:
        return
    known: dict[str, list[Hashable]] = {}
    for item in items:  # many may be equal, which costs nothing
        alike = known.setdefault(str(hash(item)), [])
        place = next((place for place, other in enumerate(alike) if other is item or other == item), len(alike))
        budget -= place
        if budget < 0:
            raise Crowded(f"{len(items)} values of which too many different ones have the same hash")
        if place == len(alike):
            alike.append(item)
