"""A digest of prompts and of the problems that they carry, by which a resumed run knows that its data is the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlap.core import Prompt

_DEEPEST = 40  # an object that holds itself has no end


def data_digest(prompts: Iterable[Prompt]) -> str:
    """Hex digest of the prompts, in their order, and of all data that they carry (tests, reference answers).

    It is the same in every process, and wherever the file is: of an object with unknown contents (no dataclass,
    container or plain value), only the type counts.
    """
    digest = hashlib.sha256()
    for prompt in prompts:
        known = prompt.id, list(prompt.token_ids), prompt.prefill, _plain(prompt.data, 0)
        digest.update(json.dumps(known).encode())
    return digest.hexdigest()[:16]


def _plain(value: Any, depth: int) -> Any:
    """``value`` as JSON types, with the names of its types."""
    if value is None or isinstance(value, str | int | float):
        return value
    kind, parts = type(value).__qualname__, list[Any]()
    if isinstance(value, bytes | bytearray):
        parts = [value.hex()]
    elif depth < _DEEPEST and is_dataclass(value) and not isinstance(value, type):
        parts = [_plain(getattr(value, f.name), depth + 1) for f in fields(value) if f.compare]
    elif depth < _DEEPEST and isinstance(value, Mapping):
        parts = [_plain(part, depth + 1) for item in value.items() for part in item]
    elif depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        parts = [_plain(part, depth + 1) for part in value]
        parts = sorted(parts, key=json.dumps) if isinstance(value, set | frozenset) else parts
    return {kind: parts}
