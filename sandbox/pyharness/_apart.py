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
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from sandbox.compare import Unencodable, decode_value, encode_lazy, encode_value, loads

Module = dict[str, Any]
_DOES: Final[dict[str, Callable[..., Any]]] = {
    "getattr": getattr, "setattr": setattr, "len": len, "iter": iter, "next": next, "getitem": operator.getitem,
    "setitem": operator.setitem, "str": str, "repr": repr,
}  # fmt: skip
_REFUSED: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "contains", "add", "radd", "sub", "rsub", "mul", "rmul",
    "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "and", "rand", "or", "ror", "xor",
    "rxor", "neg", "pos", "abs", "int", "float", "index", "round", "reduce_ex", "reduce", "copy", "deepcopy",
    "format", "enter", "exit", "instancecheck", "subclasscheck", "missing", "reversed", "matmul", "floor", "ceil",
    "trunc", "complex", "bytes",
)  # fmt: skip
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
_RERAISE: Final = opcode.opmap["RERAISE"]
_VIEWS: Final[tuple[type, ...]] = (type({}.keys()), type({}.values()), type({}.items()))


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


class _Wire:
    """Encodes values and, in a table beside them, objects of the preamble's classes: a list of nodes may be long."""

    def __init__(self, module: Module, classes: list[str]) -> None:
        self.module, self.classes = module, classes

    def foreign(self, value: Any, depth: int) -> Any:
        """The form of what is no data. Raises Unencodable."""
        raise NotImplementedError

    def known(self, tag: str, body: Any) -> Any:
        """The inverse of `foreign`. Raises ValueError."""
        raise NotImplementedError

    def attributes(self, value: Any) -> dict[str, Any] | None:
        """Of an object of the preamble's classes; None of any other."""
        cls = type(value)
        if cls.__name__ not in self.classes or self.module.get(cls.__name__) is not cls:
            return None
        found = getattr(value, "__dict__", None)
        return found if type(found) is dict else None

    def own_class(self, name: str, attributes: Any) -> type:
        """Raises ValueError for what is no class of the preamble, or hides what the class defines."""
        cls = self.module.get(name) if name in self.classes else None
        if not isinstance(cls, type):
            raise ValueError(f"{name!r} is no class of the preamble")
        annotated = {key for kind in cls.__mro__ for key in vars(kind).get("__annotations__", ())}
        if any(hasattr(cls, key) and key not in annotated for key in attributes):
            raise ValueError("an attribute that hides what its class defines")
        return cls

    def write(self, value: Any) -> Any:
        """Raises Unencodable."""
        objects: list[Any] = []
        places: dict[int, int] = {}

        def other(found: Any, depth: int) -> Any:
            if self.attributes(found) is None:
                return self.foreign(found, depth)
            if id(found) not in places:
                places[id(found)] = len(objects)
                objects.append(found)
            return {"@": places[id(found)]}

        body, table = encode_value(value, 0, other), []
        for made in objects:  # which grows meanwhile
            items = (self.attributes(made) or {}).items()
            table.append([type(made).__name__, {key: encode_value(item, 0, other) for key, item in items}])
        return {"o": [body, table]} if table else body

    def read(self, data: Any) -> Any:
        """Raises ValueError, LookupError, TypeError."""
        made: list[Any] = []

        def known(tag: str, body: Any, depth: int) -> Any:
            return made[body] if tag == "@" else self.known(tag, body)

        if type(data) is dict and data.keys() == {"o"}:
            data, table = data["o"]
            made += [object.__new__(self.own_class(name, attributes)) for name, attributes in table]
            for one, (_, attributes) in zip(made, table, strict=True):
                one.__dict__.update({key: decode_value(item, 0, known) for key, item in attributes.items()})
        return decode_value(data, 0, known)


# --- the program's side -----------------------------------------------------------------------------------------------


def serve_calls(module: Module, classes: list[str], streams: tuple[BinaryIO, BinaryIO]) -> None:
    """Answer calls until the test's side has ended."""
    reader, writer = streams
    server = _Server(module, classes)
    server.kept = []
    while line := reader.readline():
        writer.write(json.dumps(server.answer(loads(line))).encode() + b"\n")
        writer.flush()


