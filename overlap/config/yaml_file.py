"""YAML as ``yaml.safe_load`` reads it, but a key that occurs twice in one mapping is an error: the first value would be
lost without a message.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

HISTORY = "history"  # is in a run directory's config.yaml beside the sections, and is no part of a configuration


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
