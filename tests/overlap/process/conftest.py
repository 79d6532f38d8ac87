"""Async tests, and a process that nobody may end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from starting import known

from overlap.process.process_tree import Pid


@pytest.fixture
def bystander() -> Iterator[Pid]:
    process = subprocess.Popen(["sleep", "600"])
    yield known(process.pid)
    process.kill()
    process.wait()
