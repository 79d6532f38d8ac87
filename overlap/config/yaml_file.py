"""YAML as ``yaml.safe_load`` reads it, but a key that stands twice in one mapping is an error: the first value would be
lost in silence.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """Refuses a mapping with a key that stands twice in it."""

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
    return yaml.load(text, _StrictLoader)
