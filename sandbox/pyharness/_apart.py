"""A test and the program that it is about, in two processes, each in a jail of its own.

    test's side     preamble, then the test; the program's names are calls ─▶ one line of JSON per call, on a pipe
    program's side  preamble, then the program; answers the calls          ◀─ a value, a handle, or what was raised

Values cross as plain data (`sandbox.compare.values`), and objects of the preamble's classes by their attributes. Any
other object stays where it is, and the test holds a handle: its methods, items and length may be asked for. What a
handle would decide itself (is it equal, true, contained, a subset?) is nothing that the test may believe: the test is
lost then, as it is where a value cannot cross, and is run in another way, or is not held.
"""

from __future__ import annotations

import builtins
import json
import opcode
import operator
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final

from sandbox.compare import Unencodable, loads
from sandbox.pyharness._handles import OFFERED, HandleClasses, offered_by
from sandbox.pyharness._wire import AT_ONCE, Module, ObjectWire

_DOES: Final[dict[str, Callable[..., Any]]] = {
    "getattr": getattr, "setattr": setattr, "delattr": delattr, "len": len, "iter": iter, "next": next,
    "getitem": operator.getitem, "setitem": operator.setitem, "delitem": operator.delitem, "str": str, "repr": repr,
    "format": format, "bool": bool,
}  # fmt: skip
_CONTAINERS: Final = frozenset(
    {
        "get",
        "pop",
        "popitem",
        "popleft",
        "append",
        "appendleft",
        "extend",
        "insert",
        "add",
        "remove",
        "discard",
        "clear",
    }
    | {"update", "copy", "keys", "values", "items", "index", "count", "find", "all", "any", "equals"}
)
"""What classes of programs are asked for too, and arrays."""
_PLAIN: Final = (str, bytes, list, tuple, dict, set, int, float, complex, deque)
_DECIDES: Final = frozenset(name for kind in _PLAIN for name in dir(kind) if name[:1] != "_") - _CONTAINERS
"""Methods of plain values, by which what a function has returned would say itself that it is right."""
_TOLD: Final = ("__name__", "__qualname__", "__doc__", "__dict__", "__module__", "__annotations__", "__wrapped__")
"""Of a handle's special names, what a test may read. Others are looked for by protocols, which it has no part in."""
_PROTOCOL: Final[dict[str, tuple[type[BaseException], ...]]] = {
    "next": (StopIteration,), "getitem": (LookupError,), "getattr": (AttributeError,), "len": (TypeError,),
}  # fmt: skip
"""What these raise to say no more than that they have nothing."""
_ITEMS_MAX: Final = 1 << 20
_DRAINED: Final[type[Any]] = type(iter([0]))
_PLAIN_HANDLE, _API, _MADE = range(3)
_RERAISE: Final = opcode.opmap["RERAISE"]
_TOLD_OF_ERRORS: Final = (str, int, float, bool, type(None), list, tuple, dict, bytes, set)
_TOLD_MODULES: Final = ("collections", "datetime", "decimal", "fractions")
_GARBLED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""What a message raises that no honest side sends."""


class Lost(BaseException):
    """The test cannot be decided in this way. Distinguished from everything a test may catch by `Caller.lost`."""


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The pipes that came as standard input and output, which are empty from here on."""
    streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return streams


# --- the program's side -----------------------------------------------------------------------------------------------


def serve_calls(module: Module, classes: list[str], streams: tuple[BinaryIO, BinaryIO]) -> None:
    """Answer calls until the test's side has ended."""
    reader, writer = streams
    server = _Server(module, classes)
    while line := reader.readline():
        writer.write(server.answer(loads(line)).encode() + b"\n")
        writer.flush()


