"""What each field means, for a reader at a terminal: its doc stands under it in the source, which is read here."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from overlap.config.fields import Config
from overlap.errors import ConfigError

_WIDTH = 116


def field_lines(name: str = "") -> list[str]:
    """Name, default, choices and meaning of every field, of those of a section, or of one ("learn.lr"). Raises
    ConfigError for a name that is none.
    """
    sections = get_type_hints(Config)
    every = {f"{section}.{field}": (kind, field) for section, kind in sections.items() for field in known_fields(kind)}
    wanted = [full for full in every if not name or full == name or full.startswith(f"{name}.")]
    if not wanted:
        near = difflib.get_close_matches(name, [*sections, *every], n=1)
        hint = f"did you mean {near[0]}?" if near else f"give a section ({', '.join(sections)}) or section.field"
        raise ConfigError("field", name, f"is none; {hint}")
    return [line for full in wanted for line in _told(full, *every[full])]


def known_fields(section: type) -> tuple[str, ...]:
    """Names of the fields of a section."""
    return tuple(field.name for field in fields(section))


def _told(full: str, section: type, name: str) -> Iterator[str]:
    default = next(field.default for field in fields(section) if field.name == name)
    hint = get_type_hints(section)[name]
    choices = f"  ({' | '.join(map(str, get_args(hint)))})" if get_origin(hint) is Literal else ""
    yield f"{full}={_value(default)}{choices}"
    yield from textwrap.wrap(field_docs(section)[name], _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _value(default: Any) -> str:
    """As it is written behind the equals sign."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, float):
        return f"{default:g}"
    return "[]" if default == () else str(default)


def field_docs(section: type) -> dict[str, str]:
    """Name → meaning, in one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    docs = dict[str, str]()
    for statement, below in zip(body.body, body.body[1:], strict=False):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=doc)):
                docs[name] = " ".join(str(doc).replace("``", "").split())
    return docs
