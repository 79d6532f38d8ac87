"""Stand-ins for what a stage of the GPU checks calls in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def two_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield two rows."""
    yield {"check": name, "ok": True}
    yield {"check": f"{name} again", "ok": True}


def dies(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row, then end the process."""
    yield {"check": name, "ok": True}
    os._exit(3)
