"""A process of ours on a node, called as one on this machine: the driver's side. No Ray in here.

    Peer ──bytes of calls──▶ out ──send──▶ the node: Hosted ──▶ the process
    Peer ◀─bytes of replies─ reader ◀──collect── the node: Hosted ◀── the process

A node that says nothing for ``GONE_S`` ends the life, as the death of the process does: what it says later is heard by
nobody, and the process there ends with the agent that nobody calls any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from overlap.aio import race
from overlap.clock import now
from overlap.cluster.hosted import PIECE, Delivery
from overlap.cluster.nodes import GRACE_S, SILENT_S, NodeLost, NodeSilent
from overlap.process import ChildProcesses, Peer

T = TypeVar("T")
START_S = 90.0
"""For an agent on a node to begin, and to start the process."""
GONE_S = 10.0
"""A node that has answered nothing for so long is lost, however often it was asked."""
AGAIN_S = 0.5
PACE_S = 0.05
"""Between two calls of a kind: a call costs the driver half a millisecond, and what comes meanwhile goes together."""


class ProcessAgent(Protocol):
    """An agent on a node that has one process of ours; see ``hosted.Hosted`` for the calls.

    They may wait for ever where the node is silent: the caller bounds them. Raise NodeLost once the agent is gone for
    good, NodeSilent where it cannot be reached for the moment.
    """

    name: str

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str: ...

    async def send(self, at: int, data: bytes) -> None: ...

    async def collect(self, replies: int, log: int) -> Delivery: ...

    async def room(self, update: int, size: int) -> str: ...

    async def fill(self, update: int, at: int, piece: Any) -> None: ...

    async def free(self, update: int) -> None: ...

    async def files(self, do: str, *args: Any) -> Any:
        """What a method of its ``far_folder.FarFolder`` says."""

    async def close(self) -> bool:
        """End the process, and the agent; whether that is sure."""


async def start_far(
    host: ProcessAgent, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str]
) -> Peer:
    """As ``Peer.start``, on the node of ``host``, which is closed with the life. Raises the cause when that is over."""
    try:
        with life.guard():
            fault = await _started(host, title, module, environment)
        if fault:
            life.fail(f"{title} cannot be started on node {host.name}: {fault}")
        life.check()
    except BaseException:
        await host.close()
        raise
    wire = Wire(host, life)
    return Peer(life, title, wire.reader, wire)


async def _started(host: ProcessAgent, title: str, module: str, environment: Mapping[str, str]) -> str:
    """Why it is not, "" where it is."""
    try:
        async with asyncio.timeout(START_S):
            return await host.start(title, module, environment)
    except TimeoutError:
        return f"no answer within {START_S:g} s"
    except (NodeLost, NodeSilent) as error:
        return str(error)


class Wire:
    """What ``Peer`` reads from and writes to; ends the ``host`` with the ``life``."""

    def __init__(self, host: ProcessAgent, life: ChildProcesses) -> None:
        self._host, self._life = host, life
        self.reader = asyncio.StreamReader()
        self._out, self._some = bytearray(), asyncio.Event()
        self._sent = self._heard = self._logged = 0
        self._carrying = asyncio.create_task(self._carry(), name=f"carry to {host.name}")

    def write(self, data: bytes) -> None:
        self._out += data
        self._some.set()

    async def drain(self) -> None:
        """What was written waits here until it is sent, however much it is."""

    def close(self) -> None:
        """Nothing: the node is let go when the life is over."""

    async def wait_closed(self) -> None:
        """Until the node has been let go."""
        await asyncio.wait([self._carrying])

    async def _carry(self) -> None:
        try:
            for end in await race(self._send(), self._collect(), self._end()):
                error = None if end.cancelled() else end.exception()
                if isinstance(error, NodeLost | NodeSilent):
                    self._life.fail(f"the {self._life.name} on node {self._host.name} is lost: {error}")
                elif isinstance(error, Exception):
                    self._life.fail(error)
        finally:
            await self._host.close()
            self.reader.feed_eof()

    async def _end(self) -> None:
        with contextlib.suppress(Exception):  # whatever ended it: it is over
            await self._life.wait_dead()

    async def _send(self) -> None:
        while True:
            await self._some.wait()
            piece = bytes(self._out[:PIECE])
            await patiently(lambda at=self._sent, data=piece: self._host.send(at, data))  # type: ignore[misc]
            self._sent += len(piece)
            del self._out[: len(piece)]
            if not self._out:
                self._some.clear()
                await asyncio.sleep(PACE_S)

    async def _collect(self) -> None:
        while True:
            began = now()
            came = await patiently(lambda: self._host.collect(self._heard, self._logged))
            self._heard += len(came.replies)
            self._logged += len(came.log)
            self._print(came.log)
            if came.replies:
                self.reader.feed_data(came.replies)
            if came.death is not None:
                who, code = came.death
                self._life.died(f"{who} on node {self._host.name}", code)
                await asyncio.Event().wait()  # its last words are being read: the life ends by itself
            await asyncio.sleep(PACE_S - (now() - began) if len(came.replies) < PIECE else 0)

    def _print(self, text: bytes) -> None:
        if text and self._life.log is not None:
            with contextlib.suppress(OSError), self._life.log.open("ab") as log:  # on a full disk it is lost, as here
                log.write(text)


async def patiently(call: Callable[[], Awaitable[T]], seconds: float = GONE_S, each: float = SILENT_S) -> T:
    """What the call says, which is made again where no answer comes for ``each``. Raises NodeLost, and NodeSilent in
    the end.
    """
    until, tries = now() + seconds, 0
    while now() < until or tries < 2:  # whoever stood still himself asks once more
        tries += 1
        try:
            async with asyncio.timeout(max(GRACE_S, min(each, until - now()))):
                return await call()
        except TimeoutError:
            continue
        except NodeSilent:
            await asyncio.sleep(AGAIN_S)
    raise NodeSilent(f"no answer within {seconds:g} s")
