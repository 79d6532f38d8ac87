"""What a field may hold: its bounds, which stand beside its default, and its type. One line per broken rule, with the
way out. A rule knows a value and its bounds, and nothing of the configuration that they stand in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from overlap.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BOUND, _WAY_OUT, MAY_CHANGE = "bound", "way out", "may change"
ImportPath = str
"""Beside the choices of a field: "module:function" names a function of the user's (``overlap.config.import_path``)."""
_IMPORT_PATH = re.compile(r"\w+(\.\w+)*:\w+")


def at_least(low: int, default: Any, *, why: str = "", may_change: bool = False) -> Any:
    """A field of ``low`` or more."""
    return _bounded(default, lambda value: value >= low, why or f"use {low} or more", may_change)


def above(low: int, default: Any, *, may_change: bool = False) -> Any:
    """A field of more than ``low``."""
    return _bounded(default, lambda value: value > low, f"use a number above {low}", may_change)


def share(
    default: float | None, *, zero: bool = False, one: bool = True, why: str = "", may_change: bool = False
) -> Any:
    """A field between 0 and 1; ``zero`` and ``one`` say whether these belong to it."""
    way_out = f"use a share {'from' if zero else 'above'} 0 {'and at most' if one else 'to below'} 1"

    def inside(value: Any) -> bool:
        return bool((value >= 0 if zero else value > 0) and (value <= 1 if one else value < 1))

    return _bounded(default, inside, why or way_out, may_change)


def at_temperature(default: Any, *, zero: bool = False, may_change: bool = False) -> Any:
    """A sampling temperature: the engine takes none above 2. ``zero`` says whether greedy sampling is one."""
    way_out = f"use a number {'from 0' if zero else 'above 0'} to 2"
    return _bounded(default, lambda value: (value >= 0 if zero else value > 0) and value <= 2, way_out, may_change)


def free(default: Any) -> Any:
    """A field that may change when a run is resumed."""
    return field(default=default, metadata={MAY_CHANGE: True})


def _bounded(default: Any, inside: Callable[[Any], bool], way_out: str, may_change: bool) -> Any:
    return field(default=default, metadata={_BOUND: inside, _WAY_OUT: way_out, MAY_CHANGE: may_change})


@dataclass(frozen=True, slots=True)
class Section:
    """Fields that check themselves. ``section`` is their prefix."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        check_section(self.section, self)

    def given(self) -> Iterator[tuple[str, Any]]:
        """Full name and value of each field with another value than its default."""
        for name, default in defaults(type(self)).items():
            if (value := getattr(self, name)) != default:
                yield f"{self.section}.{name}", value


def defaults(section: type[DataclassInstance]) -> dict[str, Any]:
    """Field → default value."""
    made = ((f.name, f.default_factory() if callable(f.default_factory) else f.default) for f in fields(section))
    return dict(made)


def check_section(section: str, values: DataclassInstance) -> None:
    """Raise :class:`ConfigError` at the first field of a wrong type or out of its bounds."""
    hints = _hints(type(values))
    for f in fields(values):
        name, got = f"{section}.{f.name}", getattr(values, f.name)
        want, optional = _given(hints[f.name])
        if optional and got is None:
            continue
        _check_type(name, got, want)
        if (inside := f.metadata.get(_BOUND)) is not None:
            require(inside(got), name, got, f.metadata[_WAY_OUT])


def _given(kind: Any) -> tuple[Any, bool]:
    """The type that a value has when it is given, and whether it may be null."""
    options = [option for option in get_args(kind) if option is not type(None)]
    optional = type(None) in get_args(kind) and len(options) == 1
    return (options[0], True) if optional else (kind, False)


@cache
def _hints(section: type) -> dict[str, Any]:
    return get_type_hints(section)


def choices(want: Any) -> tuple[Any, ...]:
    """The values that a type lists, without an import path in their place; none for one that is not a choice."""
    if get_origin(want) is Literal:
        return get_args(want)
    return tuple(choice for part in get_args(want) for choice in choices(part))


def _check_type(name: str, got: Any, want: Any) -> None:
    if options := choices(want):
        known = any(got == option and type(got) is type(option) for option in options)
        own = str in get_args(want)
        known = known or (own and isinstance(got, str) and _IMPORT_PATH.fullmatch(got) is not None)
        way_out = f"use one of {', '.join(map(str, options))}"
        require(known, name, got, way_out + (", or a function of yours as my_module:my_function" if own else ""))
    elif want is float:
        number = isinstance(got, int | float) and not isinstance(got, bool)
        require(number and math.isfinite(got), name, got, "use a finite number")
    elif want is int:
        require(isinstance(got, int) and not isinstance(got, bool), name, got, "use a whole number")
    elif want is bool:
        require(isinstance(got, bool), name, got, "use true or false")
    elif get_origin(want) is dict:
        keys = isinstance(got, dict) and all(isinstance(key, str) for key in got)
        require(keys, name, got, f"use a mapping of names to values, as in {name}.NAME=VALUE")
    elif want is str:
        require(isinstance(got, str), name, got, "use a string")
    else:
        strings = isinstance(got, tuple) and all(isinstance(x, str) and x for x in got)
        require(strings, name, got, "use a list of non-empty strings")


def require(ok: bool, name: str, value: object, way_out: str) -> None:
    """Raise :class:`ConfigError` unless ``ok``."""
    if not ok:
        raise ConfigError(name, value, way_out)
