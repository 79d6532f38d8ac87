"""Which address a node gets, and whether that can be. No Ray in here."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from overlap.errors import ConfigError

PORT = 6379
REACH_S = 5.0
_FIELD = "--address"
NO_HEAD = "what listens there is no head of a cluster: name the address that `overlap cluster up` has printed"
_SETTINGS = b"\x04"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
"""What a client of HTTP/2 says first, which Ray's head speaks; it is answered by a frame of settings."""


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces that are up, without loopback and those that lead nowhere."""
    up = psutil.net_if_stats()
    found = [
        entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up and up[name].isup
    ]
    return [text for text in found if not ((ip := ipaddress.ip_address(text)).is_loopback or ip.is_link_local)]


def node_address(asked: str, *, loopback: bool, towards: tuple[str, int] | None = None) -> str:
    """The address of this machine that a node shall have: the one asked for, or else the one that leads towards the
    head, or the only one. Raises ConfigError.
    """
    if not asked:
        return _route(towards) if towards else _only(loopback)
    ours = ", ".join(own_addresses()) or "none but loopback"
    try:
        ip = ipaddress.ip_address(asked)
    except ValueError:
        raise ConfigError(_FIELD, asked, f"is not an IP address; this machine has {ours}") from None
    if ip.version != 4:
        raise ConfigError(_FIELD, asked, f"use an IPv4 address; this machine has {ours}")
    if ip.is_unspecified:
        raise ConfigError(_FIELD, asked, f"others cannot connect to it: name one address; this machine has {ours}")
    if ip.is_loopback and not loopback:
        raise ConfigError(_FIELD, asked, "no other machine can connect to it: add --loopback if none shall")
    if not _is_ours(asked):
        raise ConfigError(_FIELD, asked, f"is not an address of this machine, which has {ours}")
    return asked


def host_and_port(field: str, text: str, default: int = 0) -> tuple[str, int]:
    """Of "host:port", or of "host" where there is a default. Raises ConfigError."""
    host, colon, digits = text.rpartition(":") if ":" in text else (text, "", "")
    port = int(digits) if colon and digits.isascii() and digits.isdigit() else 0 if colon else default
    if not host or any(letter.isspace() for letter in host) or not 0 < port < 65536:
        raise ConfigError(field, text, f"use HOST:PORT, as in 10.0.0.1:{PORT}")
    return host, port


def check_port_free(port: int) -> None:
    """Raises ConfigError where something listens at this port, or nobody may."""
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            way_out = f"port {port} cannot be used here ({error.strerror}): name another, as in 10.0.0.1:{PORT + 1}"
            raise ConfigError(_FIELD, port, way_out) from error


def check_reached(field: str, host: str, port: int) -> None:
    """Raises ConfigError where nothing answers there within ``REACH_S``."""
    with _blamed(field, host, port):
        socket.create_connection((host, port), REACH_S).close()


def check_address(field: str, address: str) -> None:
    """Raises ConfigError where nothing answers at "host:port" within ``REACH_S``, or what answers is no head. Under TLS
    it is only seen that somebody listens.
    """
    host, port = host_and_port(field, address)
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return check_reached(field, host, port)
    with _blamed(field, host, port), socket.create_connection((host, port), REACH_S) as connection:
        connection.sendall(_HELLO)
        with connection.makefile("rb") as answer:
            said = answer.read(9)
    if said[3:4] != _SETTINGS:
        raise ConfigError(field, address, NO_HEAD)


@contextmanager
def _blamed(field: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer"
        way_out = f"nothing answers there ({why}): check that the head runs, and that no firewall blocks it"
        raise ConfigError(field, f"{host}:{port}", way_out) from error


def _route(towards: tuple[str, int]) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(towards)  # sends nothing
        except OSError as error:
            way_out = f"there is no route to it ({error.strerror or error}): name this machine's own with {_FIELD}"
            raise ConfigError("--join", towards[0], way_out) from error
        return str(probe.getsockname()[0])


def _only(loopback: bool) -> str:
    ours = own_addresses()
    if loopback:
        return "127.0.0.1"
    if len(ours) == 1:
        return ours[0]
    if not ours:
        raise ConfigError(_FIELD, "", "this machine has none that others can use: add --loopback if none shall")
    raise ConfigError(
        _FIELD, "", f"this machine has several, {', '.join(ours)}: name the one that others can connect to"
    )


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
