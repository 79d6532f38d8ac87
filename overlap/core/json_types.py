"""The JSON form of a value, for code that writes it or compares it with a written one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def to_json_types(value: Any) -> Any:
    """``value`` as JSON types: mappings, lists, strings, finite numbers. NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(k): to_json_types(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_types(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None  # NumPy's is a float too, but not to YAML
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value)
