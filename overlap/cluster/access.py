"""Access to a cluster: settings of Ray's processes for tokens and health, and a check that a head is at an address."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

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