class _Server(ObjectWire):
    def __init__(self, module: Module, classes: list[str]) -> None:
        super().__init__(module, classes, side=1)
        self.kept: list[Any] = []
        """What stays here, by its number in the test's handles."""
        self.places: dict[int, int] = {}

    def answer(self, call: list[Any]) -> str:
        """Return [kind, message, what is not used any more] as JSON."""
        try:
            done = ["value", self._do(*call)]
            return json.dumps([*done, self.unused()])
        except Unencodable as error:
            return json.dumps(["lost", str(error), []])
        except BaseException as error:
            done = ["raise", self._told(error)]
        return json.dumps([*done, self.unused()])

    def _do(self, what: str, target: Any, message: list[Any], names: list[str], gone: list[int]) -> list[Any]:
        given = self.read(message)
        self.drop(gone)
        owner = self.known(*target.popitem())
        named = dict(zip(names, given[len(given) - len(names) :], strict=True))
        given = given[: len(given) - len(names)]
        value = owner(*given, **named) if what == "call" else _DOES[what](owner, *given)
        return self.write([value])

    def _told(self, error: BaseException) -> list[Any]:
        """Names of its classes, arguments, attributes, text, and the error itself if its class is the program's own."""
        names = [cls.__name__ for cls in type(error).__mro__]
        own = None if names[0] in vars(builtins) or names[0] in self.classes else error.with_traceback(None)
        args = [arg if self._is_told(arg) else str(arg) for arg in error.args]
        try:
            return self.write([names, args, vars(error), str(error), own])
        except Unencodable:
            return self.write([names, list(map(str, error.args)), {}, str(error), own])

    def _is_told(self, arg: Any) -> bool:
        return type(arg) in _TOLD_OF_ERRORS or type(arg).__module__ in _TOLD_MODULES or self.crosses(arg)

    def known(self, tag: str, body: Any) -> Any:
        if tag == "h":
            return self.kept[body]
        if tag == "B":
            return vars(builtins)[body]
        if tag == "x":
            return slice(*map(self._decode, body))
        if body not in self.module:
            raise NameError(f"name {body!r} is not defined")
        return self.module[body]

    def foreign(self, value: Any, depth: int) -> Any:
        if (name := _builtin_name(value)) is not None:
            return {"B": name}
        place = self.places.setdefault(id(value), len(self.kept))
        if place == len(self.kept):
            self.kept.append(value)
            return {"h": [place, offered_by(value)]}
        return {"h": [place, []]}


# --- the test's side --------------------------------------------------------------------------------------------------


