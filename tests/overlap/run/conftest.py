"""The stage of a whole run on the fakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sessions import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    return lambda *overrides: Stage(tmp_path, monkeypatch, *overrides)
