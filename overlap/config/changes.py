"""Fields that a resumed run has changed in its configuration, and the check that a stored one is of this version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from overlap.config.fields import Config
from overlap.config.load import read_sections
from overlap.config.rules import field_infos, may_change
from overlap.core.errors import ConfigError, count_of
from overlap.core.json_types import to_json_types


@dataclass(frozen=True, slots=True)
class Change:
    """A field with another value than before. ``allowed``: a resumed run may change it."""

    field: str
    was: Any
    now: Any
    allowed: bool

    def __str__(self) -> str:
        return f"{self.field} was {self.was!r}, is {self.now!r}"


def changes(was: Mapping[str, Any], now: Config) -> tuple[Change, ...]:
    """The fields of ``now`` that differ from ``was``, which :meth:`Config.to_dict` of this version made."""
    found = []
    for section, name, info in _every_field():
        before, value = to_json_types(was[section][name]), to_json_types(getattr(getattr(now, section), name))
        if before != value:
            found.append(Change(f"{section}.{name}", before, value, may_change(info)))
    return tuple(found)


def check_run_version(file: Path) -> None:
    """Raise ConfigError for a run's ``config.yaml`` that another version of this package wrote."""
    check_stored_fields(read_sections(file), str(file.parent))


def check_stored_fields(stored: Mapping[str, Any], run: str) -> None:
    """Raise ConfigError for the configuration of a ``run`` that has other fields than those of this version."""
    known = {f"{section}.{name}" for section, name, _ in _every_field()}
    there = {f"{section}.{name}" for section in get_type_hints(Config) for name in stored.get(section) or {}}
    if odd := sorted(known ^ there):
        way_out = f"another version made this run (it {'lacks' if odd[0] in known else 'has'} {odd[0]}"
        way_out += f", and differs in {count_of(len(odd) - 1, 'other field')}" if len(odd) > 1 else ""
        raise ConfigError("run.dir", run, f"{way_out}): use that version for it, or begin a new run")


def _every_field() -> Iterator[tuple[str, str, Any]]:
    for section, kind in get_type_hints(Config).items():
        for name, info in field_infos(kind).items():
            yield section, name, info
