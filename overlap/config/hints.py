"""Suggestions for a name that is no field: a field of another trainer, one of another section, one that is spelt nearly
the same. A spelling is compared only where the meaning is not known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from overlap.config.fields import Config
from overlap.config.foreign import meaning
from overlap.config.rules import field_infos, from_values
from overlap.core.errors import ConfigError, raise_all

T = TypeVar("T")


def wrong_names(tree: Mapping[str, Any]) -> Iterator[ConfigError]:
    """An error with its hint for each name in a configuration that is no section and no field."""
    known = sections()
    for section, values in tree.items():
        if section not in known:
            yield from _wrong_leaves((str(section),), values)
        elif isinstance(values, Mapping):
            for name, value in values.items():
                if name not in known[section]:
                    yield from _wrong_leaves((section, str(name)), value)


def _wrong_leaves(path: tuple[str, ...], value: Any) -> Iterator[ConfigError]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _wrong_leaves((*path, *str(name).split(".")), below)
    else:
        yield ConfigError(".".join(path), value, f"is not a field; {name_hint(path, value)}")


def name_hint(path: Sequence[str], value: Any) -> str:
    """Return what to write in the place of a name that is no field; ``path`` is the name with its sections."""
    path = [part for named in path for part in re.split("[.:/]", named.strip("+~-").replace("-", "_").lower())]
    known, name = sections(), path[-1]
    if here := meaning(path, value):
        return _said(here)
    if elsewhere := [f"{section}.{name}" for section, names in known.items() if name in names]:
        ours = [full for full in elsewhere if full.startswith("critic.") == ("critic" in path)]
        return f"did you mean {' or '.join(ours or elsewhere)}?"
    for end in range(len(path) - 1, 0, -1):
        if here := meaning(path[:end], None):
            return _said(here)
    if path[0] in known:
        return near_name(name, {field: f"{path[0]}.{field}" for field in known[path[0]]}, path[0])
    every = {field: f"{section}.{field}" for section, names in reversed(known.items()) for field in names}
    return near_name(name if len(path) == 1 else path[0], every | {section: section for section in known})


def _said(here: str) -> str:
    return f"there is {here.replace(':', ' here:', 1)}" if here.startswith("none:") else f"here it is {here}"


def near_name(name: str, full: Mapping[str, str], section: str = "") -> str:
    """The names that are spelt nearly so, or else how to find them."""
    very_near = difflib.get_close_matches(name, full, n=1, cutoff=0.75)
    very_near = very_near or [known for known in full if name in known.split("_")][:3]
    if near := very_near or difflib.get_close_matches(name, full, n=3, cutoff=0.5 if section else 0.7):
        return f"did you mean {' or '.join(full[found] for found in near)}?"
    listed = full if section else sections()
    what = "says what each is" if section else "lists all; write section.field=value"
    return f"known are {', '.join(listed)}: `overlap fields{f' {section}' if section else ''}` {what}"


def sections() -> dict[str, list[str]]:
    """The names of all fields, by section."""
    return {name: list(field_infos(kind)) for name, kind in get_type_hints(Config).items()}


def section_from(kind: type[T], values: Mapping[str, Any], name: str) -> T:
    """A dataclass of options, those of a task or a reward function, from their values. Raises ConfigError for a name
    that is none of its fields, and for a value of the wrong type or out of bounds. ``name`` is what the fields' names
    begin with.
    """
    known = {f.name: f"{name}.{f.name}" for f in fields(kind)}  # type: ignore[arg-type]
    unknown = {key: f"is not a field; {near_name(key, known, name)}" for key in values if key not in known}
    raise_all([ConfigError(f"{name}.{key}", values[key], hint) for key, hint in unknown.items()])
    return from_values(kind, values, name)
