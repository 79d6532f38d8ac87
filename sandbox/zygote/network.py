"""The network of a jail that has one: a loopback interface of its own namespace, with one listening socket.

The socket is handed to the jail's owner, who serves it from outside: a process that connects from inside reaches the
owner, and there is nothing else to reach. No packet leaves the namespace, so nothing has to forward any.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Final

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_REQUEST: Final = struct.Struct("16sh14x")  # ifreq: name, flags
_BACKLOG: Final = 64
_BUFFERS: Final = ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem")
_BUFFER_SIZES: Final = "4096 65536 65536"  # bytes: least, at first, at most; data there is no process's memory


def listen_on_loopback() -> socket.socket:
    """Bring the loopback interface of this network namespace up, and listen there. Raises OSError."""
    for path in _BUFFERS:
        with suppress(OSError), open(path, "w", encoding="ascii") as file:  # a container may show it read-only
            file.write(_BUFFER_SIZES)
    with ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        _, flags = _REQUEST.unpack(fcntl.ioctl(listener, _GET_FLAGS, _REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(listener, _SET_FLAGS, _REQUEST.pack(b"lo", flags | _UP))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        undo.pop_all()
    return listener
