"""Calls to a process of ours over a socket pair: eight bytes of length, then a pickle.

    driver: Peer.call ──Call──▶ the process: receive, do, answer ──Reply──▶ the result, or the error, of the call

Both ends are our own processes on one machine, joined by a socket pair that nobody else can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

from overlap.process.life import Life, see

_LENGTH = struct.Struct("!Q")
_PROTOCOL = 5
_NUMBERS = itertools.count(1)
CANCEL = "cancel"
"""Name of the call that takes back another one, whose number is its argument; it is not answered."""


class RemoteFault(Exception):
    """What a call met over there, in words."""


@dataclass(frozen=True, slots=True)
class Call:
    """``name`` is what to call with ``args``; ``number`` comes back with the reply."""

    number: int
    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """``value`` is the result ("ok"), the exception of this call ("error"), or why the process is of no use any more
    ("dead", of whatever number): words, or the exception that ends it, whose cause may be the death of another.
    """

    number: int
    kind: Literal["ok", "error", "dead"]
    value: Any = None


class Message(NamedTuple):
    """A call as it goes over the wire, to one process or to many."""

    number: int
    data: bytes


def message(name: str, *args: Any) -> Message:
    """A call with a number of its own. May be made in a thread, where its arguments are large."""
    number = next(_NUMBERS)
    return Message(number, encode(Call(number, name, args)))


def encode(message: object) -> bytes:
    """A message as it goes over the wire."""
    body = pickle.dumps(message, _PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray) -> Any:
    """What ``encode`` was given, from what follows the length."""
    return pickle.loads(body)


async def read(reader: asyncio.StreamReader) -> Any:
    """Next message; IncompleteReadError when the other end has closed."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return decode(await reader.readexactly(length))


def receive(stream: BinaryIO) -> Any:
    """As ``read``, where nothing else is to be done meanwhile: blocks. EOFError when the other end has closed."""
    (length,) = _LENGTH.unpack(_whole(stream, _LENGTH.size))
    return decode(_whole(stream, length))


def _whole(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the other end has closed the connection")
    return data


class Writer(Protocol):
    """What takes the bytes of calls: an ``asyncio.StreamWriter``, or what carries them further than this machine."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


async def connect(
    life: Life, title: str, module: str, environment: Mapping[str, str], **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start ``python -m module FD`` and connect to it. ``options``, and what it raises: see ``Life.spawn``."""
    with life.starting(title):
        ours, theirs = socket.socketpair()
    try:
        with theirs:
            fds = [theirs.fileno()]
            life.spawn(title, ["-P", "-m", module, str(fds[0])], environment, fds=fds, **options)
        return await asyncio.open_connection(sock=ours)
    except BaseException:
        ours.close()
        raise


class Peer:
    """A process in a :class:`Life` that serves calls, many at once. Made by ``start``, or ``joined`` to one that was
    started elsewhere; ends with the life.
    """

    def __init__(self, life: Life, writer: Writer) -> None:
        self._life, self._writer = life, writer
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, life: Life, title: str, module: str, environment: Mapping[str, str], **options: Any) -> Peer:
        """Start ``python -m module FD`` and connect to it: see ``connect``."""
        return cls.joined(life, title, *await connect(life, title, module, environment, **options))

    @classmethod
    def joined(cls, life: Life, title: str, reader: asyncio.StreamReader, writer: Writer) -> Peer:
        """One whose replies come by ``reader``, and who gets calls by ``writer``."""
        peer = cls(life, writer)
        peer._listening = asyncio.create_task(peer._listen(reader), name=f"listen to {title}")
        return peer

    async def call(self, name: str, *args: Any) -> Any:
        """The result of ``name(*args)`` over there; raises what it raised, and the cause when the life ends.

        Cancelling takes the call back.
        """
        return await self.ask(message(name, *args))

    async def ask(self, message: Message) -> Any:
        """``call`` with a message that is made already, and may have been sent to others too."""
        number, reply = message.number, asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        try:
            with self._life.guard():
                await self._send(message.data)
                return await reply
        except asyncio.CancelledError:
            if not self._life.over:
                self._writer.write(encode(Call(0, CANCEL, (number,))))
            raise
        finally:
            del self._pending[number]

    async def close(self) -> None:
        """Let go of the connection."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the process is gone: its life says why
            self._writer.write(data)
            await self._writer.drain()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # its end is seen by its life
            while True:
                reply: Reply = await read(reader)
                pending = self._pending.get(reply.number)
                if reply.kind == "dead" and isinstance(reply.value, Exception):
                    self._life.fail_soon(reply.value, said=True)
                elif reply.kind == "dead":
                    self._life.fail(f"{reply.value}{see(self._life.log)}")
                elif pending is not None and not pending.done():
                    if reply.kind == "ok":
                        pending.set_result(reply.value)
                    else:
                        pending.set_exception(reply.value)
