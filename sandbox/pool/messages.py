"""Messages between sandbox processes: two lengths, a JSON head, and a JSON body that intermediaries need not read.

Never pickle. A body may be megabytes of tests: the caller writes a problem's once, and the supervisor forwards bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, Final

from sandbox.errors import ProtocolError

MESSAGE_MAX: Final = 512 << 20
BUFFER: Final = 1 << 20
_LENGTHS: Final = struct.Struct("!II")

Head = dict[str, Any]
Message = tuple[Head, bytes]


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
