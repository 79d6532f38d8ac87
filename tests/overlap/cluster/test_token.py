"""The token that a driver uses where its person has set nothing, as Ray itself sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from overlap.cluster.node_state import AUTH, NodeState, token_path, write_node_state

ADDRESS = "10.0.0.1:6379"
DRIVER = """
import asyncio, os, sys
from ray._raylet import AuthenticationMode, get_authentication_mode
from overlap.cluster import RayCluster
from overlap.cluster.ray_cluster import _Connection
from overlap.errors import ConfigError

def mode():
    return get_authentication_mode() == AuthenticationMode.TOKEN, os.environ.get("RAY_AUTH_TOKEN_PATH", "")

async def main():
    cluster = RayCluster(sys.argv[1])
    print(*mode())
    try:
        await cluster.enter()
        print(*mode())
    except ConfigError as error:
        print("no token" if "has no token" in str(error) else error)
    await cluster.leave()
    print(*mode())

_Connection.open = _Connection.close = lambda self: None
asyncio.run(main())
"""


def said(address: str, **environment: str) -> list[str]:
    own = {name: value for name, value in os.environ.items() if name not in AUTH}
    command = [sys.executable, "-c", DRIVER, address]
    env = own | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node of the cluster was started here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_node_state(NodeState(ADDRESS, "10.0.0.1", True, "mark", str(tmp_path / "place")), "a" * 64)
    return token_path()


def test_a_driver_takes_the_token_of_the_node_that_was_started_here_for_as_long_as_it_is_in(started: Path) -> None:
    assert said(ADDRESS) == ["False ", f"True {started}", "False "]


def test_what_the_environment_says_of_tokens_stays(started: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert said(ADDRESS, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=other) == [f"True {other}"] * 3


def test_the_token_of_another_cluster_is_none(started: Path) -> None:
    assert said("10.0.0.9:6379") == ["False ", "no token", "False "]
