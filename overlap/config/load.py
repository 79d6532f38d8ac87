"""Configuration from a YAML file and ``key.sub=value`` overrides, and what differs from that of an earlier run."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from overlap.config.fields import Config
from overlap.config.hints import sections, wrong_names
from overlap.config.rules import Overrides, field_infos, may_change
from overlap.core.errors import ConfigError, count_of, one_line, raise_all, refusing
from overlap.core.json_types import to_json_types

EXTENDS = "extends"
HISTORY = "history"  # is in a run directory's config.yaml beside the sections, and is no part of a configuration


def load_config(source: str | Path | Mapping[str, Any] | None = None, overrides: Overrides = ()) -> Config:
    """Build a :class:`Config` from a YAML file or a mapping (None: the defaults) and overrides.

    A file may begin with ``extends: FILE``, a path from its own folder on: it then says what differs from that one. A
    mapping holds what a file would, or names of fields as in ``{"learn.lr": 2e-5}``; overrides are such a mapping, or a
    list as in ``["learn.lr=2e-5"]``.

    Raises:
        ConfigError: the file cannot be read, keys are unknown (each is named, with what it is here), a value has the
            wrong type, or the combination is impossible.
    """
    wrong: list[ConfigError] = []
    if isinstance(source, Mapping):
        tree, wrong = _with_fields({}, source)
        if EXTENDS in tree:
            tree = _extended(tree, Path())
    elif source is None:
        tree = {}
    elif isinstance(source, str | os.PathLike) and source:
        tree = read_sections(Path(source))
    else:
        raise ConfigError("source", source, "give the path of a YAML file, a mapping of fields, or None")
    return _overridden(tree, overrides, wrong)


def replaced(cfg: Config, overrides: Overrides) -> Config:
    """``cfg`` with other values of some fields; see :func:`load_config`."""
    return _overridden(cfg.to_dict(), overrides)


def last_override(overrides: Iterable[str], name: str) -> str | None:
    """The last value that ``overrides`` give field ``name`` ("run.dir"), as text; None where they give none."""
    values = [value for field, _, value in (word.partition("=") for word in overrides) if field.strip() == name]
    return values[-1] if values else None


def without_override(overrides: Iterable[str], name: str) -> list[str]:
    """``overrides`` without those of field ``name``."""
    return [word for word in overrides if word.partition("=")[0].strip() != name]


def config_from_dict(tree: Mapping[str, Any], wrong: Sequence[ConfigError] = ()) -> Config:
    """Build a :class:`Config` from a nested mapping, as :meth:`Config.to_dict` makes it. Raises one ConfigError for all
    wrong names, with what is ``wrong`` already, else for all wrong values.
    """
    tree = {name: values for name, values in tree.items() if name != HISTORY and values is not None}
    raise_all([*wrong, *wrong_names(tree)])
    return Config(**{name: _plain(values) for name, values in tree.items()})


def _plain(values: Any) -> Any:
    """The values of a section, with paths as text."""
    if not isinstance(values, Mapping):
        return values
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in values.items()}


def read_sections(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The sections of a file and of the files that it extends. ``below`` are the files that extend it. Raises
    ConfigError for what is no YAML of sections.
    """
    field = EXTENDS if below else "--config"
    with (
        refusing("--config", str(path), "is not YAML", "mend it", (yaml.YAMLError, ValueError)),
        refusing(field, str(path), "cannot be read", "give a YAML file"),
    ):
        itself = path.resolve() in below
        tree = read_yaml(path.read_text(encoding="utf-8"))
    if itself:
        raise ConfigError(EXTENDS, str(path), "is extended by itself: leave that out")
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
    return _merged(read_sections(folder / base, below), tree)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where each has a mapping in turn; else what ``over`` has."""
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        below = below if isinstance(below, Mapping) else {}
        found[key] = _merged(below, value) if isinstance(value, Mapping) else value
    return found


def _overridden(tree: dict[str, Any], overrides: Overrides, wrong: Sequence[ConfigError] = ()) -> Config:
    """The configuration of ``tree`` and ``overrides``. Raises one ConfigError for all wrong names and for ``wrong``."""
    if isinstance(overrides, Mapping):
        tree, found = _with_fields(tree, overrides)
        return config_from_dict(tree, [*wrong, *found])
    known = isinstance(overrides, Sequence) and not isinstance(overrides, str | bytes)
    if not known or not all(isinstance(override, str) for override in overrides):
        raise ConfigError(
            "overrides", overrides, 'give a list as in ["learn.lr=2e-5"] or a mapping as {"learn.lr": 2e-5}'
        )
    found = [error for override in overrides if (error := _apply(tree, override)) is not None]
    return config_from_dict(tree, [*wrong, *found])


def _with_fields(tree: dict[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[ConfigError]]:
    """``tree`` with the values of a mapping of sections, or of names such as "learn.lr", in it; and what is wrong."""
    wrong = []
    for key, value in values.items():
        if not (isinstance(key, str) and "." in key):
            tree = _merged(tree, {key: value})
        elif (error := _put(tree, key, value)) is not None:
            wrong.append(error)
    return tree, wrong


def _apply(tree: dict[str, Any], override: str) -> ConfigError | None:
    """Put an override into its place; returns why it has none, so that all can be reported at once."""
    key, equals, text = override.partition("=")
    key = key.strip().lstrip("+")
    *above, name = key.split(".")
    if not (equals and name and all(above)):
        is_field = len(above) == 1 and name in sections().get(above[0], ())
        way_out = f"write {key}=VALUE" if is_field else "write section.field=value, for instance learn.lr=2e-5"
        if override.endswith((".yaml", ".yml")):
            way_out = "a configuration is given with --config FILE"
        return ConfigError("override", override, way_out)
    try:
        value = read_yaml(text) if text.strip() else ""
    except yaml.YAMLError as error:
        return ConfigError(key, text, f"is not a YAML value: {one_line(error)}")
    if not above and name in sections():
        return ConfigError(
            "override", override, f"{name} is a section: write section.field=value, see `overlap fields`"
        )
    return _put(tree, key, value)


def _put(tree: dict[str, Any], key: str, value: Any) -> ConfigError | None:
    """Put the value of a field into its place; returns why it has none."""
    *above, name = key.split(".")
    below = tree
    for number, section in enumerate(above):
        if below.get(section) is None:
            below[section] = {}
        below = below[section]
        if not isinstance(below, dict):
            full = ".".join(above[: number + 1])
            way_out = f"is no section: write {full}=VALUE" if number else "is a section: write its fields below it"
            return ConfigError(full, below, way_out)
    below[name] = value
    return None


class _StrictLoader(yaml.SafeLoader):
    """Refuses a mapping with a key that occurs twice in it: the first value would be lost without a message."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            name, line = self.construct_object(key), key.start_mark.line + 1
            if name in seen:
                first = f"line {seen[name]}" + (" and" if seen[name] != line else ", and again in")
                raise yaml.YAMLError(f"{name!r} is twice in one mapping, in {first} line {line}: leave one out")
            seen[name] = line
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The value of one YAML document. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        if (mark := error.problem_mark) is None:
            raise
        raise yaml.YAMLError(f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # how the loader says what fits no tag
        raise yaml.YAMLError(f"a date, a number or what a tag names is none: {error}") from error


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
