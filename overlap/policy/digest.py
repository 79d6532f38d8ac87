"""Is it the same policy? A digest of a checkpoint, equal wherever it lies."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from overlap.errors import ConfigError
from overlap.policy.check import FIELD

_PIECES, _PIECE = 256, 4096
_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja")


def policy_digest(policy: Path) -> str:
    """Hex digest of the files of a checkpoint: names, sizes, and ``_PIECES`` pieces at even steps of each.

    Another training step changes nearly all weights, so it is not needed to read all of them. Raises ConfigError.
    """
    digest = hashlib.sha256()
    try:
        for file in sorted(path for path in policy.iterdir() if path.suffix in _SUFFIXES):
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                digest.update(f"{file.name}:{size};".encode())
                for at in _starts(size):
                    opened.seek(at)
                    digest.update(opened.read(_PIECE))
    except OSError as error:
        raise ConfigError(FIELD, str(policy), f"cannot be read ({error.strerror}); give another policy") from error
    return digest.hexdigest()[:16]


def _starts(size: int) -> list[int]:
    """Where the pieces begin; they cover a small file whole."""
    if size <= _PIECES * _PIECE:
        return list(range(0, size, _PIECE))
    return [piece * (size - _PIECE) // (_PIECES - 1) for piece in range(_PIECES)]
