"""Doubles of engines that can be killed, and one of them after the other behind ``Engines``."""

import asyncio
import contextlib

from overlap.clock import run_virtual
from overlap.core import Prompt, Request, Trajectory, VersionSpan, WeightUpdate
from overlap.errors import EngineError
from overlap.generate import Engines, RestartPolicy


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


class Nest:
    """One engine at a time, and all that there were."""

    def __init__(self, broken=(), sleeps=False, serving=False, **policy):
        self._opens = False
        self.engines, self.told, self.watched, self.outages, self._broken = [], [], [], [], dict(broken)
        self.steady = Engines(
            [self._make],
            sleeps=sleeps,
            serving=serving,
            policy=RestartPolicy(**policy),
            notify=self.told.append,
            watch=self.watched.append,
            on_recovered=self.outages.append,
        )

    def _make(self):
        self.engines.append(Mortal(len(self.engines), self._broken.get(len(self.engines))))
        if self._opens:
            self.opens()
        return self.engines[-1]

    def opens(self):
        """The engine has weights of its own, and so has each that follows."""
        self._opens, self.last.version = True, 0
        self.last.open.set()

    @property
    def last(self):
        return self.engines[-1]

    def run(self, coroutine):
        """Run on a clock that jumps, and close."""
        return run_virtual(closing(self.steady, coroutine))

    def send(self, count=1):
        return [asyncio.create_task(self.steady.generate(request(i))) for i in range(count)]


async def closing(door, coroutine):
    try:
        return await coroutine
    finally:
        await door.close()


def request(sample=0):
    return Request(3, sample, Prompt("p", (1, 2)))


def update(version, backend="shm"):
    return WeightUpdate(version, backend, {})


async def turns(n=20):
    for _ in range(n):
        await asyncio.sleep(0)


async def begun(nest, count=1):
    """Requests in flight in a first engine that serves version 0."""
    await nest.steady.load(update(0))
    nest.last.release.clear()
    tasks = nest.send(count)
    await turns()
    assert len(nest.last.sent) == count
    return tasks


async def reload(nest, version):
    """What the loop does for it."""
    await nest.steady.wants_weights()
    await nest.steady.load(update(version))
