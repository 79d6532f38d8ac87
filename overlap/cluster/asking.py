"""Who is in a cluster, as its head says it. No Ray in here: a process that knows it asks (``roll_call``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from overlap.cluster.addresses import check_reached, host_and_port
from overlap.cluster.node_state import AUTH, read_node_state, read_token, token_of
from overlap.errors import ConfigError, OverlapError
from overlap.process import child_environment

ASK_S = 30.0
LABEL = "overlap-code"
"""Label of a node that says which code of ours is installed there."""


class NodeRow(NamedTuple):
    """A node as the head knows it; ``why`` it died."""

    address: str
    key: str
    alive: bool
    cores: int
    gpus: int
    version: str
    why: str

    @property
    def name(self) -> str:
        """As a run tells it."""
        return f"{self.address}-{self.key[:8]}"


class Roll(NamedTuple):
    """``authenticated``: whether it asks for a token."""

    address: str
    authenticated: bool
    nodes: Sequence[NodeRow]


def call_roll(address: str = "", token_file: str = "") -> Roll:
    """The nodes of a cluster, by default of the one that this machine is in. Raises ConfigError where there is none,
    OverlapError where its head does not answer.
    """
    if not address:
        state = read_node_state()
        if state is None:
            raise ConfigError("address", "", "no node was started here: name the cluster's head, HOST:PORT")
        address = state.address
    check_reached("address", *host_and_port("address", address))
    open_to_all, without = _asked(address, {})
    if open_to_all is not None:
        return Roll(address, False, open_to_all)
    token = _token(address, token_file)
    if not token:
        way_out = "it may require a token: --token-file FILE"
        raise OverlapError(f"the cluster's head at {address} does not answer ({without}); {way_out}")
    rows, why = _asked(address, {"RAY_AUTH_MODE": "token", **token})
    if rows is None:
        raise OverlapError(f"the cluster's head at {address} does not answer: {why}")
    return Roll(address, True, rows)


def lets_everybody_in(address: str) -> bool:
    """Whether the cluster at this address asks for no token."""
    return _asked(address, {})[0] is not None


def _token(address: str, file: str) -> dict[str, str]:
    """What Ray is told of the token: the file's, the environment's, or that of the node that was started here."""
    if file:
        return {"RAY_AUTH_TOKEN": read_token(file)}
    given = {name: value for name in AUTH[1:] if (value := os.environ.get(name))}
    if given:
        return given
    path = token_of(address)
    return {"RAY_AUTH_TOKEN_PATH": str(path)} if path else {}


def _asked(address: str, token: dict[str, str]) -> tuple[list[NodeRow] | None, str]:
    """The nodes, or why there is no answer."""
    command = [sys.executable, "-m", "overlap.cluster.roll_call", address]
    env = {**child_environment(), "RAY_AUTH_MODE": "disabled", **token}
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
    except subprocess.TimeoutExpired:
        return None, f"nothing within {ASK_S:g} s"
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return None, (lines[-1] if lines else f"exit code {done.returncode}")[:200]
    return [NodeRow(**row) for row in json.loads(done.stdout.splitlines()[-1])], ""
