"""The program's side of a test in another jail: it answers the calls that `_apart` makes, one line of JSON each."""

from __future__ import annotations

import builtins
import json
import operator
import os
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from sandbox.compare.values import Unencodable, loads
from sandbox.pyharness._handles import offered_by
from sandbox.pyharness._wire import KEPT, Module, ObjectWire, builtin_name, is_librarys, native_attributes

_DOES: Final[dict[str, Callable[..., Any]]] = {
    "getattr": getattr, "setattr": setattr, "delattr": delattr, "len": len, "iter": iter, "next": next,
    "getitem": operator.getitem, "setitem": operator.setitem, "delitem": operator.delitem, "str": str, "repr": repr,
    "format": format, "bool": bool,
}  # fmt: skip
_TOLD_OF_ERRORS: Final = (str, int, float, bool, type(None), list, tuple, dict, bytes, set)
_TOLD_MODULES: Final = ("collections", "datetime", "decimal", "fractions")


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The pipes that came as standard input and output, which are empty from here on."""
    streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return streams


def serve_calls(module: Module, classes: dict[str, type], streams: tuple[BinaryIO, BinaryIO]) -> None:
    """Answer calls until the test's side has ended."""
    reader, writer = streams
    server = _Answering(module, classes)
    while line := reader.readline():
        writer.write(server.answer(loads(line)).encode() + b"\n")
        writer.flush()


class _Answering(ObjectWire):
    def __init__(self, module: Module, classes: dict[str, type]) -> None:
        super().__init__(module, 1, classes)
        self.kept: list[Any] = []
        """Objects that stay here, by their number in the test's handles."""
        self.places: dict[int, int] = {}
        self.raised: list[BaseException | None] = []

    def answer(self, call: list[Any]) -> str:
        """Return [kind, message, what is not used any more, what objects have lost] as JSON."""
        try:
            done = ["value", self._do(*call)]
            return json.dumps([*done, self.unused(), self.loss])
        except BaseException as error:
            if isinstance(error, Unencodable):
                return json.dumps(["lost", str(error), [], self.loss])
            done = ["raise", self._told(error)]
        return json.dumps([*done, self.unused(), self.loss])

    def _do(self, what: str, target: Any, message: list[Any], names: list[str], gone: list[int]) -> list[Any]:
        given = self.read(message)
        self.drop(gone)
        owner = self.known(*target.popitem())
        named = dict(zip(names, given[len(given) - len(names) :], strict=True))
        given = given[: len(given) - len(names)]
        value = owner(*given, **named) if what == "call" else _DOES[what](owner, *given)
        return self.write([value])

    def _told(self, error: BaseException) -> list[Any]:
        """Return what `_parts_of` returns, or its texts where that does not cross."""
        self.raised.clear()
        try:
            return self.write(self._parts_of(error))
        except Unencodable:
            return self.write([self._names(error), list(map(str, error.args)), {}, str(error), self.raised[0]])

    def _parts_of(self, error: BaseException) -> list[Any]:
        """Names of its classes, arguments, attributes, text, and the error itself if its class is the program's own."""
        names = self._names(error)
        known = names[0] in vars(builtins) or names[0] in self.classes or ":" in names[0]
        self.raised.append(None if known else error.with_traceback(None))
        own, args = self.raised[-1], list(error.args)
        if own is not None and self._overrides(type(error).__mro__):
            self.loss = KEPT
        if isinstance(error, BaseExceptionGroup):
            args = [error.message, [self._parts_of(each) for each in error.exceptions]]
        natives = {name: getattr(error, name, None) for name in native_attributes(type(error))}
        attributes = {name: value for name, value in natives.items() if value is not None and self._is_told(value)}
        return [names, args, attributes | vars(error), str(error), own]

    def _overrides(self, kinds: tuple[type, ...]) -> bool:
        """Return whether a class decides something in another way than its base, which is the preamble's."""
        at = next((at for at, kind in enumerate(kinds) if self._is_preambles(kind)), 0)
        names = {name for kind in kinds[:at] for name in vars(kind) if name[:2] != "__"}
        return any(callable(found := getattr(kinds[at], name, None)) or hasattr(found, "__get__") for name in names)

    def _names(self, error: BaseException) -> list[str]:
        kinds = type(error).__mro__
        return [f"{kind.__module__}:{kind.__qualname__}" if is_librarys(kind) else kind.__name__ for kind in kinds]

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
        if (name := builtin_name(value)) is not None:
            return {"B": name}
        if all(value is not error for error in self.raised) and any(
            map(self._is_preambles, type(value).__mro__)
        ):  # its base has crossed
            self.loss = KEPT
        place = self.places.setdefault(id(value), len(self.kept))
        if place == len(self.kept):
            self.kept.append(value)
            return {"h": [place, offered_by(value)]}
        return {"h": [place, []]}

    def _is_preambles(self, kind: type) -> bool:
        return kind.__name__ in self.classes or kind in self.classes.values()
