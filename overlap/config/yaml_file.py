"""YAML as ``yaml.safe_load`` reads it, but a key that occurs twice in one mapping is an error: the first value would be
lost without a message. An error, too, is what is nested without end or, by its aliases, too long for any reader.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import yaml

HISTORY = "history"  # is in a run directory's config.yaml beside the sections, and is no part of a configuration
DEEPEST, MOST, LONGEST = 50, 100_000, 2 << 20
"""Limits on one document: levels of nesting, values, those of an alias each time, and characters."""


class _StrictLoader(yaml.SafeLoader):
    """Loader that refuses a mapping with a key that occurs twice in it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            name, line = self.construct_object(key), key.start_mark.line + 1
            if name in seen:
                first = f"line {seen[name]}" + (" and" if seen[name] != line else ", and again in")
                raise yaml.YAMLError(f"{name!r} stands twice in one mapping, in {first} line {line}: leave one out")
            seen[name] = line
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The value of one YAML document. Raises yaml.YAMLError."""
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"longer than {LONGEST} characters")
    try:
        found = yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        if (mark := error.problem_mark) is None:
            raise
        raise yaml.YAMLError(f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}") from error
    except RecursionError:
        raise yaml.YAMLError(f"more than {DEEPEST} levels are nested") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # how the loader says what fits no tag
        raise yaml.YAMLError(f"a date, a number or what a tag names is none: {error}") from error
    _check_size(found)
    return found


def _check_size(found: Any) -> None:
    level, count = [found], 0
    for _ in range(DEEPEST):
        level = [below for value in level if isinstance(value, dict | list | tuple) for below in _members(value)]
        count += len(level)
        if count > MOST:
            raise yaml.YAMLError(f"more than {MOST} values, those that an alias repeats among them")
    if level:
        raise yaml.YAMLError(f"more than {DEEPEST} levels are nested")


def _members(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
