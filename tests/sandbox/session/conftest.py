"""Sessions leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psutil
import pytest
from pooling import family, living, run_directories


@pytest.fixture(autouse=True)
def started() -> Iterator[Callable[[], list[psutil.Process]]]:
    """Lists the processes that were started since the test began. At its end none may be left, nor a file."""
    before, files = set(family(os.getpid())), run_directories()

    def find() -> list[psutil.Process]:
        return [process for process in family(os.getpid()) if process not in before]

    yield find
    assert not living(find())
    assert run_directories() <= files
