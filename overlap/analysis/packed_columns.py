"""The columns of a sample that hold a number for each token, as base64 of 4 bytes each (of ``mask``: of one)."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Mapping, Sequence

from overlap.core import Packed


def unpacked_ints(text: str) -> array[int]:
    """The int32 values of a row's base64 text, [T]."""
    found: Packed[int] = Packed.from_base64("i", text)
    return found.array


def unpacked_floats(text: str) -> array[float]:
    """The float32 values of a row's base64 text, [T]."""
    found: Packed[float] = Packed.from_base64("f", text)
    return found.array


def unpacked_bytes(text: str) -> bytes:
    """The bytes of a row's base64 text, [T]."""
    return base64.b64decode(text, validate=True)


PACKED_COLUMNS: Mapping[str, Callable[[str], Sequence[float]]] = {
    "token_ids": unpacked_ints,
    "prompt_token_ids": unpacked_ints,
    "mask": unpacked_bytes,
    "logprobs": unpacked_floats,
    "learner_logprobs": unpacked_floats,
}
"""How each of them is unpacked. All but ``prompt_token_ids`` are as long as ``token_ids``."""
