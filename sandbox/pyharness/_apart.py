"""A test and the program that it is about, in two processes, each in a jail of its own.

    test's side     preamble, then the test; the program's names are calls ─▶ one line of JSON per call, on a pipe
    program's side  preamble, then the program; answers the calls          ◀─ a value, a handle, or what was raised

Values cross as plain data (`sandbox.compare.values`), and objects of the preamble's classes by their attributes. Any
other object stays where it is, and the test holds a handle: its methods, items and length may be asked for. What a
handle would decide itself (is it equal, true, contained, a subset?) is nothing that the test may believe: the test is
lost then, as it is where a value cannot cross, and is run in another way, or is not held.

Doubt, so that the test holds weakly at best, is what may represent a value or an object of the preamble's: a
function got out of data, and a handle that is asked as one of those would be. Where an object of the preamble's classes
cannot cross as all that it is, the program beside the test decides, weakly.
"""

from __future__ import annotations

import builtins
import json
import opcode
import sys
import types
from collections import deque, namedtuple
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final

from sandbox.compare.values import Unencodable, loads
from sandbox.pyharness._handles import OFFERED, HandleClasses
from sandbox.pyharness._wire import (
    AT_ONCE,
    KEPT,
    LESS,
    WHOLE,
    Module,
    ObjectWire,
    builtin_name,
    classes_in,
    is_librarys,
    native_attributes,
)