class Caller(ObjectWire):
    """Asks the program. `lost` stays, whatever the test catches."""

    def __init__(
        self, module: Module, classes: list[str], streams: tuple[BinaryIO, BinaryIO], makes: Iterable[str] = ()
    ) -> None:
        """`makes`: names of the program's that the test makes objects by."""
        super().__init__(module, classes, side=0)
        self.reader, self.writer = streams
        self.lost: dict[str, str] = {}
        """Whose doing it is that the test cannot be decided, and what."""
        self.raised: list[BaseException] = []
        """By the program, but for what ends a loop over an iterator or a row of its own."""
        self.calls = 0
        self.turn = sys.modules["threading"].RLock()  # imported by our caller, who minds its hooks
        self.targets: dict[int, tuple[Any, Any]] = {}
        self.handles: dict[tuple[int, int], Any] = {}
        self.classes_of_handles = HandleClasses(
            lambda what, handle, /, *args, **keywords: self.ask(what, self._target(handle), *args, **keywords),
            lambda handle, name: self.attribute(self._target(handle), name),
            self._truth,
            self.refuse,
        )
        self.makes = frozenset(makes)
        self.made: set[int] = set()
        """Targets that the test has made by a class of the program's: what they decide is the test's own choice."""
        self.offered: dict[int, Iterable[str]] = {}
        """What the program's objects have, by number."""
        self.apis: set[int] = set()
        """Targets that stand for no plain value: what the test had made by a class of the program's, and its
        attributes, and what it asks for something that no plain value has."""
        self.asked: set[str] = set()
        """Names of methods that the classes of the program's have: those may return their object."""
        self.doubt = False
        """Something that may stand for a plain value was asked as one: the test holds, at best, weakly."""

    def proxy(self, name: str) -> Any:
        """What stands for a name of the program's."""
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

        It is the program's doing, unless the test has made one of them by a class of the program's, or the preamble has
        classes whose objects do not cross.
        """
        if any(id(self._target(one)) in self.made for one in operands if id(one) in self.targets):
            return self.fail("test", "asks objects of the program's for what they decide themselves")
        made = [self.module.get(name) for name in self.classes]
        kept_back = any(isinstance(cls, type) and not self._is_carried(cls) for cls in made)
        return self.fail("test" if kept_back else "program", "returned an object that has no JSON form")

    def _is_carried(self, cls: type) -> bool:
        known = hasattr(cls, "__members__") or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        return known or issubclass(cls, BaseException) or self.slots_of(cls) is not None

    def ask(self, what: str, target: Any, /, *args: Any, **keywords: Any) -> Any:
        """The value of a call. Raises what the program raised, or Lost."""
        if self.lost:
            raise Lost
        self.calls += 1
        given = [self._drained(arg) for arg in (*args, *keywords.values())]
        with self.turn:  # a test may have threads
            kind, values = self._exchange(what, target, given, list(keywords))
        if kind == "value":
            return self._taken(what, target, values[0])
        try:
            raised = self._error(*values)
        except _GARBLED:
            self.fail("program", "an unreadable result")
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

    def _exchange(self, what: str, target: Any, given: list[Any], names: list[str]) -> tuple[str, list[Any]]:
        """What kind of answer a call has, and its roots. Raises Lost."""
        try:
            message = self.write(given)
            gone = self.unused()
            data = json.dumps([what, target, message, names, gone]).encode()
        except (Unencodable, RecursionError) as error:
            passes = what == "call" and any(callable(arg) and id(arg) not in self.targets for arg in given)
            is_tests = passes or id(target) in self.apis
            if not is_tests or isinstance(error, RecursionError) or "deeper" in str(error):
                self.refuse()
            self.fail("test", f"calls the program with {error}")
        try:
            self.writer.write(data + b"\n")
            self.writer.flush()
            line = self.reader.readline()
            if not line:
                self.fail("end", "ended before its result")
            kind, message, gone = loads(line)
            if kind == "lost":
                self.fail("program", f"returned {message[:200]}, which has no JSON form")
            values = self.read(message)
            self.drop(gone)
        except (*_GARBLED, OSError):
            self.fail("program", "an unreadable result")
        return kind, values

    def swallowed(self, ended_by: BaseException | None) -> BaseException | None:
        """What the program raised and no handler of the test's caught: it ended a loop of the test's, or the like."""
        return next((error for error in self.raised if error is not ended_by and not _is_caught(error)), None)

    def _taken(self, what: str, target: dict[str, Any], value: Any) -> Any:
        is_api = id(target) in self.apis
        self.doubt |= what in ("getitem", "len") and not is_api
        name = str(target.get("p", "")) if what == "call" else ""
        if id(value) in self.targets and (name[:1].isupper() or (what == "getattr" and is_api)):
            return self._known_handle(self._target(value)["h"], (), _MADE if name in self.makes else _API, name)
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
        """What a handle's attribute is. Raises AttributeError for a protocol's, and Lost."""
        if name[:2] == name[-2:] == "__" and name not in _TOLD:
            raise AttributeError(name)
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
        """By the nearest class that is known here; `own` is asked for what that has not.

        Raises LookupError, and TypeError for what makes no exception.
        """
        for name in names:
            cls = vars(builtins).get(name) or (self.module.get(name) if name in self.classes else None)
            if isinstance(cls, type) and issubclass(cls, BaseException):
                break
        else:
            raise LookupError(names)
        if name != names[0]:  # a class of the program's own, of which a test may read the name
            asks = {"__getattr__": lambda _, name: getattr(own, name)} if id(own) in self.targets else {}
            cls = type(names[0], (cls,), asks)
        made: BaseException = _raised(cls, args, attributes)
        if str(made) != text:
            made = _raised(type(names[0], (cls,), {"__str__": lambda _: text}), args, attributes)
        return made

    def foreign(self, value: Any, depth: int) -> Any:
        if type(value) is slice:
            return {"x": [self._encode(part, depth) for part in (value.start, value.stop, value.step)]}
        if id(value) in self.targets:
            return self.targets[id(value)][1]
        if (name := _builtin_name(value)) is not None:
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
        if tag == "B" and _builtin_name(found := vars(builtins).get(body)) == body:
            return found
        if tag != "h":
            raise ValueError(f"not a tagged value: {tag!r}")
        number, offered = body
        if type(number) is not int or type(offered) is not list:
            raise ValueError("not a handle")
        return self._known_handle(number, offered, _PLAIN_HANDLE)

    def _handle(self, target: Any, offered: Iterable[str], name: str = "Handle") -> Any:
        made = self.classes_of_handles.make(offered, name)
        self.targets[id(made)] = (made, target)
        return made

    def _target(self, handle: Any) -> Any:
        return self.targets[id(handle)][1]

    def _truth(self, handle: Any) -> bool:
        if id(self._target(handle)) not in self.apis:
            self.refuse(handle)
        return self.ask("bool", self._target(handle)) is True


def _raised(cls: type, args: list[Any], attributes: dict[str, Any]) -> Any:
    made = cls.__new__(cls, *args)
    native: Any = next(kind for kind in cls.__mro__ if kind.__module__ == "builtins")
    native.__init__(made, *args)  # as its own class has done, from arguments that are not known
    vars(made).update(attributes)
    return made


def _builtin_name(value: Any) -> str | None:
    """Of a function or type of the interpreter's own, which both sides have."""
    if not isinstance(value, type | types.BuiltinFunctionType):
        return None
    name = value.__name__
    return name if vars(builtins).get(name) is value else None


def _is_caught(error: BaseException) -> bool:
    """Return whether a handler in the test's own code, or an assertRaises, has caught this."""
    if (trace := error.__traceback__) is None:  # assertRaises takes it away
        return True
    frame = trace.tb_frame  # the last that it came to
    code = frame.f_code
    has_left = frame.f_lasti == trace.tb_lasti or code.co_code[frame.f_lasti] == _RERAISE
    return not has_left and code.co_filename in ("main.py", "preamble.py", "<string>")
