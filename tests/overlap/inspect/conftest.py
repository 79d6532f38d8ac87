"""One made run for all tests of what shows runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_run import made_run


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every verdict, failures of ours, cut and weak answers."""
    folder = tmp_path_factory.mktemp("view") / "run"
    return made_run(folder, steps=6, failed=0.05, truncated=(0.1, 0.1), weak=0.1, duplicates=0.1, eval_every=2)
