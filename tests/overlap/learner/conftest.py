"""A policy to read and train in the test's process."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from overlap.policy.tiny import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("policy"))