_CONTAINERS: Final = frozenset(
    {"get", "pop", "popitem", "popleft", "append", "appendleft", "extend", "insert", "add", "remove", "discard"}
    | {"clear", "update", "copy", "keys", "values", "items", "index", "count", "find", "all", "any", "equals"}
    | {"elements", "subtract", "total", "move_to_end", "most_common", "as_integer_ratio", "limit_denominator"}
    | {"compare", "compare_signal", "compare_total", "compare_total_mag", "copy_sign", "is_canonical", "is_finite"}
    | {"is_infinite", "is_nan", "is_normal", "is_qnan", "is_signed", "is_snan", "is_subnormal", "is_zero"}
    | {"logical_and", "logical_or", "logical_xor", "max", "min", "quantize", "same_quantum", "strftime", "astimezone"}
)
"""Methods that a test also calls of programs' classes, and of numbers, dates and arrays."""
_PLAIN: Final = (str, bytes, list, tuple, dict, set, int, float, complex, deque)
_DECIDES: Final = frozenset(name for kind in _PLAIN for name in dir(kind) if name[:1] != "_") - _CONTAINERS
"""Methods of plain values, by which what a function has returned would say itself that it is right."""
_TOLD: Final = ("__name__", "__qualname__", "__doc__", "__dict__", "__module__", "__annotations__", "__wrapped__")
"""Special names of a handle that a test may read. Others are looked up by protocols, not by the test."""
_PROTOCOL: Final[dict[str, tuple[type[BaseException], ...]]] = {
    "next": (StopIteration,), "getitem": (LookupError,), "getattr": (AttributeError,), "len": (TypeError,),
}  # fmt: skip
"""Errors by which these methods say only that they have nothing."""
_ITEMS_MAX: Final = 1 << 20
_DRAINED: Final[type[Any]] = type(iter([0]))
_PLAIN_HANDLE, _API, _MADE = range(3)
_RERAISE: Final = opcode.opmap["RERAISE"]
_DATA: Final = (types.MemberDescriptorType, types.GetSetDescriptorType, type(vars(namedtuple("Row", "x"))["x"]))
_GARBLED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""Errors that a message raises which no honest side sends."""


class Lost(BaseException):
    """The test cannot be decided in this way. Distinguished from everything a test may catch by `Caller.lost`."""


class Caller(ObjectWire):
    """Asks the program. `lost` stays, whatever the test catches."""

    def __init__(self, module: Module, streams: tuple[BinaryIO, BinaryIO], makes: Iterable[str] = ()) -> None:
        """`makes`: names of the program's that the test makes objects by."""
        super().__init__(module, 0, {})
        self.reader, self.writer = streams
        self.lost: dict[str, str] = {}
        """Whose doing it is that the test cannot be decided, and what."""
        self.raised: list[BaseException] = []
        """By the program, but for what ends a loop over an iterator or a row of its own."""
        self.calls = 0
        self.turn = sys.modules["threading"].RLock()  # imported by our caller, which handles its hooks
        self.targets: dict[int, tuple[Any, Any]] = {}
        self.handles: dict[tuple[int, int], Any] = {}
        self.classes_of_handles = HandleClasses(self)
        self.makes = frozenset(makes)
        self.made: set[int] = set()
        """Targets that the test has made by a class of the program's: what they decide is the test's own choice."""
        self.offered: dict[int, Iterable[str]] = {}
        """Attributes of the program's objects, by number."""
        self.apis: set[int] = set()
        """Targets that represent no plain value: what the test had made by a class of the program's, and its
        attributes, and what it asks for something that no plain value has."""
        self.asked: set[str] = set()
        """Names of methods that the classes of the program's have: those may return their object."""
        self.doubt = False
        """Something that may represent a value or an object of the preamble's was asked as one: the test holds, at
        best, weakly.
        """
        self.theirs: frozenset[str] = frozenset()
        """Names of methods and properties that objects of the preamble's classes decide."""
        self.found: list[Any] = []
        """The handles in the last message."""
        self.inside: set[int] = set()
        """Targets of the handles that were got out of data."""

    def know_classes(self) -> None:
        """Look at what the preamble has made."""
        self.classes = classes_in(self.module)
        made = {base for kind in self.classes.values() for base in kind.__mro__ if base in self.classes.values()}
        self.theirs = frozenset(name for kind in made for name, at in vars(kind).items() if _is_decided(at))

    def proxy(self, name: str) -> Any:
        """Return the handle for a name of the program's."""
        made = self._handle(target := {"p": name}, OFFERED)
        self.apis.add(id(target))
        if name in self.makes:
            self.made.add(id(target))
        return made

    def fail(self, whose: str, why: str) -> Any:
        self.lost = self.lost or {"lost": whose, "error": why}
        raise Lost

    def refuse(self, *operands: Any) -> Any:
        """End the test: it asks an object of the program's for something that a value of its own would answer.

        It is the program's doing, unless the test has made one of them by a class of the program's, or one is more than
        it could cross as.
        """
        if any(id(self.target(one)) in self.made for one in operands if id(one) in self.targets):
            return self.fail("test", "asks objects of the program's for what they decide themselves")
        return self.fail("test" if self.loss else "program", "returned an object that has no JSON form")

    def ask(self, what: str, target: Any, /, *args: Any, **keywords: Any) -> Any:
        """The value of a call. Raises what the program raised, or Lost."""
        if self.lost:
            raise Lost
        self.calls += 1
        self.doubt |= f"__{what}__" in self.theirs and not self._is_tests(target)
        self.doubt |= what == "call" and id(target) in self.inside
        given = [self._drained(arg) for arg in (*args, *keywords.values())]
        with self.turn:  # a test may have threads
            kind, raised = self._exchange(what, target, given, list(keywords))
        if kind == "value":
            return self._taken(what, target, raised)
        if not isinstance(raised, _PROTOCOL.get(what, ())):
            self.raised.append(raised)
        try:
            raise raised
        finally:  # a handler is what gives it a traceback
            del raised

    def _drained(self, arg: Any) -> Any:
        """Return an iterator with its items made: to make them may take calls of the program."""
        if (
            type(arg) not in AT_ONCE
            and isinstance(arg, Iterator)
            and id(arg) not in self.targets
            and not self.crosses(arg)
        ):
            return iter(list(islice(arg, _ITEMS_MAX + 1)))
        return arg

    def _exchange(self, what: str, target: Any, given: list[Any], names: list[str]) -> tuple[str, Any]:
        """Return the kind of answer of a call, and its value or the error that it raised. Raises Lost."""
        try:
            message = self.write(given)
            gone = self.unused()
            data = json.dumps([what, target, message, names, gone]).encode()
        except (Unencodable, RecursionError) as error:
            if isinstance(error, RecursionError) or "deeper" in str(error):
                self.refuse()
            self.fail("test", f"calls the program with {error}")
        try:
            self.writer.write(data + b"\n")
            self.writer.flush()
            line = self.reader.readline()
            if not line:
                self.fail("end", "ended before its result")
            kind, message, gone, loss = loads(line)
            self.loss = max(self.loss, (WHOLE, LESS, KEPT)[loss] if self.classes else WHOLE)
            if kind == "lost":
                self.fail("program", f"returned {message[:200]}, which has no JSON form")
            self.found.clear()
            values = self.read(message)
            self.drop(gone)
            bare = set(map(id, values))
            self.inside.update(id(self.target(handle)) for handle in self.found if id(handle) not in bare)
            return kind, values[0] if kind == "value" else self._error(*values)
        except (*_GARBLED, OSError):
            return self.fail("program", "an unreadable result")  # type: ignore[no-any-return]

    def swallowed(self, ended_by: BaseException | None) -> BaseException | None:
        """Return an error that the program raised and no handler of the test's caught: it ended a loop, or the like."""
        return next((error for error in self.raised if error is not ended_by and not _is_caught(error)), None)

    def _taken(self, what: str, target: dict[str, Any], value: Any) -> Any:
        is_api = id(target) in self.apis
        self.doubt |= what in ("getitem", "len") and not is_api
        name = str(target.get("p", "")) if what == "call" else ""
        if id(value) in self.targets and what == "getattr" and id(target) in self.inside:
            self.inside.add(id(self.target(value)))
        elif id(value) in self.targets and (name[:1].isupper() or (what == "getattr" and is_api)):
            return self._known_handle(self.target(value)["h"], (), _MADE if name in self.makes else _API, name)
        return value

    def _known_handle(self, number: int, offered: Iterable[str], kind: int, name: str = "") -> Any:
        if (number, kind) not in self.handles:
            offered = self.offered.setdefault(number, offered)
            made = self._handle(target := {"h": number}, offered, name or "Handle")
            self.handles[number, kind] = made
            if kind != _PLAIN_HANDLE:
                self.apis.add(id(target))
            if kind == _MADE:
                self.made.add(id(target))
        return self.handles[number, kind]

    def attribute(self, target: dict[str, Any], name: str) -> Any:
        """Return an attribute of a handle. Raises AttributeError for a protocol's, and Lost."""
        if name[:2] == name[-2:] == "__" and name not in _TOLD:
            raise AttributeError(name)
        self.doubt |= name in self.theirs and not self._is_tests(target)
        if id(target) in self.apis:
            self.asked.add(name)
        elif name in _CONTAINERS:
            self.doubt |= name not in self.asked
        elif name in _DECIDES and name not in self.asked:
            self.refuse()
        elif name not in _DECIDES and name[:2] != "__":
            self.apis.add(id(target))
        return self.ask("getattr", target, name)

    def _error(
        self, names: list[str], args: list[Any], attributes: dict[str, Any], text: str, own: Any = None
    ) -> BaseException:
        """Return an error of the nearest class that is known here; `own` is asked for what that has not.

        Raises LookupError, and TypeError for what makes no exception.
        """
        for name in names:
            cls = self._exception_class(name)
            if isinstance(cls, type) and issubclass(cls, BaseException):
                break
        else:
            raise LookupError(names)
        self.look_at(cls, attributes)
        native = native_attributes(cls)
        attributes = {key: value for key, value in attributes.items() if key in native or self.fits(cls, {key: value})}
        if issubclass(cls, BaseExceptionGroup):
            args = [args[0], [self._error(*each) for each in args[1]]]
        if name != names[0]:  # a class of the program's own, of which a test may read the name
            asks = {"__getattr__": lambda _, name: getattr(own, name)} if id(own) in self.targets else {}
            cls = type(names[0], (cls,), asks)
        made: BaseException = _raised(cls, args, attributes)
        if any(id(arg) in self.targets for arg in args) or str(made) != text:
            made = _raised(type(cls.__name__, (cls,), {"__str__": lambda _: text}), args, attributes)
        return made

    def _exception_class(self, name: str) -> Any:
        module, _, plain = name.rpartition(":")
        if module:
            found = getattr(sys.modules.get(module), plain, None)
            return found if isinstance(found, type) and is_librarys(found) else None
        return vars(builtins).get(name) or (self.module.get(name) if name in self.classes else None)

    def foreign(self, value: Any, depth: int) -> Any:
        if type(value) is slice:
            return {"x": [self._encode(part, depth) for part in (value.start, value.stop, value.step)]}
        if id(value) in self.targets:
            return self.targets[id(value)][1]
        if (name := builtin_name(value)) is not None:
            return {"B": name}
        if type(value) is _DRAINED:
            return {"g": [self._encode(item, depth) for item in value]}
        raise Unencodable(f"a {type(value).__name__}")

    def encode_plain(self, value: Any) -> Any:
        """Raises Unencodable too for what would arrive as another type than the test has made it of."""
        if hasattr(type(value), "__members__") or type(value).__module__ == "numpy":
            raise Unencodable(f"a {type(value).__name__}")
        return super().encode_plain(value)

    def known(self, tag: str, body: Any) -> Any:
        if tag == "B" and builtin_name(found := vars(builtins).get(body)) == body:
            return found
        if tag != "h":
            raise ValueError(f"not a tagged value: {tag!r}")
        number, offered = body
        if type(number) is not int or type(offered) is not list:
            raise ValueError("not a handle")
        self.found.append(self._known_handle(number, offered, _PLAIN_HANDLE))
        return self.found[-1]

    def look_at(self, cls: type, attributes: dict[str, Any]) -> None:
        """Note what may represent a method: of the names that the class itself does not use."""
        odd = {
            name
            for name, value in attributes.items()
            if name in self.theirs or (callable(value) and id(value) not in self.targets)
        }
        self.doubt |= bool(odd) and not odd <= _used_by(cls)

    def _is_tests(self, target: dict[str, Any]) -> bool:
        """A name of the program's, or what the test has made by one that is a class."""
        return "p" in target or id(target) in self.made

    def _handle(self, target: Any, offered: Iterable[str], name: str = "Handle") -> Any:
        made = self.classes_of_handles.make(offered, name)
        self.targets[id(made)] = (made, target)
        return made

    def target(self, handle: Any) -> Any:
        return self.targets[id(handle)][1]

    def truth(self, handle: Any) -> bool:
        if id(self.target(handle)) not in self.apis:
            self.refuse(handle)
        return self.ask("bool", self.target(handle)) is True


