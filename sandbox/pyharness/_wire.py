"""Values and objects between two processes, as if they were in one.

Both sides keep a number for each list, dict, set, deque and object of the preamble's classes that has crossed and that
both may still use. It crosses as its number, with its parts where they have changed, so one object on one side is one
object on the other, and a change on one side is seen on the other at the next message. An object of a program's class
that derives from one of the preamble's crosses as one of that.

    message   [roots, [[number, kind, parts], ..]], and numbers that the sender does not use any more

The content of a message may be false: it is checked as far as the reader's own process needs it. Work is bounded by the
limits of the two runs, for what one side spends on the other's objects is never a reason to judge another way.
"""

from __future__ import annotations

import builtins
import gc
import operator
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from itertools import chain
from typing import Any, Final

from sandbox.compare import hashed
from sandbox.compare.values import Unencodable, decode_value, encode_value

Module = dict[str, Any]
_MADE: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (list, deque, set, dict, OrderedDict, defaultdict, Counter, bytearray)
}
_KINDS: Final = {kind: name for name, kind in _MADE.items()}
_VIEWS: Final[dict[type, str]] = {
    type(getattr(kind(), name)()): name for kind in (dict, OrderedDict) for name in ("keys", "values", "items")
}
AT_ONCE: Final = frozenset({int, str, float, bool, type(None)})
_SHORT: Final = 1 << 53
_DEPTH_MAX: Final = 100  # of tuples in each other
_WEIGHT_MIN: Final = 64
_BARE: Final = frozenset({"__getattr__", "__getattribute__", "__slots__", "__new__"})
_HELD_BY_US: Final = 2  # our table, and the question itself
_NATIVE: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)
_FAULTS_OF: Final = frozenset(
    {"json.decoder", "decimal", "re", "queue", "_queue", "statistics", "dataclasses", "struct", "binascii", "zlib"}
    | {"csv", "_csv", "configparser", "graphlib", "copy", "calendar", "fractions"}
)
"""Modules whose exceptions a test may name. None of them ends a test otherwise than as a failure."""
_HEAP_TYPE: Final = 1 << 9  # of a class's flags: it is not written in C
WHOLE, LESS, KEPT = range(3)
"""All have crossed; some have, as objects of a base that has not all their methods; some have not."""
_EMPTY: Final = (lambda: None).__code__.co_code


def classes_in(module: Module) -> dict[str, type]:
    """The classes that a module has made, and not imported, by its names for them."""
    kinds = {name: kind for name, kind in module.items() if isinstance(kind, type) and kind.__flags__ & _HEAP_TYPE}
    return {name: kind for name, kind in kinds.items() if not _is_imported(kind, module["__name__"])}


def builtin_name(value: Any) -> str | None:
    """Return the name of a function or type of the interpreter's own, which both sides have."""
    if not isinstance(value, type | types.BuiltinFunctionType):
        return None
    name = value.__name__
    return name if vars(builtins).get(name) is value else None


def is_librarys(kind: type) -> bool:
    """Return whether this is an exception of one of _FAULTS_OF: both sides have it."""
    owner = sys.modules.get(kind.__module__) if kind.__module__ in _FAULTS_OF else None
    return issubclass(kind, BaseException) and getattr(owner, kind.__qualname__, None) is kind


def native_attributes(kind: type) -> set[str]:
    """Names of what exceptions of the interpreter's classes have beside their arguments, as an OSError its filename."""
    made = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    names = {name for base in made for name, at in vars(base).items() if type(at) in _NATIVE and name[:2] != "__"}
    return names - {"args", "message", "exceptions"}


def _is_imported(kind: type, here: str) -> bool:
    """Its module has it: what a function makes may name another module than its own."""
    owner = str(kind.__module__)
    return owner != here and getattr(sys.modules.get(owner), kind.__name__, None) is kind


