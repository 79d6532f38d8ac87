"""Configuration from a YAML file and ``key.sub=value`` overrides."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from overlap.config.earlier import carry_over, refuse_retired
from overlap.config.fields import Config
from overlap.config.foreign import FOREIGN
from overlap.config.rules import check_section, defaults
from overlap.errors import ConfigError, one_line

HISTORY = "history"  # stands in a run directory's config.yaml beside the sections, and is no part of a configuration
EXTENDS = "extends"

T = TypeVar("T")


Overrides = Sequence[str] | Mapping[str, Any]
"""``["learn.lr=2e-5"]``, whose values are YAML; ``{"learn.lr": 2e-5}`` or ``{"learn": {"lr": 2e-5}}``."""


def load_config(source: str | Path | Mapping[str, Any] | None = None, overrides: Overrides = ()) -> Config:
    """Build a :class:`Config` from a YAML file or a mapping (None: the defaults) and overrides.

    A file may begin with ``extends: FILE``, a path from its own folder on: it then says what differs from that one. A
    mapping holds what a file would, or names of fields as in ``{"learn.lr": 2e-5}``; overrides are such a mapping, or a
    list as in ``["learn.lr=2e-5"]``.

    Raises:
        ConfigError: the file cannot be read, a key is unknown (the nearest known one is named), a value has the wrong
            type, or the combination is impossible.
    """
    if isinstance(source, Mapping):
        tree = _set_fields({}, source)
        if EXTENDS in tree:
            tree = _extended(tree, Path())
    elif source is None or isinstance(source, str | os.PathLike):
        tree = _read(Path(source)) if source is not None else {}
    else:
        raise ConfigError("source", source, "give the path of a YAML file, a mapping of fields, or None")
    return config_from_dict(_overridden(tree, overrides))


def replaced(cfg: Config, overrides: Overrides) -> Config:
    """``cfg`` with other values of some fields; see :func:`load_config`."""
    return config_from_dict(_overridden(cfg.to_dict(), overrides))


def last_override(overrides: Iterable[str], name: str) -> str | None:
    """The last value that ``overrides`` give field ``name`` ("run.dir"), as text; None where they give none."""
    values = [value for field, _, value in (word.partition("=") for word in overrides) if field.strip() == name]
    return values[-1] if values else None


def without_override(overrides: Iterable[str], name: str) -> list[str]:
    """``overrides`` without those of field ``name``."""
    return [word for word in overrides if word.partition("=")[0].strip() != name]


def config_from_dict(tree: Mapping[str, Any]) -> Config:
    """Build a :class:`Config` from a nested mapping, as :meth:`Config.to_dict` makes it, now or in earlier versions."""
    hints = get_type_hints(Config)
    tree, stray = carry_over({name: values for name, values in tree.items() if name != HISTORY})
    for name, value in stray.items():
        refuse_retired(name, value)
    _refuse_unknown("", tree, hints)
    sections = {}
    for name, kind in hints.items():
        values = tree.get(name)
        values = {} if values is None else values
        if not isinstance(values, Mapping):
            raise ConfigError(name, values, f"write its fields below it, as in {name}.{fields(kind)[0].name}=...")
        sections[name] = section_from(kind, values, name)
    return Config(**sections)


def section_from(kind: type[T], values: Mapping[str, Any], name: str) -> T:
    """A dataclass of fields from their values. Raises ConfigError for a name that is none of its fields, and for a
    value of the wrong type or out of bounds. ``name`` is what the fields' names begin with.
    """
    types = get_type_hints(kind)
    known = {f.name: types[f.name] for f in fields(kind)}  # type: ignore[arg-type]
    _refuse_unknown(f"{name}.", values, known)
    made = kind(**{key: _coerce(known[key], value) for key, value in values.items()})
    check_section(name, made)  # type: ignore[arg-type]
    return made


def _read(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The sections of a file and of those that it extends. ``below`` are the files that extend it."""
    try:
        if path.resolve() in below:
            raise ConfigError(EXTENDS, str(path), "is extended by itself: leave that out")
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        field = EXTENDS if below else "--config"
        raise ConfigError(field, str(path), f"cannot be read ({error.strerror}); give a YAML file") from error
    except (yaml.YAMLError, ValueError) as error:  # also a name with a null byte, and what is not UTF-8
        raise ConfigError("--config", str(path), f"is not YAML: {one_line(error)}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError("--config", str(path), "write sections (model:, data:, ...) at the top level")
    return _extended(tree, path.parent, (*below, path.resolve()))


def _extended(tree: dict[str, Any], folder: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """``tree`` with what the file that it extends has besides."""
    base = tree.pop(EXTENDS, None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(EXTENDS, base, "give the path of one YAML file, from the folder of this one on")
    return _merged(_read(folder / base, below), tree)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where each has a mapping in turn; else what ``over`` has."""
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        below = below if isinstance(below, Mapping) else {}
        found[key] = _merged(below, value) if isinstance(value, Mapping) else value
    return found


def _overridden(tree: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return _set_fields(tree, overrides)
    known = isinstance(overrides, Sequence) and not isinstance(overrides, str | bytes)
    if not known or not all(isinstance(override, str) for override in overrides):
        raise ConfigError(
            "overrides", overrides, 'give a list as in ["learn.lr=2e-5"] or a mapping as {"learn.lr": 2e-5}'
        )
    for override in overrides:
        _apply(tree, override)
    return tree


def _set_fields(tree: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``tree`` with the values of a mapping of sections, or of names such as "learn.lr", in it."""
    for key, value in values.items():
        if isinstance(key, str) and "." in key:
            _put(tree, key, value)
        else:
            tree = _merged(tree, {key: value})
    return tree


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *above, name = key.strip().split(".")
    if not (equals and above and name):
        way_out = "write section.field=value, for instance learn.lr=2e-5"
        if override.endswith((".yaml", ".yml")):
            way_out = "a configuration is given with --config FILE"
        raise ConfigError("override", override, way_out)
    try:
        value = yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError as error:
        raise ConfigError(key, text, f"is not a YAML value: {one_line(error)}") from error
    _put(tree, key.strip(), value)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    refuse_retired(key, value)
    *above, name = key.split(".")
    below = tree
    for number, section in enumerate(above):
        below = below.setdefault(section, {})
        if not isinstance(below, dict):
            raise ConfigError(".".join(above[: number + 1]), below, "is a section: write its fields below it")
    below[name] = value


def _coerce(kind: Any, value: Any) -> Any:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
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
    last = key
    while not prefix and isinstance(value, Mapping) and value:
        last, value = next(iter(value.items()))
    last = str(last).rpartition(".")[2]
    if last in FOREIGN:
        return f"here it is {FOREIGN[last]}"
    sections = get_type_hints(Config)
    if elsewhere := [f"{section}.{last}" for section, kind in sections.items() if last in defaults(kind)]:
        return f"did you mean {' or '.join(elsewhere)}?"
    very_near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if near := very_near or difflib.get_close_matches(key, known, n=3, cutoff=0.5):
        return f"did you mean {' or '.join(prefix + name for name in near)}?"
    return f"known are {', '.join(known)}: `overlap fields{f' {prefix[:-1]}' if prefix else ''}` says what each is"