class _Server(_Wire):
    kept: list[Any]

    def answer(self, call: list[Any]) -> list[Any]:
        what, target, args, keywords = call
        try:
            done = self._do(what, self.read(target), args, keywords)
            json.dumps(done)
        except Unencodable as error:
            return ["lost", str(error), None]
        except BaseException as error:
            texts = [arg if type(arg) in (str, int, float) else str(arg) for arg in error.args]
            return ["raise", [cls.__name__ for cls in type(error).__mro__], texts]
        return done

    def _do(self, what: str, target: Any, args: list[Any], keywords: dict[str, Any]) -> list[Any]:
        given = [self.read(arg) for arg in args]
        named = {name: self.read(arg) for name, arg in keywords.items()}
        value = target(*given, **named) if what == "call" else _DOES[what](target, *given)
        after = [self.write(arg) for arg in (*given, *named.values())]
        return ["value", self.write(value), None if after == [*args, *keywords.values()] else after]

    def known(self, tag: str, body: Any) -> Any:
        if tag == "h":
            return self.kept[body]
        if tag == "B":
            return vars(builtins)[body]
        if tag == "x":
            return slice(*decode_value(body, 0, lambda inner, part, _: self.known(inner, part)))
        if body not in self.module:
            raise NameError(f"name {body!r} is not defined")
        return self.module[body]

    def foreign(self, value: Any, depth: int) -> Any:
        if type(value) in _VIEWS:
            return encode_lazy(value, depth, self.foreign)
        if (name := _builtin_name(value)) is not None:
            return {"B": name}
        for place, known in enumerate(self.kept):
            if known is value:
                return {"h": place}
        self.kept.append(value)
        return {"h": len(self.kept) - 1}


# --- the test's side --------------------------------------------------------------------------------------------------


