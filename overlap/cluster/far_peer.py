"""A process of ours on a node, called as one on this machine: the driver's side. No Ray in here.

    Peer ──bytes of calls──▶ Wire ──exchange──▶ the node: Hosted ──▶ the process
    Peer ◀─bytes of replies─ reader ◀──────────┘

A node that says nothing for ``GONE_S`` ends the life, as the death of the process does: it is asked nothing any more,
and the process there ends with the agent that nobody calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from overlap.aio import race
from overlap.clock import now
from overlap.cluster.hosted import PIECE, Delivery
from overlap.cluster.nodes import BEAT_S, NodeLost, answer_within
from overlap.cluster.pieces import Brought
from overlap.process import ChildProcesses, Peer

START_S = 90.0
"""For an agent on a node to begin, and to start the process."""
GONE_S = 10.0
"""A node that has answered nothing for so long is lost."""
PACE_S = 0.05
"""Between two calls of a kind: a call costs the driver half a millisecond, and what comes meanwhile goes together."""


class ProcessAgent(Protocol):
    """An agent on a node that has one process of ours; see ``hosted.Hosted`` for the calls.

    They may wait for ever where the node is silent: the caller bounds them. Raise NodeLost.
    """

    name: str

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str: ...

    async def exchange(self, data: bytes, log: int, wait_s: float) -> Delivery: ...

    def nudge(self) -> None: ...

    async def bring(self, update: int, path: str, version: int, size: int) -> Brought:
        """Put weights that lie in this machine's memory into that of the node, where they stay."""

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
        return await answer_within(host.start(title, module, environment), START_S)
    except NodeLost as error:
        return str(error)


class Wire:
    """What ``Peer`` reads from and writes to; ends the ``host`` with the ``life``."""

    def __init__(self, host: ProcessAgent, life: ChildProcesses) -> None:
        self._host, self._life = host, life
        self.reader = asyncio.StreamReader()
        self._out = bytearray()
        self._logged = 0
        self._nudge: asyncio.TimerHandle | None = None
        self._waits = False
        self._carrying = asyncio.create_task(self._carry(), name=f"carry to {host.name}")

    def write(self, data: bytes) -> None:
        self._out += data
        if self._waits and self._nudge is None:
            self._nudge = asyncio.get_running_loop().call_later(PACE_S, self._host.nudge)

    async def drain(self) -> None:
        """What was written waits here until it is sent, however much it is."""

    def close(self) -> None:
        """Nothing: the node is let go when the life is over."""

    async def wait_closed(self) -> None:
        """Until the node has been let go."""
        await asyncio.wait([self._carrying])

    async def _carry(self) -> None:
        try:
            for end in await race(self._exchange(), self._end()):
                error = None if end.cancelled() else end.exception()
                if isinstance(error, NodeLost):
                    self._life.fail(f"the {self._life.name} on node {self._host.name} is lost: {error}")
                elif isinstance(error, Exception):
                    self._life.fail(error)
        finally:
            await self._host.close()
            self.reader.feed_eof()

    async def _end(self) -> None:
        with contextlib.suppress(Exception):  # whatever ended it: it is over
            await self._life.wait_dead()

    async def _exchange(self) -> None:
        """One call at a time: an agent that does not answer it is asked nothing any more."""
        while True:
            began, piece = now(), bytes(self._out[:PIECE])
            del self._out[: len(piece)]
            self._waits = not self._out
            came = await answer_within(self._host.exchange(piece, self._logged, BEAT_S if self._waits else 0.0), GONE_S)
            self._waits = False
            if self._nudge is not None:
                self._nudge.cancel()
                self._nudge = None
            self._logged += len(came.log)
            self._print(came.log)
            if came.replies:
                self.reader.feed_data(came.replies)
            if came.death is not None:
                who, code = came.death
                self._life.died(f"{who} on node {self._host.name}", code)
                await asyncio.Event().wait()  # its last words are being read: the life ends by itself
            await asyncio.sleep(PACE_S - (now() - began) if len(came.replies) < PIECE and not self._out else 0)

    def _print(self, text: bytes) -> None:
        if text and self._life.log is not None:
            with contextlib.suppress(OSError), self._life.log.open("ab") as log:  # on a full disk it is lost, as here
                log.write(text)
