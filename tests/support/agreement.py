"""Where the shared data is, and how much of it is judged."""

from __future__ import annotations

import os

from places import SHARED

from sandbox import Limits
from sandbox.core import MIB

DATA = SHARED
ALL = os.environ.get("SANDBOX_AGREEMENT") == "all"


def limits(cpu_s: float) -> Limits:
    return Limits(cpu_s=cpu_s, wall_s=60, memory_bytes=512 * MIB)
