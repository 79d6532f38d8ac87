"""A jail with a network: its listener is all that a command reaches, and what a network adds is bounded."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from sandbox.core.nouns import Limits
from sandbox.session.commands import CommandJail

LIMITS = Limits(cpu_s=20, wall_s=60, open_files=256)
TRIES = """
import json, socket
found = {{}}
def tried(name, family, kind, address, protocol=0):
    try:
        with socket.socket(family, kind, protocol) as made:
            made.settimeout(2)
            made.connect(address)
            found[name] = "connected"
    except OSError as error:
        found[name] = error.strerror or "timed out"
inet, inet6, unix, tcp, udp = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM
tried("own", inet, tcp, ("127.0.0.1", {own}))
tried("port", inet, tcp, ("127.0.0.1", {port}))
tried("port6", inet6, tcp, ("::1", {port}))
tried("host", inet, tcp, ("{host}", {port}))
tried("far", inet, tcp, ("192.0.2.1", 80))
tried("udp", inet, udp, ("{host}", {port}))
tried("abstract", unix, tcp, "\\0{abstract}")
tried("path", unix, tcp, "{path}")
tried("netlink", socket.AF_NETLINK, socket.SOCK_RAW, (0, 0))
tried("raw", inet, socket.SOCK_RAW, ("127.0.0.1", 0), socket.IPPROTO_ICMP)
tried("sctp", inet, tcp, ("127.0.0.1", {own}), 132)
tried("mptcp", inet, tcp, ("127.0.0.1", {own}), 262)
tried("ping", inet, udp, ("127.0.0.1", 0), socket.IPPROTO_ICMP)
tried("tcp", inet, tcp, ("127.0.0.1", {own}), socket.IPPROTO_TCP)
tried("packet", socket.AF_PACKET, socket.SOCK_RAW, ("lo", 0))
tried("vsock", 40, tcp, (2, 80))
print(json.dumps(found))
"""


@pytest.fixture
def jail() -> Iterator[CommandJail]:
    made = CommandJail("A", LIMITS, network=True)
    yield made
    made.close()


def answering(listener: socket.socket) -> threading.Thread:
    """Says hello to the first two that connect."""

    def serve() -> None:
        for _ in range(2):
            with listener.accept()[0] as connection:
                connection.sendall(b"hello")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_command_reaches_the_jails_listener_and_nothing_else(jail: CommandJail, tmp_path) -> None:
    assert jail.listener is not None
    serving = answering(jail.listener)
    addresses = [a.address for found in psutil.net_if_addrs().values() for a in found if a.family == socket.AF_INET]
    host = next((address for address in addresses if not address.startswith("127.")), "192.0.2.1")
    abstract, path = "overlap-test-commands", tmp_path / "socket"
    with (
        socket.create_server(("0.0.0.0", 0)) as server,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX) as named,
    ):
        for made, address in ((hidden, f"\0{abstract}"), (named, str(path))):
            made.bind(address)
            made.listen()
        path.chmod(0o777)
        own, port = jail.listener.getsockname()[1], server.getsockname()[1]
        code = TRIES.format(own=own, port=port, host=host, abstract=abstract, path=path)
        jail.lay_out({"tries.py": code.encode()})
        done = jail.run("python3 tries.py")
    serving.join(10)
    assert done.exit_code == 0, done.stderr
    reached = [name for name, end in json.loads(done.stdout).items() if end == "connected"]
    assert reached == ["own", "tcp"]


def test_commands_of_one_jail_may_talk_to_each_other(jail: CommandJail) -> None:
    code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"among us"), daemon=True).start()
print(socket.create_connection(server.getsockname()).recv(20).decode())
"""
    jail.lay_out({"talk.py": code.encode()})
    assert jail.run("python3 talk.py").stdout == b"among us\n"


def test_two_jails_do_not_share_a_loopback(jail: CommandJail) -> None:
    other = CommandJail("A", LIMITS, network=True)
    try:
        assert other.listener is not None
        assert jail.listener is not None
        port = other.listener.getsockname()[1]
        if port == jail.listener.getsockname()[1]:
            pytest.skip("both have the same port by chance")
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert b"Connection refused" in jail.run(f'python3 -c "{code}"').stderr
    finally:
        other.close()


def test_buffers_of_its_connections_are_small(jail: CommandJail) -> None:
    assert jail.listener is not None
    assert jail.listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 128 << 10
