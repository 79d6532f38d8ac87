"""A digest of prompts and of the problems that they carry, by which a resumed run knows that its data is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
    return _digest_of((p.id, list(p.token_ids), p.prefill, p.data) for p in prompts)[:16]


def _digest_of(values: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        _add(digest, value, 0)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, value: Any, depth: int) -> None:
    digest.update(f"{type(value).__qualname__}:".encode())
    if value is None or isinstance(value, bool | int | float):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, str | bytes | bytearray):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        digest.update(f"{len(raw)};".encode())
        digest.update(raw)
    elif depth < _DEEPEST:
        parts = _parts_of(value)
        digest.update(f"{len(parts)}[".encode())
        for part in parts:
            _add(digest, part, depth + 1)


def _parts_of(value: Any) -> Sequence[Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name) for f in fields(value) if f.compare]
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, set | frozenset):
        return sorted(_digest_of([part]) for part in value)
    return value if isinstance(value, list | tuple) else ()
