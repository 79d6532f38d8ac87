"""Sections of fields as frozen pydantic dataclasses, and how a value that one refuses is put: field, value, way out.

A field has its bounds in ``Field``, its meaning in the docstring under it. A rule between fields is a ``require`` in
``__post_init__``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from overlap.core.errors import ConfigError, raise_all

T = TypeVar("T")
Overrides = Sequence[str] | Mapping[str, Any]
"""``["learn.lr=2e-5"]``, whose values are YAML; ``{"learn.lr": 2e-5}`` or ``{"learn": {"lr": 2e-5}}``."""
MAY_CHANGE = "may_change"
_CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
_BOUND = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_KINDS: Mapping[Any, str] = {
    int: "use a whole number",
    float: "use a finite number",
    bool: "use true or false",
    str: "use a string",
}
IMPORT_PATH = re.compile(r"\w+(\.\w+)*:\w+")


def _no_bool(value: Any) -> Any:
    """True is 1 to Python, and a slip in a configuration."""
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


Whole = Annotated[int, BeforeValidator(_no_bool)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Text = Annotated[str, Field(min_length=1)]
ImportPath = Annotated[str, Field(pattern=rf"^{IMPORT_PATH.pattern}$")]
"""Beside the choices of a field: "module:function" names a function of the user's (``overlap.config.import_path``)."""
Stage = Annotated[Literal[1, 2, 3], BeforeValidator(_no_bool)]


def resumable(default: Any, **bounds: Any) -> Any:
    """A field that may change when a run is resumed."""
    return Field(default, json_schema_extra={MAY_CHANGE: True}, **bounds)


def named_values() -> Any:
    """A field of names and values, empty by default."""
    return Field(default_factory=dict)


@dataclass_transform(frozen_default=True)
def config_section(kind: type[T]) -> type[T]:
    """A frozen dataclass that checks its fields where it is made, and raises one ConfigError for all that are wrong.
    Those of ``ModelConfig`` are called "model.NAME" there, those of ``Config`` by their own name.
    """
    made: Any = dataclass(kind, frozen=True, slots=True, config=_CHECKED)
    made.__init__ = _refusing(made, made.__init__, kind.__name__.removesuffix("Config").lower())
    return made  # type: ignore[no-any-return]


def _refusing(made: Any, checked: Any, name: str) -> Any:
    @wraps(checked)
    def init(self: Any, *args: Any, **values: Any) -> None:
        with _naming_fields(made, name):
            checked(self, *args, **values)

    return init


@contextmanager
def _naming_fields(kind: type, name: str) -> Iterator[None]:
    """Raise what pydantic refuses of a ``kind`` as one ConfigError."""
    try:
        yield
    except ValidationError as error:
        raise_all(config_errors(error, kind, name))


def from_values(kind: type[T], values: Mapping[str, Any], name: str) -> T:
    """Any dataclass from the values of its fields. Raises one ConfigError for all values that its types refuse;
    ``name`` is what the fields' names begin with.
    """
    hints = get_type_hints(kind, include_extras=True)
    known: dict[str, Any] = {f.name: (hints[f.name], _default(f)) for f in fields(kind)}  # type: ignore[arg-type]
    checked = create_model(kind.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **known)
    with _naming_fields(checked, name):
        found = checked(**values)
    return kind(**{field: getattr(found, field) for field in known})


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return Field(default_factory=field.default_factory)
    return ... if field.default is MISSING else field.default


def field_infos(kind: type) -> dict[str, FieldInfo]:
    """Name → field of a section."""
    return kind.__pydantic_fields__  # type: ignore[attr-defined, no-any-return]


def defaults(kind: type) -> dict[str, Any]:
    """Field → default value."""
    return {name: info.get_default(call_default_factory=True) for name, info in field_infos(kind).items()}


def may_change(info: FieldInfo) -> bool:
    """True when a resumed run may change the field."""
    return isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get(MAY_CHANGE))


