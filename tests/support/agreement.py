"""Where the shared data is, how much of it is judged, and the marks of tests that read it."""

from __future__ import annotations

import os

import pytest
from places import SHARED

from sandbox import Limits
from sandbox.core.nouns import MIB

DATA = SHARED
ALL = os.environ.get("SANDBOX_AGREEMENT") == "all"

MARKS = [
    pytest.mark.shared,
    pytest.mark.timeout(900 if ALL else 120),
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here"),
]


def limits(cpu_s: float) -> Limits:
    return Limits(cpu_s=cpu_s, wall_s=60, memory_bytes=512 * MIB)
