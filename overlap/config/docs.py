"""Meaning of each field, at a terminal (`overlap fields`) and as a page: its doc is below it in the source."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

from overlap.config.fields import Config
from overlap.config.hints import name_hint
from overlap.config.load import changes
from overlap.config.rules import choices, field_infos, may_change, takes_import_path
from overlap.core.errors import ConfigError

_WIDTH = 116
_ALIGNED = 60
"""Longest assignment that others are aligned with, characters."""


def field_lines(name: str = "") -> list[str]:
    """Name, default, choices and meaning of every field, of those of a section, or of one ("learn.lr"). Raises
    ConfigError for a name that is none.
    """
    sections = get_type_hints(Config)
    every = {f"{section}.{n}": info for section, kind in sections.items() for n, info in field_infos(kind).items()}
    wanted = [full for full in every if not name or full == name or full.startswith(f"{name}.")]
    if not wanted:
        raise ConfigError("field", name, f"is none; {name_hint(name.split('.'), None)}")
    return [line for full in wanted for line in _field(full, every[full])]


def changed_lines(cfg: Config) -> list[str]:
    """The fields of ``cfg`` that differ from their defaults, a line each behind a title."""
    found = changes(Config().to_dict(), cfg)
    if not found:
        return ["configuration: every field has its default (--all lists them)"]
    shown = [(f"{each.field}={_written(each.now)}", _written(each.was) or '""') for each in found]
    width = max(len(field) for field, _ in shown if len(field) <= _ALIGNED or len(shown) == 1)
    title = "configuration: these differ from the defaults (--all lists every field)"
    return [title, *(f"  {field:<{width}}  (default {default})" for field, default in shown)]


def page() -> str:
    """The page docs/config.md."""
    lines = [
        "# Configuration",
        "",
        "<!-- Made by `python -m overlap.config.docs > docs/config.md` from the docs of the fields. -->",
        "",
        "A run is described by a YAML file of these sections and by `section.field=value` on the command line. A field",
        "that is not named has its default. A file with the line `extends: FILE` (a path relative to its own folder)",
        "has the values of that file where it names none. `overlap fields NAME` prints what this page says of a",
        "section or a field.",
        "",
        "When a run is resumed, only fields marked *resumable* may differ from what they were.",
    ]
    for section, kind in get_type_hints(Config).items():
        lines += ["", f"## {section}", "", _marked(inspect.getdoc(kind) or "")]
        for name, info in field_infos(kind).items():
            usual = info.get_default(call_default_factory=True)
            others = ", ".join(f"`{choice}`" for choice in _choices(info) if choice != usual)
            head = f"Default: `{_value(usual)}`" if _value(usual) else 'Default: `""`'
            head += f"; or {others}" if others else ""
            head += ". *Resumable.*" if may_change(info) else "."
            lines += ["", f"### {section}.{name}", "", head, "", _marked(info.description or "")]
    lines += ["", "## Names of other trainers", ""]
    lines += [
        "A name of TRL, verl, OpenRLHF or AReaL is refused with what it is here: `beta=0.1` with `learn.kl_coef`, and",
        "so on for the names in `overlap/config/foreign.yaml`.",
    ]
    return "\n".join(lines) + "\n"


def _marked(doc: str) -> str:
    """A docstring as Markdown."""
    return textwrap.fill(re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join(doc.split())).replace("``", "`"), _WIDTH + 4)


def _field(full: str, info: FieldInfo) -> Iterator[str]:
    choices = " | ".join(map(str, _choices(info)))
    yield f"{full}={_value(info.get_default(call_default_factory=True))}" + (f"  ({choices})" if choices else "")
    yield from textwrap.wrap(
        meaning_of(info), _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


def meaning_of(info: FieldInfo) -> str:
    """The meaning of a field, in one line."""
    return " ".join((info.description or "").replace("``", "").split())


def _choices(info: FieldInfo) -> tuple[Any, ...]:
    found = choices(info.annotation)
    return (*found, "module:function") if takes_import_path(info.annotation) else found


def _value(default: Any) -> str:
    """As it is written behind the equals sign."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, tuple) and all(isinstance(each, str) for each in default):
        return f"[{', '.join(default)}]"
    return str(default) if default != [] else "[]"


def _written(value: Any) -> str:
    """As it may be written in a configuration; a list or mapping as JSON, which is YAML."""
    return json.dumps(value, ensure_ascii=False) if value and isinstance(value, list | dict) else _value(value)


if __name__ == "__main__":
    print(page(), end="")
