"""Values and objects between two processes, as if they were in one.

Both sides keep a number for each list, dict, set, deque and object of the preamble's classes that has crossed and that
both may still use. It crosses as its number, with its parts where they have changed, so one object on one side is one
object on the other, and a change on one side is seen on the other at the next message.

    message   [roots, [[number, kind, parts], ..]], and numbers that the sender does not use any more
"""

from __future__ import annotations

import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from itertools import chain
from typing import Any, Final

from sandbox.compare import Unencodable, decode_value, encode_value, hashed

Module = dict[str, Any]
_KINDS: Final[dict[type, str]] = {
    list: "l", deque: "q", set: "s", dict: "d", OrderedDict: "d", defaultdict: "d", Counter: "d",
}  # fmt: skip
_MAKE: Final[dict[str, type]] = {"l": list, "q": deque, "s": set, "d": dict}
_RANKS: Final = {"l": 1, "q": 1, "s": 2, "d": 2}
"""Objects are filled first, for their attributes may tell their hash, and what is hashed last."""
_AT_ONCE: Final = frozenset({int, str, float, bool, type(None)})
_SHORT: Final = 1 << 53
_WORK_MAX: Final = 30_000_000
"""Parts that are looked at for changes in one test, about a second's work."""
_HELD_BY_US: Final = 2  # our table, and the question itself
_DEPTH_MAX: Final = 100  # of tuples in each other