def given_fields(values: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Full name and value of each field of section ``name`` with another value than its default."""
    for field, default in defaults(type(values)).items():
        if (value := getattr(values, field)) != default:
            yield f"{name}.{field}", value


def config_errors(error: ValidationError, kind: type, name: str) -> list[ConfigError]:
    """A ConfigError for each field that pydantic refuses, or the one that a rule has raised."""
    found: dict[str, ConfigError] = {}
    for each in error.errors(include_url=False):
        cause = each.get("ctx", {}).get("error")
        info, full = _field(kind, each["loc"], "" if name == "config" else name)
        if isinstance(cause, ConfigError):
            found.setdefault(str(cause), cause)
        elif info is None:
            found.setdefault(full, ConfigError(full, each["input"], "is not a field"))
        else:
            way_out = _bounds(info) if each["type"] in _BOUND else _takes(info.annotation, full, each["input"])
            found.setdefault(full, ConfigError(full, each["input"], way_out))
    return list(found.values())


def _field(kind: Any, place: tuple[int | str, ...], name: str) -> tuple[FieldInfo | None, str]:
    """The field of ``kind``, or of a section of it, that an error is about; and its full name."""
    info = None
    for part in place:
        known = getattr(kind, "__pydantic_fields__", None)
        if known is None:
            break
        name = f"{name}.{part}" if name else str(part)
        info = known.get(part)
        kind = info.annotation if info is not None else None
    return info, name


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values that a type lists, without an import path in their place; none for one that is not a choice."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in choices(part))


def takes_import_path(annotation: Any) -> bool:
    """True when a function of the user's may be given in place of the choices."""
    return ImportPath in get_args(annotation)


def _takes(annotation: Any, name: str, got: Any) -> str:
    """Return what a value of a wrong type should have been."""
    if options := choices(annotation):
        own = ", or a function of yours as my_module:my_function" if takes_import_path(annotation) else ""
        return f"use one of {', '.join(map(str, options))}{own}"
    if hasattr(annotation, "__pydantic_fields__"):
        return f"write its fields below it, as in {name}.{next(iter(field_infos(annotation)))}=..."
    parts = set(_parts(annotation))
    if dict in parts:
        return f"use a mapping of names to values, as in {name}.NAME=VALUE"
    if tuple in parts:
        written = f", as in {name}=[{got}]" if got and isinstance(got, str) and "," not in got else ""
        return f"use a list of non-empty strings{written}"
    return next((told for kind, told in _KINDS.items() if kind in parts), f"use a value of type {annotation}")


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that a type is made of, outside and inside."""
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _bounds(info: FieldInfo) -> str:
    """The range of a field, from its bounds."""
    told = []
    for bound in info.metadata:
        match bound:
            case Gt(gt=low):
                told.append(f"a number above {low}")
            case Ge(ge=low):
                told.append(f"{low} or more")
            case Lt(lt=most):
                told.append(f"below {most}")
            case Le(le=most):
                told.append(f"at most {most}")
    return f"use {' and '.join(told)}"


def require(ok: bool, name: str, value: object, way_out: str) -> None:
    """Raise :class:`ConfigError` unless ``ok``."""
    if not ok:
        raise ConfigError(name, value, way_out)


def check_config_given(cfg: object) -> None:
    """Raise ConfigError for anything but a Config, with the call that makes one of it."""
    from overlap.config.fields import Config  # its sections are made by this module

    if isinstance(cfg, Config):
        return
    source = os.fspath(cfg) if isinstance(cfg, os.PathLike) else cfg
    made = f"overlap.load_config({source!r})" if isinstance(source, str | dict) and source else "overlap.load_config()"
    raise ConfigError("cfg", cfg, f"give a Config, as {made} returns it")


def path_given(name: str, value: object, example: str) -> Path:
    """The path that argument ``name`` got, ``~`` expanded. Raises ConfigError with an ``example``."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(path, str) or not path:
        raise ConfigError(name, value, f"give a path, as in {example!r}")
    return Path(os.path.expanduser(path))


def check_count_given(name: str, value: object, otherwise: str) -> None:
    """Raise ConfigError unless argument ``name`` is None, which means ``otherwise``, or a whole number above 0."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(name, value, f"use a whole number, 1 or more, or None for {otherwise}")