class ObjectWire:
    """One side's end. `side`: 0 or 1, which is also the parity of the numbers that it gives. `classes`: the preamble's,
    by name.
    """

    def __init__(self, module: Module, side: int, classes: dict[str, type]) -> None:
        self.module, self.classes, self.side = module, classes, side
        self.shared: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.seen: dict[int, list[Any]] = {}
        """The parts that both sides know, by number."""
        self.inner: dict[int, list[int]] = {}
        """Parts that have numbers, among the parts of `seen`."""
        self.next, self.todo = side, [0]
        self.weight, self.weight_max = 0, _WEIGHT_MIN
        self.slots: dict[type, tuple[str, ...] | None] = {}
        self.carriers: dict[type, type | None] = {}
        self.rows: dict[Any, type] = {}
        self.loss = WHOLE
        """Loss in the objects of the preamble's classes, and of classes derived from those."""

    def look_at(self, cls: type, attributes: dict[str, Any]) -> None:
        """Called with the attributes of what arrives. `cls`: the class of the preamble's that has them, or tuple."""

    def foreign(self, value: Any, depth: int) -> Any:
        """The form of what is no data. Raises Unencodable."""
        raise NotImplementedError

    def known(self, tag: str, body: Any) -> Any:
        """The inverse of `foreign`. Raises ValueError."""
        raise NotImplementedError

    def write(self, roots: list[Any]) -> list[Any]:
        """Return roots and table of a message. Raises Unencodable."""
        table: list[Any] = []
        body = [self._encode(root, 0) for root in roots]
        self.weight = 0
        if not self.shared:
            return [body, table]
        self.todo = todo = list(self.shared)
        for number in todo:  # which grows meanwhile
            made, old = self.shared[number], self.seen.get(number)
            parts = made if type(made) is list else self._parts(made)
            self.weight += len(parts) + 1
            if old is not None and len(old) == len(parts) and all(map(operator.is_, old, parts)):
                continue
            parts = list(parts)
            table.append([number, self._kind(made), [self._encode(part, 0) for part in parts]])
            self._see(number, parts)
        return [body, table]

    def read(self, message: list[Any]) -> list[Any]:
        """The roots of a message. Raises ValueError, LookupError, TypeError, OverflowError."""
        roots, table = message
        if not table:
            return [self._decode(root) for root in roots]
        changed = []
        for number, kind, parts in table:
            if type(number) is not int or type(parts) is not list:
                raise ValueError("not an object")
            if number not in self.shared:
                if number % 2 == self.side:
                    raise ValueError("a number that its sender does not give")
                self._keep(number, self._make(kind, parts))
            elif self._kind(self.shared[number]) != kind:
                raise ValueError("an object that has changed its kind")
            changed.append((self.shared[number], parts, number))
        self._fill_all(sorted(changed, key=lambda one: (_rank(one[0]), -one[2])))
        return [self._decode(root) for root in roots]

    def _fill_all(self, changed: list[tuple[Any, list[Any], int]]) -> None:
        todo, missed = deque(changed), 0
        while todo:
            made, parts, number = todo.popleft()
            try:
                items = [self._decode(part) for part in parts]
            except AttributeError:  # a frozenset has an object whose hash needs an attribute that is not there yet
                todo.append((made, parts, number))
                missed += 1
                if missed > len(todo):
                    raise
                continue
            missed = 0
            self._fill(made, items)
            self._see(number, self._parts(made))

    def unused(self) -> list[int]:
        """Forget and return the numbers of what nothing on this side uses but we. Call it after `write`.

        They are looked for when `write` has had twice the work that was left the last time.
        """
        if self.weight <= self.weight_max:
            return []
        inside = Counter(chain.from_iterable(self.inner.values()))
        todo = [n for n in self.shared if sys.getrefcount(self.shared[n]) > _HELD_BY_US + 2 * inside[n]]
        used = set(todo)
        for number in todo:  # which grows meanwhile
            fresh = set(self.inner.get(number, ())) - used
            used |= fresh
            todo += fresh
        gone = [number for number in self.shared if number not in used]
        self.drop(gone)
        self.weight_max = _WEIGHT_MIN + 2 * (len(self.seen) + sum(map(len, self.seen.values())))
        return gone

    def drop(self, gone: list[int]) -> None:
        """Forget these numbers."""
        for number in gone:
            self.numbers.pop(id(self.shared.pop(number, None)), None)
            self.seen.pop(number, None)
            self.inner.pop(number, None)

    def crosses(self, value: Any) -> bool:
        """Return whether this is an object of the preamble's classes, with nothing but attributes."""
        cls = type(value)
        return self._carrier(cls) is not None and self.fits(cls, self._attributes(value))

    def _carrier(self, cls: type) -> type | None:
        """The class of the preamble as whose object one of `cls` crosses: its own, or the base of a program's class."""
        if cls not in self.carriers:
            found = None
            for kind in cls.__mro__:
                if kind.__name__ in self.classes and self.module.get(kind.__name__) is kind:
                    is_abstract = bool(getattr(kind, "__abstractmethods__", ()))
                    found = kind if self.slots_of(cls) is not None and not is_abstract else None
                    if found is not None and _does_more(cls, kind):
                        self.loss = max(self.loss, LESS)
                    break
                if self.side == 0 or not _BARE.isdisjoint(vars(kind)) or any(map(_is_property, vars(kind).values())):
                    break
            self.carriers[cls] = found
        return self.carriers[cls]

    def slots_of(self, cls: type) -> tuple[str, ...] | None:
        """The names of a class's slots; None if its objects have more than slots and a dict."""
        if cls not in self.slots:
            names = [
                name
                for kind in cls.__mro__
                for name, at in vars(kind).items()
                if type(at) is types.MemberDescriptorType
            ]
            plain = all("__new__" not in vars(kind) for kind in cls.__mro__ if kind is not object)
            plain &= type(cls).__module__ in ("builtins", "abc", "typing") and "__getattribute__" not in vars(cls)
            self.slots[cls] = tuple(names) if plain else None
        return self.slots[cls]

    def _see(self, number: int, parts: list[Any]) -> None:
        self.seen[number] = parts
        self.inner[number] = [self.numbers[place] for place in filter(self.numbers.__contains__, map(id, parts))]

    def _keep(self, number: int, made: Any) -> None:
        self.shared[number] = made
        self.numbers[id(made)] = number
        self.todo.append(number)

    def _kind(self, made: Any) -> str:
        return _KINDS.get(type(made)) or f".{(self._carrier(type(made)) or type(made)).__name__}"

    def _parts(self, made: Any) -> list[Any]:
        cls = type(made)
        if cls in (list, set, bytearray):
            return list(made)
        if cls is deque:
            return [made.maxlen, *made]
        if cls in _KINDS:
            factory = [made.default_factory] if cls is defaultdict else []
            return [*factory, *chain.from_iterable(made.items())]
        return list(chain.from_iterable(self._attributes(made).items()))

    def _attributes(self, made: Any) -> dict[str, Any]:
        found = dict(getattr(made, "__dict__", ()))
        for name in self.slots_of(type(made)) or ():
            if hasattr(made, name):
                found[name] = getattr(made, name)
        return found

    def _make(self, kind: str, parts: list[Any]) -> Any:
        if kind == "deque":
            return deque(maxlen=parts[0])
        if kind in _MADE:
            return _MADE[kind]()
        cls = self.module.get(kind[1:]) if kind[1:] in self.classes else None
        if not isinstance(cls, type) or self.slots_of(cls) is None:
            raise ValueError(f"{kind[1:]!r} is no class of the preamble")
        return object.__new__(cls)

    def _fill(self, made: Any, parts: list[Any]) -> None:
        cls = type(made)
        if cls is list or cls is bytearray:
            made[:] = parts
        elif cls is deque:
            made.clear()
            made.extend(parts[1:])
        elif cls is set:
            made.clear()
            made.update(hashed.make_set(parts))
        elif cls in _KINDS:
            if cls is defaultdict:
                made.default_factory = parts.pop(0)
            made.clear()
            for key, item in hashed.make_dict(zip(parts[::2], parts[1::2], strict=True)).items():
                made[key] = item
        else:
            self._fill_object(made, dict(zip(parts[::2], parts[1::2], strict=True)))

    def _fill_object(self, made: Any, attributes: dict[str, Any]) -> None:
        cls = type(made)
        if not self.fits(cls, attributes):
            raise ValueError("an attribute that hides what its class defines")
        self.look_at(cls, attributes)
        for name in self.slots_of(cls) or ():
            if name in attributes:
                object.__setattr__(made, name, attributes.pop(name))
            elif hasattr(made, name):
                object.__delattr__(made, name)
        if attributes or cls.__dictoffset__:
            made.__dict__.clear()
            made.__dict__.update(attributes)

    def fits(self, cls: type, attributes: dict[str, Any]) -> bool:
        """Return whether no attribute hides a method or a property of the class."""
        slots = self.slots_of(cls) or ()
        for key in attributes:
            found = getattr(cls, key, None)
            if key not in slots and (callable(found) or hasattr(type(found), "__get__")):
                return False
        return True

    def _encode(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls in AT_ONCE and (cls is not int or -_SHORT < value < _SHORT):
            return value
        number = self.numbers.get(id(value))
        if number is None and (cls in _KINDS or self.crosses(value)):
            number, self.next = self.next, self.next + 2
            self._keep(number, value)
        if number is not None:
            return {"@": number}
        if depth > _DEPTH_MAX:
            raise Unencodable(f"a value nested deeper than {_DEPTH_MAX}")
        if cls is tuple:
            return {"t": [self._encode(item, depth + 1) for item in value]}
        return self._encode_rare(value, cls, depth)

    def _encode_rare(self, value: Any, cls: Any, depth: int) -> Any:
        name = cls.__name__
        if isinstance(value, tuple) and type(fields := getattr(cls, "_fields", None)) is tuple:
            return {"N": [name, fields, [self._encode(item, depth + 1) for item in tuple.__iter__(value)]]}
        members: Any = getattr(cls, "__members__", {}) if self.module.get(name) is cls else {}
        if name in self.classes and members and (members.get(value.name) is value or hasattr(cls, "_boundary_")):
            return {"E": [name, value.name if members.get(value.name) is value else value._value_]}
        if cls in _VIEWS and type(owner := gc.get_referents(value)[0]) in _KINDS:
            return {"V": [_VIEWS[cls], self._encode(owner, depth)]}
        return self.encode_plain(value)

    def encode_plain(self, value: Any) -> Any:
        """A value that nothing but its content tells from another. Raises Unencodable."""
        return encode_value(value, 0, self._other)

    def _other(self, value: Any, depth: int) -> Any:
        if id(value) in self.numbers or self.crosses(value):
            return self._encode(value, depth)
        return self.foreign(value, depth)

    def _decode(self, data: Any) -> Any:
        if type(data) in AT_ONCE:
            return data
        return decode_value(data, 0, self._known)

    def _known(self, tag: str, body: Any, depth: int) -> Any:
        if tag == "@":
            return self.shared[body]
        if tag == "N":
            name, fields, items = body
            made: tuple[Any, ...] = tuple.__new__(
                self._row(name, tuple(fields)), [decode_value(i, depth, self._known) for i in items]
            )
            own = type(made) if self.module.get(name) is type(made) else tuple
            self.look_at(own, dict(zip(fields, made, strict=True)))
            return made
        if tag == "E":
            name, member = body
            members = (cls := self.module[name if name in self.classes else ""]).__members__
            return cls(member) if type(member) is int else members[member]  # of flags, several at once
        if tag == "V":
            name, owner = body
            if name not in _VIEWS.values() or type(made := self._decode(owner)) not in _KINDS:
                raise ValueError("not a view")
            return getattr(made, name)()
        return self.known(tag, body)

    def _row(self, name: str, fields: tuple[str, ...]) -> type:
        """A namedtuple's class: our own, if it has these fields."""
        own = self.module.get(name)
        if isinstance(own, type) and issubclass(own, tuple) and getattr(own, "_fields", None) == fields:
            return own
        if (name, fields) not in self.rows:
            self.rows[name, fields] = namedtuple(name, fields)
        return self.rows[name, fields]


def _is_property(value: Any) -> bool:
    return hasattr(type(value), "__set__") and type(value) is not types.GetSetDescriptorType


def _does_more(cls: type, base: type) -> bool:
    """Return whether a class has methods of its own, but for operators that its base has already, or has not either."""
    own: dict[str, Any] = {}
    for kind in cls.__mro__[: cls.__mro__.index(base)]:
        own |= vars(kind)
    return any(name[:1] != "_" or _is_left(getattr(base, name, None)) for name in own)


def _is_left(method: Any) -> bool:
    """Return whether a method is there to be written by others."""
    code = getattr(method, "__code__", None)
    return code is not None and ("NotImplementedError" in code.co_names or code.co_code == _EMPTY)


def _rank(made: Any) -> int:
    """Objects are filled first, for their attributes may determine their hash, and what is hashed last."""
    return 0 if type(made) not in _KINDS else 1 if type(made) in (list, deque, bytearray) else 2