class Wire:
    """One side's end. `side`: 0 or 1."""

    def __init__(self, module: Module, classes: list[str], side: int) -> None:
        self.module, self.classes = module, classes
        self.shared: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.seen: dict[int, list[Any]] = {}
        """The parts that both sides know, by number."""
        self.inner: dict[int, list[int]] = {}
        """Those of them that have numbers."""
        self.next, self.work = side, 0

    @property
    def is_tired(self) -> bool:
        """Objects lose their identity with each message from here on."""
        return self.work > _WORK_MAX

    def foreign(self, value: Any, depth: int) -> Any:
        """The form of what is no data. Raises Unencodable."""
        raise NotImplementedError

    def known(self, tag: str, body: Any) -> Any:
        """The inverse of `foreign`. Raises ValueError."""
        raise NotImplementedError

    def kind_of(self, value: Any) -> str | None:
        """What has a number: its kind, or the name of its class; None of any other value."""
        cls = type(value)
        if cls in _KINDS:
            return _KINDS[cls]
        if cls.__name__ not in self.classes or self.module.get(cls.__name__) is not cls:
            return None
        return cls.__name__ if _is_simple(cls) and _fits(cls, value.__dict__) else None

    def write(self, roots: list[Any]) -> list[Any]:
        """Return roots and table of a message. Raises Unencodable."""
        body, table = [self._encode(root, 0) for root in roots], []
        for number in _growing(self.shared):
            made = self.shared[number]
            parts = _parts(made)
            self.work += len(parts)
            old = self.seen.get(number)
            if old is not None and len(old) == len(parts) and all(map(operator.is_, old, parts)):
                continue
            table.append([number, self._kind(made), [self._encode(part, 0) for part in parts]])
            self._see(number, parts)
        return [body, table]

    def read(self, message: list[Any]) -> list[Any]:
        """The roots of a message. Raises ValueError, LookupError, TypeError."""
        roots, table = message
        changed = []
        for number, kind, parts in table:
            if number not in self.shared:
                made = _MAKE[kind]() if kind in _MAKE else object.__new__(self._own_class(kind))
                self._keep(number, made)
            elif self._kind(self.shared[number]) != kind:
                raise ValueError("an object that has changed its kind")
            changed.append((self.shared[number], kind, parts, number))
        for made, kind, parts, number in sorted(changed, key=lambda one: _RANKS.get(one[1], 0)):
            self._fill(made, kind, [self._decode(part) for part in parts])
            self._see(number, _parts(made))
        return [self._decode(root) for root in roots]

    def unused(self) -> list[int] | None:
        """Return the numbers of what nothing on this side uses but we, None for all, from here on. Call it after `write`."""
        inside = Counter(chain.from_iterable(self.inner.values()))
        used = [n for n in self.shared if sys.getrefcount(self.shared[n]) > _HELD_BY_US + 2 * inside[n]]
        for number in _growing(found := dict.fromkeys(used)):
            found.update(dict.fromkeys(self.inner[number]))
        return None if self.is_tired else [number for number in self.shared if number not in found]

    def drop(self, gone: list[int] | None) -> None:
        """Forget these numbers, or all for good."""
        if gone is None:
            self.work = _WORK_MAX + 1
        for number in list(self.shared) if gone is None else gone:
            self.numbers.pop(id(self.shared.pop(number, None)), None)
            self.seen.pop(number, None)
            self.inner.pop(number, None)

    def _see(self, number: int, parts: list[Any]) -> None:
        self.seen[number] = parts
        self.inner[number] = [self.numbers[place] for place in filter(self.numbers.__contains__, map(id, parts))]

    def _keep(self, number: int, made: Any) -> None:
        self.shared[number] = made
        self.numbers[id(made)] = number

    def _kind(self, made: Any) -> str:
        return _KINDS.get(type(made)) or type(made).__name__

    def _own_class(self, name: str) -> type:
        cls = self.module.get(name) if name in self.classes else None
        if not isinstance(cls, type) or not _is_simple(cls):
            raise ValueError(f"{name!r} is no class of the preamble")
        return cls

    def _encode(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls in _AT_ONCE and (cls is not int or -_SHORT < value < _SHORT):
            return value
        number = self.numbers.get(id(value))
        if number is None and self.kind_of(value) is not None:
            number, self.next = self.next, self.next + 2
            self._keep(number, value)
        if number is not None:
            return {"@": number}
        if cls is tuple:
            if depth > _DEPTH_MAX:
                raise Unencodable(f"a value nested deeper than {_DEPTH_MAX}")
            return {"t": [self._encode(item, depth + 1) for item in value]}
        return encode_value(value, 0, self._other)

    def _other(self, value: Any, depth: int) -> Any:
        if self.numbers.get(id(value)) is not None or self.kind_of(value) is not None:
            return self._encode(value, 0)
        return self.foreign(value, depth)

    def _decode(self, data: Any) -> Any:
        if type(data) in _AT_ONCE:
            return data
        return decode_value(data, 0, self._known)

    def _known(self, tag: str, body: Any, depth: int) -> Any:
        return self.shared[body] if tag == "@" else self.known(tag, body)

    def _fill(self, made: Any, kind: str, parts: list[Any]) -> None:
        if kind not in _MAKE:
            attributes = dict(zip(parts[::2], parts[1::2], strict=True))
            if not _fits(type(made), attributes):
                raise ValueError("an attribute that hides what its class defines")
            made.__dict__.clear()
            made.__dict__.update(attributes)
            return
        made.clear()
        if kind == "d":
            made.update(hashed.make_dict(zip(parts[::2], parts[1::2], strict=True)))
        elif kind == "s":
            made.update(hashed.make_set(parts))
        else:
            made.extend(parts)


def _parts(made: Any) -> list[Any]:
    found = made if type(made) in _KINDS else made.__dict__
    return list(chain.from_iterable(found.items())) if isinstance(found, dict) else list(found)


def _growing(numbers: dict[int, Any]) -> Any:
    """The keys of a dict, also those that come meanwhile."""
    done = 0
    while done < len(numbers):
        fresh = list(numbers)[done:]
        done += len(fresh)
        yield from fresh


def _is_simple(cls: type) -> bool:
    """Return whether the attributes of its objects are all that they have."""
    return (
        cls.__dictoffset__ != 0
        and not any("__new__" in vars(kind) for kind in cls.__mro__ if kind is not object)
        and type(cls).__module__ in ("builtins", "abc", "typing")
        and not any("__slots__" in vars(kind) for kind in cls.__mro__ if kind.__module__ != "typing")
    )


def _fits(cls: type, attributes: dict[str, Any]) -> bool:
    """Return whether no attribute hides a method or a property of the class."""
    for key in attributes:
        found = getattr(cls, key, None)
        if callable(found) or hasattr(type(found), "__get__"):
            return False
    return True