def _is_decided(at: Any) -> bool:
    return (callable(at) or hasattr(type(at), "__get__")) and type(at) not in _DATA


def _used_by(cls: type) -> set[str]:
    """Names of attributes that a class declares, and those in its methods."""
    found: set[str] = set(getattr(cls, "_fields", ()))
    for kind in cls.__mro__:
        found |= vars(kind).get("__annotations__", {}).keys()
        found.update(*(at.__code__.co_names for at in vars(kind).values() if isinstance(at, types.FunctionType)))
        found |= {name for name, at in vars(kind).items() if type(at) in _DATA}
    return found


def _raised(cls: type, args: list[Any], attributes: dict[str, Any]) -> Any:
    made = cls.__new__(cls, *args)
    native: Any = next(kind for kind in cls.__mro__ if kind.__module__ == "builtins")
    native.__init__(made, *args)  # as its own class has done, from arguments that are not known
    for name, value in attributes.items():
        if name in native_attributes(cls):
            setattr(made, name, value)
        else:
            vars(made)[name] = value
    return made


def _is_caught(error: BaseException) -> bool:
    """Return whether a handler in the test's own code, or an assertRaises, has caught this."""
    if (trace := error.__traceback__) is None:  # assertRaises takes it away
        return True
    frame = trace.tb_frame  # the last that it came to
    code = frame.f_code
    has_left = frame.f_lasti == trace.tb_lasti or code.co_code[frame.f_lasti] == _RERAISE
    return not has_left and code.co_filename in ("main.py", "preamble.py", "<string>")
