"""Addresses: which one of this machine a node gets, whether a head is at another one, and which nodes that knows.

A process of its own asks the head, for Ray may wait for ever for one that is gone. No node need be on this machine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil

from overlap.errors import ConfigError, OverlapError, one_line
from overlap.process.run_environment import child_environment

PORT = 6379
REACH_S, ASK_S = 5.0, 30.0
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Where Ray reads whether it asks for a token, and which."""
LABEL = "overlap-code"
"""Label of a node that says which code of ours is installed there."""
NO_HEAD = "what listens there is no head of a cluster: name the address that `overlap cluster up` has printed"
_SETTINGS = b"\x04"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
"""What a client of HTTP/2 says first, which Ray's head speaks; it is answered by a frame of settings."""


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces that are up, without loopback and those that lead nowhere."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [entry for name, entries in psutil.net_if_addrs().items() if name in up for entry in entries]
    ours = [entry.address for entry in found if entry.family == socket.AF_INET]
    return [address for address in ours if not address.startswith(("127.", "169.254."))]


def own_address(asked: str, *, loopback: bool) -> str:
    """The address of this machine that a node shall have: the one asked for, or the only one. Raises ConfigError."""
    ours = own_addresses()
    choices = ["127.0.0.1", *ours] if loopback else ours
    chosen = asked or (choices[0] if loopback or len(ours) == 1 else "")
    if chosen not in choices:
        way_out = f"name the one that others reach ({', '.join(ours)}), or add --loopback if none shall"
        raise ConfigError("--address", asked, way_out)
    return chosen


def host_and_port(field: str, text: str, default: int = 0) -> tuple[str, int]:
    """Of "host:port", or of "host" where there is a default. Raises ConfigError."""
    host, _, digits = text.rpartition(":") if ":" in text else (text, "", str(default))
    port = int(digits) if digits.isascii() and digits.isdigit() else 0
    if not host or any(letter.isspace() for letter in host) or not 0 < port < 65536:
        raise ConfigError(field, text, f"use HOST:PORT, as in 10.0.0.1:{PORT}")
    return host, port


def check_port_free(port: int) -> None:
    """Raises ConfigError where something listens at this port, or nobody may."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ConfigError("--address", port, f"cannot be used here ({why}): name another") from error


def check_address(field: str, address: str) -> None:
    """Raises ConfigError where nothing answers at "host:port" within ``REACH_S``, or what answers is no head. Under TLS
    it is only seen that somebody listens.
    """
    host, port = host_and_port(field, address)
    try:
        with socket.create_connection((host, port), REACH_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(_HELLO)
            with connection.makefile("rb") as answer:
                said = answer.read(9)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer"
        way_out = f"nothing answers there ({why}): check that the head runs, and that no firewall blocks it"
        raise ConfigError(field, address, way_out) from error
    if said[3:4] != _SETTINGS:
        raise ConfigError(field, address, NO_HEAD)


def call_roll(field: str, address: str, token: str) -> tuple[bool, list[list[Any]]]:
    """Whether the cluster asks for a token, and its nodes: name, whether it is alive, cores, GPUs, version of our code
    ("" where `up` has not started it), and why it died. Raises ConfigError where no head is there, or one that wants
    another token, and OverlapError where it does not answer.
    """
    check_address(field, address)
    command = [sys.executable, "-c", "from overlap.cluster import addresses; addresses._ask_head()", address]
    env = child_environment(RAY_AUTH_MODE="token" if token else "disabled", RAY_AUTH_TOKEN=token)
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
    except subprocess.TimeoutExpired as error:
        raise OverlapError(f"the cluster's head at {address} did not answer within {ASK_S:g} s") from error
    if done.returncode:
        raise OverlapError(f"the cluster's head at {address} does not answer: {one_line(done.stderr)[-200:]}")
    mode, rows = json.loads(done.stdout.splitlines()[-1])
    if not mode:
        way_out = f"requires {'another' if token else 'a'} token: --token-file with a copy of the file that "
        raise ConfigError(field, address, f"{way_out}`overlap cluster up` printed there")
    return mode == "token", rows


def admitted(address: str) -> tuple[str, Any]:
    """In which mode of Ray's a head lets this process in, which it then has in its environment, and a client of it:
    "disabled" where everybody is let in, else "token" where the environment has the right one, else "".
    """
    from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError

    for mode in ("disabled", "token") if os.environ.get(AUTH[0]) == "token" else ("disabled",):
        os.environ[AUTH[0]] = mode
        Config.initialize("")  # Ray has read the environment when it was imported
        AuthenticationTokenLoader.instance().reset_cache()
        with suppress(AuthenticationError):
            return mode, GcsClient(address=address)
    return "", None


def _ask_head() -> None:
    """Print, as JSON, in which mode of Ray's the head lets us in, and its nodes."""
    mode, client = admitted(sys.argv[1])
    rows = [_row(node) for node in client.get_all_node_info().values()] if mode else []
    print(json.dumps([mode, rows]))


def _row(node: Any) -> list[Any]:
    alive, has = node.state == node.ALIVE, node.resources_total
    name, why = f"{node.node_manager_address}-{node.node_id.hex()[:8]}", node.death_info.reason_message
    return [name, alive, int(has.get("CPU", 0)), int(has.get("GPU", 0)), node.labels.get(LABEL, ""), why]
