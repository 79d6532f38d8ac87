"""Mappings of options that are no section of the configuration: those of a task, of a reward function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from overlap.config.hints import near_name
from overlap.config.rules import from_values
from overlap.core.errors import ConfigError, raise_all

T = TypeVar("T")


def section_from(kind: type[T], values: Mapping[str, Any], name: str) -> T:
    """A dataclass of options from their values. Raises ConfigError for a name that is none of its fields, and for a
    value of the wrong type or out of bounds. ``name`` is what the fields' names begin with.
    """
    known = {f.name: f"{name}.{f.name}" for f in fields(kind)}  # type: ignore[arg-type]
    unknown = [key for key in values if key not in known]
    hints = [f"is not a field; {near_name(key, known, name)}" for key in unknown]
    raise_all([ConfigError(f"{name}.{key}", values[key], hint) for key, hint in zip(unknown, hints, strict=True)])
    return from_values(kind, values, name)
