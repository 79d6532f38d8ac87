"""Tiny policies, and a real engine of one."""

import pytest
from places import SUPPORT


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory):
    """A tiny random policy, which no test changes."""
    from tiny_policy import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """The same for learners: large enough for ZeRO-3 to shard."""
    from tiny_policy import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny", vocab=2048)


@pytest.fixture(scope="module")
def hosts_found():
    """The processes of an engine find the hosts of ``tests/support``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        yield
