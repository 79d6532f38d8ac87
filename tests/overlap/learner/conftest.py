"""A policy to read and train in the test's process."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Gives a correction another bound than the published one."""

    def give(name: str, bound: float) -> None:
        from overlap.learner.correction import CORRECTIONS, CorrectionEntry

        entry = CorrectionEntry(CORRECTIONS[name].function, bound)
        monkeypatch.setattr("overlap.learner.losses.correction", lambda asked: entry)

    return give


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from overlap.policy.tiny import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("policy"))