class Caller(_Wire):
    """Asks the program. `lost` stays, whatever the test catches."""

    def __init__(self, module: Module, classes: list[str], streams: tuple[BinaryIO, BinaryIO]) -> None:
        super().__init__(module, classes)
        self.reader, self.writer = streams
        self.lost: dict[str, str] = {}
        """Whose doing it is that the test cannot be decided, and what."""
        self.raised: list[BaseException] = []
        """By the program, but for what ends a loop over an iterator or a row of its own."""
        self.calls = 0
        self.turn = sys.modules["threading"].RLock()  # imported by our caller, who minds its hooks
        self.targets: dict[int, tuple[Any, Any]] = {}
        self.handles: dict[tuple[int, bool], Any] = {}
        self.apis: set[int] = set()
        """Targets that stand for no plain value: what the test had made by a class of the program's, and its
        attributes, and what it asks for something that no plain value has."""
        self.asked: set[str] = set()
        """Names of methods that the classes of the program's have: those may return their object."""
        self.doubt = False
        """Something that may stand for a plain value was asked as one: the test holds, at best, weakly."""

    def proxy(self, name: str) -> Any:
        """What stands for a name of the program's."""
        made = self._handle(target := {"p": name})
        self.apis.add(id(target))
        return made

    def fail(self, whose: str, why: str) -> Any:
        self.lost = self.lost or {"lost": whose, "error": why}
        raise Lost

    def ask(self, what: str, target: Any, /, *args: Any, **keywords: Any) -> Any:
        """The value of a call. Raises what the program raised, or Lost."""
        if self.lost:
            raise Lost
        self.calls += 1
        try:
            call = [what, target, [self.write(a) for a in args], {k: self.write(a) for k, a in keywords.items()}]
            data = json.dumps(call).encode()
        except (Unencodable, ValueError, RecursionError) as error:
            if any(error is other for other in self.raised):  # by a call that an iterator of the test's has made
                raise
            if id(target) not in self.apis or isinstance(error, RecursionError) or "deeper" in str(error):
                self.fail("program", "returned an object that has no JSON form")
            self.fail("test", f"calls the program with {error}")
        try:
            with self.turn:  # a test may have threads
                self.writer.write(data + b"\n")
                self.writer.flush()
                line = self.reader.readline()
            if not line:
                self.fail("end", "ended before its result")
            kind, value, rest = loads(line)
            if kind == "value":
                for arg, after in zip((*args, *keywords.values()), rest or (), strict=rest is not None):
                    self._settle(arg, self.read(after))
                return self._taken(what, target, self.read(value))
            if kind == "lost":
                self.fail("program", f"returned {value[:200]}, which has no JSON form")
            raised = self._error(value, rest)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError):
            self.fail("program", "an unreadable result")
        if not isinstance(raised, _PROTOCOL.get(what, ())):
            self.raised.append(raised)
        try:
            raise raised
        finally:  # a handler is what gives it a traceback
            del raised

    def swallowed(self, ended_by: BaseException | None) -> BaseException | None:
        """What the program raised and no handler of the test's caught: it ended a loop of the test's, or the like."""
        return next((error for error in self.raised if error is not ended_by and not _is_caught(error)), None)

    def _taken(self, what: str, target: dict[str, Any], value: Any) -> Any:
        is_api = id(target) in self.apis
        self.doubt |= what in ("getitem", "len") and not is_api
        is_made = what == "call" and str(target.get("p", ""))[:1].isupper()
        if id(value) in self.targets and (is_made or (what == "getattr" and is_api)):
            return self._known_handle(self.targets[id(value)][1]["h"], is_api=True)
        return value

    def _known_handle(self, number: int, is_api: bool) -> Any:
        if (number, is_api) not in self.handles:
            self.handles[number, is_api] = self._handle(target := {"h": number})
            if is_api:
                self.apis.add(id(target))
        return self.handles[number, is_api]

    def attribute(self, target: dict[str, Any], name: str) -> Any:
        """What a handle's attribute is. Raises AttributeError for a protocol's, and Lost."""
        if name[:2] == name[-2:] == "__" and name not in _TOLD:
            raise AttributeError(name)
        if id(target) in self.apis:
            self.asked.add(name)
        elif name in _CONTAINERS:
            self.doubt |= name not in self.asked
        elif name in _DECIDES and name not in self.asked:
            self.fail("program", "returned an object that has no JSON form")
        elif name not in _DECIDES and name[:2] != "__":
            self.apis.add(id(target))
        return self.ask("getattr", target, name)

    def _error(self, names: list[str], texts: list[Any]) -> BaseException:
        """By the nearest class that is known here. Raises LookupError."""
        for name in names:
            cls = vars(builtins).get(name) or (self.module.get(name) if name in self.classes else None)
            if isinstance(cls, type) and issubclass(cls, BaseException):
                return cls(*texts)
        raise LookupError(names)

    def foreign(self, value: Any, depth: int) -> Any:
        if type(value) is slice:
            return {"x": [encode_value(part, depth, self.foreign) for part in (value.start, value.stop, value.step)]}
        if id(value) in self.targets:
            return self.targets[id(value)][1]
        name = _builtin_name(value)
        return encode_lazy(value, depth, self.foreign) if name is None else {"B": name}

    def known(self, tag: str, body: Any) -> Any:
        if tag == "B" and _builtin_name(found := vars(builtins).get(body)) == body:
            return found
        if tag != "h" or type(body) is not int:
            raise ValueError(f"not a tagged value: {tag!r}")
        return self._known_handle(body, is_api=False)

    def _settle(self, old: Any, new: Any) -> Any:
        """Make a mutable argument what the program has made of it; returns what is to stand in its place."""
        if type(old) is not type(new):
            return new
        if type(old) in (list, deque):
            items = [self._settle(a, b) for a, b in zip(old, new, strict=False)] + list(new)[len(old) :]
            old.clear()
            old.extend(items)
        elif type(old) in (dict, set):
            old.clear()
            old.update(new)
        elif type(old) is tuple and len(old) == len(new):
            return tuple(self._settle(a, b) for a, b in zip(old, new, strict=True))
        elif self.attributes(old) is not None:
            old.__dict__.clear()
            old.__dict__.update(new.__dict__)
        else:
            return new
        return old

    def _handle(self, target: Any) -> Any:
        """Make a handle with a class of its own, so that two handles do not have the same type."""

        class Handle:
            __slots__ = ()

            def __call__(_, /, *args: Any, **keywords: Any) -> Any:
                return self.ask("call", target, *args, **keywords)

            def __getattr__(_, name: str) -> Any:
                return self.attribute(target, name)

            def __setattr__(_, name: str, value: Any) -> None:
                self.ask("setattr", target, name, value)

        for name in ("len", "iter", "next", "getitem", "setitem", "str", "repr"):
            setattr(Handle, f"__{name}__", _asking(self, name, target))
        for name in _REFUSED:
            setattr(Handle, f"__{name}__", lambda *_: self.fail("program", "returned an object that has no JSON form"))
        made = Handle()
        self.targets[id(made)] = (made, target)
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


def _asking(caller: Caller, what: str, target: Any) -> Callable[..., Any]:
    return lambda _, *args: caller.ask(what, target, *args)
