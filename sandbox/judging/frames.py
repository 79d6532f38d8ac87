"""Read what a harness wrote about its run.

The program can read the run's nonce and write a frame of its own, so no shape is trusted: parts of another shape are
dropped, and the rest is plain data of bounded size.
"""

from __future__ import annotations

import hmac
import json
import sys
from typing import Any, Final

from sandbox.compare import values

Frame = dict[str, Any]
"""ok: bool; error, stage, kind, lost: text; values: a list, as sandbox.compare.values encodes them, if there is one."""

NONCE_BYTES: Final = 32
_TEXT_MAX: Final = 4000
_DIGITS_MAX: Final = 4300
_TEXTS: Final = ("error", "stage", "kind", "lost")


def read_frame(result: bytes, nonce: bytes) -> Frame | None:
    """Return the frame, if it carries this run's nonce and can be read. Raises nothing, whatever the bytes are."""
    if not hmac.compare_digest(result[:NONCE_BYTES], nonce):
        return None
    try:
        with values.acyclic():
            data = json.loads(result[NONCE_BYTES:], parse_int=None if sys.get_int_max_str_digits() else _int)
    except (ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(data, dict):
        return None
    texts = {name: data.get(name) for name in _TEXTS}
    frame: Frame = {name: text[:_TEXT_MAX] if isinstance(text, str) else "" for name, text in texts.items()}
    frame["ok"] = data.get("ok") is True
    if isinstance(data.get("values"), list):
        frame["values"] = data["values"]
    return frame


def _int(digits: str) -> int:
    """Parse an integer in a caller that has lifted Python's limit: harnesses write long integers in another form."""
    if len(digits) > _DIGITS_MAX:
        raise ValueError("a long integer in decimal")
    return int(digits)
