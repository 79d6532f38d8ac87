"""A digest of prompts and of the problems that they carry, by which a resumed run knows that its data is the same."""

from __future__ import annotations

import hashlib
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
        _add(digest, (prompt.id, list(prompt.token_ids), prompt.prefill, prompt.data), 0)
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, value: Any, depth: int) -> None:
    kind = type(value)
    digest.update(f"{kind.__qualname__}:".encode())
    if value is None or isinstance(value, bool | int | float):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, str | bytes | bytearray):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        digest.update(f"{len(raw)};".encode())
        digest.update(raw)
    elif depth < _DEEPEST:
        _add_parts(digest, value, depth + 1)


def _add_parts(digest: hashlib._Hash, value: Any, depth: int) -> None:
    parts: Iterable[Any] = ()
    if is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, f.name) for f in fields(value) if f.compare]
    elif isinstance(value, Mapping):
        parts = [part for item in value.items() for part in item]
    elif isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, set | frozenset):
        parts = sorted(data_digest_of(part) for part in value)
    parts = list(parts)
    digest.update(f"{len(parts)}[".encode())
    for part in parts:
        _add(digest, part, depth)


def data_digest_of(value: Any) -> str:
    """Hex digest of one value."""
    digest = hashlib.sha256()
    _add(digest, value, 0)
    return digest.hexdigest()
