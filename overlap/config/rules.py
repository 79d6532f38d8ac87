"""What a field may hold: its bounds, which stand beside its default, and its type. One line per broken rule, with the
way out. A rule knows a value and its bounds, and nothing of the configuration that they stand in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from overlap.errors import ConfigError, raise_all

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BOUND, _WAY_OUT, MAY_CHANGE = "bound", "way out", "may change"
ImportPath = str
"""Beside the choices of a field: "module:function" names a function of the user's (``overlap.config.import_path``)."""
Overrides = Sequence[str] | Mapping[str, Any]
"""``["learn.lr=2e-5"]``, whose values are YAML; ``{"learn.lr": 2e-5}`` or ``{"learn": {"lr": 2e-5}}``."""
IMPORT_PATH = re.compile(r"\w+(\.\w+)*:\w+")


def at_least(low: float, default: Any, *, most: float = math.inf, may_change: bool = False) -> Any:
    """A field of ``low`` or more, and of ``most`` or less."""
    way_out = f"use a number from {low} to {most}" if most < math.inf else f"use {low} or more"
    return bounded_by(default, lambda value: low <= value <= most, way_out, may_change=may_change)


def above(low: float, default: Any, *, most: float = math.inf, may_change: bool = False) -> Any:
    """A field of more than ``low``, and of ``most`` or less."""
    way_out = f"use a number above {low}" + (f" and at most {most}" if most < math.inf else "")
    return bounded_by(default, lambda value: low < value <= most, way_out, may_change=may_change)


def bounded_by(default: Any, inside: Callable[[Any], bool], way_out: str, *, may_change: bool = False) -> Any:
    """A field whose values are ``inside`` its bounds."""
    return field(default=default, metadata={_BOUND: inside, _WAY_OUT: way_out, MAY_CHANGE: may_change})


def free(default: Any) -> Any:
    """A field that may change when a run is resumed."""
    return field(default=default, metadata={MAY_CHANGE: True})


@dataclass(frozen=True, slots=True)
class Section:
    """Fields that check themselves: those of ``ModelConfig`` are called "model.NAME"."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise :class:`ConfigError` at the first field of a wrong type or out of its bounds."""
        check_section(self._name, self)

    def given(self) -> Iterator[tuple[str, Any]]:
        """Full name and value of each field with another value than its default."""
        for name, default in defaults(type(self)).items():
            if (value := getattr(self, name)) != default:
                yield f"{self._name}.{name}", value

    @property
    def _name(self) -> str:
        return type(self).__name__.removesuffix("Config").lower()


def defaults(section: type[DataclassInstance]) -> dict[str, Any]:
    """Field → default value."""
    return {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(section)}


def check_section(section: str, values: DataclassInstance) -> None:
    """Raise one :class:`ConfigError` for all fields of a wrong type or out of their bounds."""
    hints, wrong = _hints(type(values)), []
    for f in fields(values):
        name, got = f"{section}.{f.name}", getattr(values, f.name)
        want, optional = _given(hints[f.name])
        if optional and got is None:
            continue
        try:
            _check_type(name, got, want)
            if (inside := f.metadata.get(_BOUND)) is not None:
                require(inside(got), name, got, f.metadata[_WAY_OUT])
        except ConfigError as error:
            wrong.append(error)
    raise_all(wrong)


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
        known = known or (own and isinstance(got, str) and IMPORT_PATH.fullmatch(got) is not None)
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
        written = f", as in {name}=[{got}]" if got and isinstance(got, str) and "," not in got else ""
        require(strings, name, got, f"use a list of non-empty strings{written}")


def require(ok: bool, name: str, value: object, way_out: str) -> None:
    """Raise :class:`ConfigError` unless ``ok``."""
    if not ok:
        raise ConfigError(name, value, way_out)
