"""One HTTP/1.1 connection to a server, for one request at a time. No retries, no deadline of its own for answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CONNECT_S: Final = 10.0
_HEAD_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, whole; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """See the module. After an error it must be closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer = reader, writer
        self._host = host
        self.used = self.keeps = self.closed = False
        """A request was answered; the server keeps the connection after its last answer; it was closed here."""

    @classmethod
    async def open(cls, host: str, port: int, secure: bool) -> HttpConnection:
        """Raises OSError, TimeoutError among them."""
        how = ssl.create_default_context() if secure else None
        async with asyncio.timeout(CONNECT_S):
            streams = await asyncio.open_connection(host, port, ssl=how, limit=_HEAD_BYTES)
        return cls(*streams, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpReply:
        """Send a request, and read the answer. Raises OSError, EOFError, and ValueError for what is no HTTP."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join((*lines, "\r\n")).encode("latin-1") + body)
        reading = asyncio.ensure_future(self._read_reply())  # now: a server may refuse before it has read the body
        try:
            await self._writer.drain()
        except ConnectionError:
            await asyncio.wait((reading,))
        except BaseException:
            reading.cancel()
            raise
        return await reading

    async def _read_reply(self) -> HttpReply:
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError as error:
            raise ValueError("the head of the answer is too long") from error
        first, *lines = head[:-4].split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(f"no HTTP: {first[:80]!r}")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self._read_body(headers)
        self.used = True
        self.keeps = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return HttpReply(int(rest[:3]), headers, body)

    async def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                parts.append(await self._reader.readexactly(size))
                await self._reader.readexactly(2)
            await self._reader.readuntil(b"\r\n")
            return b"".join(parts)
        if "content-length" not in headers:
            raise ValueError("the answer has no content-length")
        return await self._reader.readexactly(int(headers["content-length"]))

    def close(self) -> None:
        """Close it; a request that waits for its answer raises EOFError."""
        self.closed = True
        self._writer.transport.abort()
