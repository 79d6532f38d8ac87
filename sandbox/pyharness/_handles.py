"""Handles: a test's stand-ins for objects that stay in the program's process; their methods ask there.

A handle has the special methods that its object has, so that `callable`, `hasattr` and `isinstance` say what they would
say of the object. What the object would decide itself is refused, whatever it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

ASKED: Final = ("len", "iter", "next", "getitem", "setitem", "delitem")
"""Special methods that are asked for."""
_DECIDED: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "hash", "reduce_ex", "reduce", "copy", "deepcopy", "instancecheck",
    "subclasscheck", "missing",
)  # fmt: skip
_OPERATORS: Final = (
    "contains", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod",
    "rmod", "divmod", "rdivmod", "pow", "rpow", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift",
    "rshift", "rrshift", "matmul", "rmatmul", "neg", "pos", "abs", "invert", "int", "float", "complex", "index",
    "round", "floor", "ceil", "trunc", "bytes", "enter", "exit", "reversed", "await", "aiter", "anext",
)  # fmt: skip
_GENERATORS: Final = ("send", "throw", "close")
OFFERED: Final = ("call", *ASKED, *_OPERATORS, *_GENERATORS)
"""Methods that an object may have or lack."""


def offered_by(value: Any) -> list[str]:
    """Return the names of OFFERED that an object's class has."""
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):  # not by getattr, which would find what the class of classes has
        found |= vars(kind)
    offered = [name for name in OFFERED if found.get(_full(name)) is not None]
    return [*offered, "iter"] if "getitem" in offered else offered


def _full(name: str) -> str:
    return name if name in _GENERATORS else f"__{name}__"


class HandleClasses:
    """Makes handles; handles that offer the same share a class of methods."""

    def __init__(self, caller: Any) -> None:
        """`caller`: the Caller of `_apart` that the handles ask."""

        def asking(what: str) -> Any:
            return lambda handle, /, *args, **keywords: caller.ask(what, caller.target(handle), *args, **keywords)

        def asking_method(name: str) -> Any:
            return lambda handle, *args: caller.attribute(caller.target(handle), name)(*args)

        refusing: Any = lambda *operands: caller.refuse(*operands)  # noqa: E731
        self._optional: dict[str, Any] = {_full(name): refusing for name in _OPERATORS}
        self._optional |= {_full(name): asking(name) for name in ("call", *ASKED)}
        self._optional |= {name: asking_method(name) for name in _GENERATORS}
        always = {_full(name): refusing for name in _DECIDED}
        always |= {_full(name): asking(name) for name in ("setattr", "delattr", "str", "repr", "format")}
        always["__getattr__"] = lambda handle, name: caller.attribute(caller.target(handle), name)
        always["__bool__"] = lambda handle: caller.truth(handle)
        self._base = type("Handle", (), {"__slots__": (), **always})
        self._classes: dict[frozenset[str], type] = {}

    def make(self, offered: Iterable[str], name: str = "Handle") -> Any:
        """Return a handle with a class of its own, so that two handles do not have the same type."""
        kinds = frozenset(offered).intersection(OFFERED)
        if kinds not in self._classes:
            methods = {_full(kind): self._optional[_full(kind)] for kind in kinds}
            self._classes[kinds] = type("Handle", (self._base,), {"__slots__": (), **methods})
        return type(name, (self._classes[kinds],), {"__slots__": ()})()
