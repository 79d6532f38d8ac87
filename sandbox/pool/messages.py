"""Messages and flags between sandbox processes. A message is two lengths, a JSON head, and a JSON
body that intermediaries need not read.

Never pickle. A body may be megabytes of tests: the caller writes a problem's once, and the supervisor forwards bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from typing import Any, Final

from sandbox.errors import ProtocolError
from sandbox.kernel import inherited
from sandbox.kernel.linux import new_memfd

MESSAGE_MAX: Final = 512 << 20
BUFFER: Final = 1 << 20
_LENGTHS: Final = struct.Struct("!II")

Head = dict[str, Any]
Message = tuple[Head, bytes]
_HANDED: Final = b"\1"


def pack_message(head: Head, body: bytes = b"") -> bytes:
    """Raises ProtocolError for a message over the cap."""
    text = json.dumps(head).encode()
    _check_size(len(text) + len(body))
    return _LENGTHS.pack(len(text), len(body)) + text + body


def parse_head(text: bytes) -> Head:
    try:
        head = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"not a message: {error}") from error
    if not isinstance(head, dict):
        raise ProtocolError("not a message: no object")
    return head


def _check_size(size: int) -> None:
    if size > MESSAGE_MAX:
        raise ProtocolError(f"a message of {size} bytes is over the cap of {MESSAGE_MAX}; give fewer or shorter cases")


async def read_pool_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end of the stream."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        _check_size(head + body)
        return parse_head(await reader.readexactly(head)), await reader.readexactly(body)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_pool_message(sock: socket.socket) -> Message | None:
    """Read as `read`, on a blocking socket."""
    lengths = _exactly(sock, _LENGTHS.size)
    if lengths is None:
        return None
    head, body = _LENGTHS.unpack(lengths)
    _check_size(head + body)
    text, rest = _exactly(sock, head), _exactly(sock, body)
    return None if text is None or rest is None else (parse_head(text), rest)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), BUFFER))
        if not part:
            return None
        parts += part
    return bytes(parts)


class SharedFlags:
    """A byte per job in memory that pool, supervisor and workers share: whether its program was handed to a jail.

    worker ── hand ──▶ flags ◀── is_handed ── the supervisor when a worker has died, the pool when the supervisor has

    It is read after a death, to know whether the program can have caused it. With a descriptor, the flags are those of
    another process. Closed with the last reference.
    """

    def __init__(self, fd: int | None = None) -> None:
        """Raises OSError where there is no memory or no descriptor for it."""
        self.fd = -1
        self.fd = inherited.above_streams(new_memfd("flags")) if fd is None else fd

    def hand(self, key: int) -> None:
        """Mark the program as handed to a jail."""
        os.pwrite(self.fd, _HANDED, key)

    def take_back(self, key: int) -> None:
        """Mark the program as in no jail; it may be tried in another."""
        os.pwrite(self.fd, b"\0", key)

    def is_handed(self, key: int) -> bool:
        return self.fd >= 0 and os.pread(self.fd, 1, key) == _HANDED

    def close(self) -> None:
        """Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close
