"""The program's side of a test in another jail: it answers the calls that `_apart` makes, one line of JSON each."""

from __future__ import annotations

import builtins
import json
import operator
import os
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from sandbox.compare import Unencodable, loads
from sandbox.pyharness._handles import offered_by
from sandbox.pyharness._wire import KEPT, Module, ObjectWire, builtin_name

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
        """What stays here, by its number in the test's handles."""
        self.places: dict[int, int] = {}
        self.raised: BaseException | None = None

    def answer(self, call: list[Any]) -> str:
        """Return [kind, message, what is not used any more, what objects have lost] as JSON."""
        try:
            done = ["value", self._do(*call)]
            return json.dumps([*done, self.unused(), self.loss])
        except Unencodable as error:
            return json.dumps(["lost", str(error), [], self.loss])
        except BaseException as error:
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
        """Names of its classes, arguments, attributes, text, and the error itself if its class is the program's own."""
        names = [cls.__name__ for cls in type(error).__mro__]
        own = None if names[0] in vars(builtins) or names[0] in self.classes else error.with_traceback(None)
        self.raised = own
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
        if (name := builtin_name(value)) is not None:
            return {"B": name}
        if value is not self.raised and any(map(self._is_preambles, type(value).__mro__)):  # its base has crossed
            self.loss = KEPT
        place = self.places.setdefault(id(value), len(self.kept))
        if place == len(self.kept):
            self.kept.append(value)
            return {"h": [place, offered_by(value)]}
        return {"h": [place, []]}

    def _is_preambles(self, kind: type) -> bool:
        return kind.__name__ in self.classes or kind in self.classes.values()
