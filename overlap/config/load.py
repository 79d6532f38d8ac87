"""Configuration from a YAML file and ``key.sub=value`` overrides."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from overlap.config.docs import known_fields
from overlap.config.fields import Config
from overlap.config.foreign import FOREIGN
from overlap.errors import ConfigError

HISTORY = "history"  # stands in a run directory's config.yaml beside the sections, and is no part of a configuration


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Build a :class:`Config` from a YAML file (optional) and overrides such as ``"learn.lr=2e-5"``.

    Raises:
        ConfigError: the file cannot be read, a key is unknown (the nearest known one is named), a value has the wrong
            type, or the combination is impossible.
    """
    tree = _read(Path(path)) if path is not None else {}
    for override in overrides:
        _apply(tree, override)
    return config_from_dict(tree)


def last_override(overrides: Iterable[str], name: str) -> str | None:
    """The last value that ``overrides`` give field ``name`` ("run.dir"), as text; None where they give none."""
    values = [value for field, _, value in (word.partition("=") for word in overrides) if field.strip() == name]
    return values[-1] if values else None


def without_override(overrides: Iterable[str], name: str) -> list[str]:
    """``overrides`` without those of field ``name``."""
    return [word for word in overrides if word.partition("=")[0].strip() != name]


def config_from_dict(tree: Mapping[str, Any]) -> Config:
    """Build a :class:`Config` from a nested mapping, as :meth:`Config.to_dict` makes it."""
    hints = get_type_hints(Config)
    tree = {name: values for name, values in tree.items() if name != HISTORY}
    _refuse_unknown("", tree, hints)
    sections = {}
    for name, kind in hints.items():
        values = tree.get(name)
        values = {} if values is None else values
        if not isinstance(values, Mapping):
            raise ConfigError(name, values, f"write its fields below it, as in {name}.{fields(kind)[0].name}=...")
        types = get_type_hints(kind)
        known = {field: types[field] for field in known_fields(kind)}
        _refuse_unknown(f"{name}.", values, known)
        sections[name] = kind(**{key: _coerce(known[key], value) for key, value in values.items()})
    return Config(**sections)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", str(path), f"cannot be read ({error.strerror}); give a YAML file") from error
    except (yaml.YAMLError, ValueError) as error:  # also a name with a null byte, and what is not UTF-8
        raise ConfigError("--config", str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError("--config", str(path), "write sections (model:, data:, ...) at the top level")
    return tree


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and name):
        way_out = "write section.field=value, for instance learn.lr=2e-5"
        if section.endswith((".yaml", ".yml")) or name.endswith(("yaml", "yml")):
            way_out = "a configuration is given with --config FILE"
        raise ConfigError("override", override, way_out)
    try:
        value = yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError as error:
        raise ConfigError(key, text, f"is not a YAML value: {' '.join(str(error).split())}") from error
    below = tree.setdefault(section, {})
    if not isinstance(below, dict):
        raise ConfigError(section, below, "is a section: write its fields below it")
    below[name] = value


def _coerce(kind: Any, value: Any) -> Any:
    kind = float if kind == float | None else kind
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 2e-5 as a string
        try:
            return float(value)
        except ValueError:
            return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, list | tuple):
        return tuple(value)
    return value


def _refuse_unknown(prefix: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{prefix}{key}", given[key], f"is not a field; {_hint(prefix, str(key), given[key], known)}"
            )


def _hint(prefix: str, key: str, value: Any, known: Mapping[str, Any]) -> str:
    """What a key that is no field may have been meant to be."""
    inner = next(iter(value)) if not prefix and isinstance(value, Mapping) and value else key
    last = str(inner).rpartition(".")[2]
    if last in FOREIGN:
        return f"here it is {FOREIGN[last]}"
    sections = get_type_hints(Config)
    if elsewhere := [f"{section}.{last}" for section, kind in sections.items() if last in known_fields(kind)]:
        return f"did you mean {' or '.join(elsewhere)}?"
    very_near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if near := very_near or difflib.get_close_matches(key, known, n=3, cutoff=0.5):
        return f"did you mean {' or '.join(prefix + name for name in near)}?"
    return f"known are {', '.join(known)}: `overlap fields{f' {prefix[:-1]}' if prefix else ''}` says what each is"
