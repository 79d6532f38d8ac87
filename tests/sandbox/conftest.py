"""The command `sandbox`, run in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from package_files import Command, Packages

from sandbox.cli import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """A call `command(code, *words)` runs `sandbox`, expects the exit code, and returns its output: `out` and `err`."""

    def run(code: int, *words: object) -> Any:
        found = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert found == code, shown
        return shown

    return run


@pytest.fixture
def packages(tmp_path: Path, command: Command) -> Packages:
    return Packages(tmp_path, command)
