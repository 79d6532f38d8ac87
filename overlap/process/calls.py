"""Calls to a process of ours over a socket pair: eight bytes of length, then a pickle.

    driver: Peer.call ──RemoteCall──▶ the process: receive_message, do ──RemoteReply──▶ the call's result or error

Both ends are our own processes on one machine, joined by a socket pair that no other process can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, Protocol

from overlap.process.child_processes import ChildProcesses, log_hint
from overlap.process.process_tree import leave

_LENGTH = struct.Struct("!Q")
_PROTOCOL = 5
_NUMBERS = itertools.count(1)
CANCEL = "cancel"
"""Name of the call that cancels another one, whose number is its argument; it gets no reply."""


class RemoteFault(Exception):
    """The error of a call in the other process, as text."""


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A request to call ``name`` with ``args``; ``number`` comes back with the reply."""

    number: int
    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """``value`` is the result of call ``number`` ("ok"), its exception ("error"), or, with any number, why the process
    cannot be used any more ("dead"): a text, or the exception that ended it, whose cause may be the death of another.
    """

    number: int
    kind: Literal["ok", "error", "dead"]
    value: Any = None


class PackedCall(NamedTuple):
    """A call in the bytes in which it is sent, to one process or to many."""

    number: int
    data: bytes


def pack_call(name: str, *args: Any) -> PackedCall:
    """Pack a call under a new number. May be called in a thread, for large arguments."""
    number = next(_NUMBERS)
    return PackedCall(number, encode_message(RemoteCall(number, name, args)))


def encode_message(value: object) -> bytes:
    """The bytes in which a message is sent: its length, and its pickle."""
    body = pickle.dumps(value, _PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def decode_message(body: bytes | bytearray) -> Any:
    """The message, from the bytes that follow the length."""
    return pickle.loads(body)


async def read_message(reader: asyncio.StreamReader) -> Any:
    """Read the next message. Raises IncompleteReadError when the other end has closed."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return decode_message(await reader.readexactly(length))


def receive_message(stream: BinaryIO) -> Any:
    """As ``read_message``, but blocks. Raises EOFError when the other end has closed."""
    (length,) = _LENGTH.unpack(_whole(stream, _LENGTH.size))
    return decode_message(_whole(stream, length))


def _whole(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the other end has closed the connection")
    return data


class Writer(Protocol):
    """Takes the bytes of calls: an ``asyncio.StreamWriter``, or what carries them to another machine."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


async def connect(
    life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start ``python -m module FD`` and connect to it. Options and errors are those of ``ChildProcesses.spawn``."""
    with life.starting(title):
        ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as undo:
        undo.enter_context(ours)
        with theirs:
            fds = [theirs.fileno()]
            life.spawn(title, ["-P", "-m", module, str(fds[0])], environment, pass_fds=fds, **options)
        connected = await asyncio.open_connection(sock=ours)
        undo.pop_all()
    return connected


class CallServer:
    """Answers the calls of a :class:`Peer` by methods of its own; each is a task, so that many run at once and each can
    be cancelled. Errors of the given types are raised there as they are, others as ``RemoteFault``.
    """

    def __init__(self, writer: asyncio.StreamWriter, told: tuple[type[Exception], ...]) -> None:
        self._writer, self._told = writer, told
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answer until the other end hangs up."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                call: RemoteCall = await read_message(reader)
                if call.name != CANCEL:
                    task = self._running[call.number] = asyncio.create_task(self._answer(call), name=call.name)
                    task.add_done_callback(partial(self._running.pop, call.number))
                elif running := self._running.get(call.args[0]):
                    running.cancel()

    async def _answer(self, call: RemoteCall) -> None:
        try:
            reply = RemoteReply(call.number, "ok", await self.do(call))
        except Exception as error:  # what is served raises whatever it likes
            fault = error if isinstance(error, self._told) else self.failed(error)
            if fault is None:
                return
            reply = RemoteReply(call.number, "error", fault)
        self.send(reply)

    async def do(self, call: RemoteCall) -> Any:
        """The result of a call."""
        return await getattr(self, call.name)(*call.args)

    def failed(self, error: Exception) -> Exception | None:
        """Return what is reported of an error of another type; None where nothing is, because a cause is on its way."""
        return RemoteFault(f"{type(error).__name__}: {error}")

    def send(self, reply: RemoteReply) -> None:
        """Send a reply, or, with number 0, what no call has asked for."""
        self._writer.write(encode_message(reply))


def serve_until_hung_up(make: Callable[[asyncio.StreamWriter], CallServer]) -> NoReturn:
    """Serve on the socket whose descriptor is the first argument until the other end hangs up, then end this process:
    threads of a library are not waited for.
    """

    async def serve() -> None:
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(sys.argv[1])))
        await make(writer).serve(reader)

    asyncio.run(serve())
    leave(0)


class Peer:
    """One of ``ChildProcesses``, which serves many calls at once, and ends with them. It gets calls through ``writer``,
    and its replies come through ``reader``.
    """

    def __init__(self, life: ChildProcesses, title: str, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._life, self._writer = life, writer
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._listening = asyncio.create_task(self._listen(reader), name=f"listen to {title}")

    @classmethod
    async def start(
        cls, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], **options: Any
    ) -> Peer:
        """Start ``python -m module FD`` and connect to it: see ``connect``."""
        return cls(life, title, *await connect(life, title, module, environment, **options))

    async def call(self, name: str, *args: Any) -> Any:
        """Call ``name(*args)`` in the other process and return its result. Raises what the call raised, and the cause
        of death when the process ends. Cancelling this cancels the call there.
        """
        return await self.ask(pack_call(name, *args))

    def send(self, name: str, *args: Any) -> None:
        """Call ``name(*args)`` in the other process, if there is one; its result is not used."""
        if not self._life.over:
            self._writer.write(pack_call(name, *args).data)

    async def ask(self, packed: PackedCall) -> Any:
        """As ``call``, with a call that is packed already and may have been sent to others too."""
        number, reply = packed.number, asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        try:
            with self._life.guard():
                with contextlib.suppress(ConnectionError):  # the process is gone: its life says why
                    self._writer.write(packed.data)
                    await self._writer.drain()
                return await reply
        finally:
            del self._pending[number]
            if (reply.cancelled() or not reply.done()) and not self._life.over:  # the caller was cancelled
                self._writer.write(encode_message(RemoteCall(0, CANCEL, (number,))))

    async def close(self) -> None:
        """Close the connection."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # its end is seen by its life
            while True:
                reply: RemoteReply = await read_message(reader)
                pending = self._pending.get(reply.number)
                if reply.kind == "dead" and isinstance(reply.value, Exception):
                    self._life.fail_soon(reply.value, said=True)
                elif reply.kind == "dead":
                    self._life.fail(f"{reply.value}{log_hint(self._life.log)}")
                elif pending is not None and not pending.done():
                    if reply.kind == "ok":
                        pending.set_result(reply.value)
                    else:
                        pending.set_exception(reply.value)
