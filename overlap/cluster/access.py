"""Access to a cluster: settings of Ray's processes for tokens and health, addresses, and what `overlap cluster up` has
noted on this machine: its node and the token.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from overlap.core.errors import ConfigError

PORT, REACH_S = 6379, 5.0
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Environment variables from which Ray reads whether it requires a token, and which one."""
HEALTH = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "60",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
"""A node that is cut off for up to a minute joins again: our own checks move its work within seconds. A run reports a
lost head before Ray ends the process that calls it.
"""
NO_HEAD = "what listens there is no head of a cluster: name the address that `overlap cluster up` has printed"
_SETTINGS = b"\x04"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
"""First bytes of a client of HTTP/2, which Ray's head speaks; a frame of settings answers them."""


def host_and_port(field: str, text: str, default: int = 0) -> tuple[str, int]:
    """Split "host:port", or "host" where there is a default. Raises ConfigError."""
    host, _, digits = text.rpartition(":") if ":" in text else (text, "", str(default))
    port = int(digits) if digits.isascii() and digits.isdigit() else 0
    if not host or any(letter.isspace() for letter in host) or not 0 < port < 65536:
        raise ConfigError(field, text, f"use HOST:PORT, as in 10.0.0.1:{PORT}")
    return host, port


def check_address(field: str, address: str) -> None:
    """Raise ConfigError where nothing answers at "host:port" within ``REACH_S``, or what answers is no head. Under TLS
    it is only seen that something listens.
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


def check_port_free(field: str, port: int) -> None:
    """Raise ConfigError where the port is in use: Ray says so after 40 s, in a page."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ConfigError(field, port, f"cannot be used here ({why}): name another") from error


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces that are up, without loopback and link-local ones."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [entry for name, entries in psutil.net_if_addrs().items() if name in up for entry in entries]
    ours = [entry.address for entry in found if entry.family == socket.AF_INET]
    return [address for address in ours if not address.startswith(("127.", "169.254."))]


class NodeState(NamedTuple):
    """``address``: of the cluster's head, "host:port"; ``place``: the folder of all its files, which goes with it."""

    address: str
    head: bool
    place: str


def token_path() -> Path:
    """The file of the token of the node that was started here, beside which its state is."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "overlap", "cluster", socket.gethostname().replace("/", "-") or "localhost", "token")


def read_node_state() -> NodeState | None:
    """The node that was started here, whether or not it runs; None where there is none."""
    path = token_path().with_name("node.json")
    return NodeState(*json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def token_of(address: str) -> Path | None:
    """The file with the token of the cluster at ``address``, where a node of it was started here."""
    state, path = read_node_state(), token_path()
    return path if state is not None and state.address == address and path.is_file() else None


def find_token(file: str, address: str) -> str:
    """The token of the cluster at ``address``: the one in ``file``, else in the environment, else of the node that was
    started here; "" where there is none. Raises ConfigError, which does not name it.
    """
    if not file and (given := os.environ.get(AUTH[1], "").strip()):
        return given
    name = file or os.environ.get(AUTH[2]) or token_of(address)
    try:
        return Path(name).read_text(encoding="utf-8").strip() if name else ""
    except (OSError, ValueError) as error:
        way_out = f"cannot be read ({error}): copy it from the cluster's head"
        raise ConfigError("--token-file", str(name), way_out) from error
