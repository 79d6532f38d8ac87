"""A double of an engine that can be killed."""

import asyncio
import contextlib

from overlap.core import Trajectory, VersionSpan
from overlap.core.errors import EngineError


class Mortal:
    """An engine that can be killed. It answers while ``release`` is set; a start that is broken raises its error.

    A load that is ``late`` ends so many seconds after its begin, whether the engine lives or not.
    """

    def __init__(self, number, broken=None):
        self.number, self.broken = number, broken
        self.version, self.sent, self.chunks, self.closed = None, [], [], 0
        self.open, self.release = asyncio.Event(), asyncio.Event()
        self.release.set()
        self.fault, self.late = None, 0.0
        self._end, self._died = asyncio.Event(), False
        self._cause = None

    def die(self, cause="was killed by signal 9"):
        self._cause, self._died = EngineError(f"engine {self.number} {cause}"), True
        self._end.set()

    async def _alive(self, *events):
        """Until these are set, or it is dead."""
        end = asyncio.create_task(self._end.wait())
        try:
            for event in events:
                waits = asyncio.create_task(event.wait())
                try:
                    await asyncio.wait([end, waits], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waits.cancel()
        finally:
            end.cancel()
        if self._end.is_set():
            raise EngineError(str(self._cause))

    async def start(self):
        await asyncio.sleep(20)
        if self.broken:
            raise self.broken

    async def generate(self, request):
        if self.fault:
            raise self.fault
        self.sent.append(request.id)
        await self._alive(self.open, self.release)
        return Trajectory(request, (1,), (-1.0,), "", "stop", (VersionSpan(self.version, 0, 1),), 0.0, 0.0)

    async def load(self, update):
        if self.fault:
            raise self.fault
        if self.late:
            await asyncio.sleep(self.late)
        else:
            await self._alive(self.release)
        if update.chunks:
            async with contextlib.aclosing(update.chunks()) as chunks:
                async for chunk in chunks:
                    self.chunks.append(chunk["number"])
        self.version = update.version
        self.open.set()

    async def logprobs(self, token_ids):
        if self.fault:
            raise self.fault
        await self._alive(self.open)
        return [float(self.number)]

    async def sleep(self):
        self.sent.append("sleep")

    async def wake(self, part):
        self.sent.append(f"wake {part}")

    async def wait_dead(self):
        await self._end.wait()
        if self._died:
            raise self._cause

    def pids(self):
        return (1000 + self.number,)

    async def close(self):
        self.closed += 1
        self._cause = self._cause or EngineError("the engine was closed")
        self._end.set()


async def turns(n=20):
    for _ in range(n):
        await asyncio.sleep(0)
