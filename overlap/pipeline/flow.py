"""Samples in flight: one task each, from its request to its one result.

    request ──▶ generate ──▶ verify ──▶ result, handed over the moment it is there

consumes: requests                        produces: one Scored per request
waits for: the engine, then a verifier    woken by: the end of one sample

A trajectory goes to a verifier while the others still generate. A sample that makes no progress for too long is started
again once, and then fails with its name. The time in which the engine sleeps, and keeps what it has, counts for none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from overlap.core import Generator, Request, Scored, Trajectory, Verifier
from overlap.core.clock import PausableClock, now
from overlap.core.errors import naming_stage

Stage = Literal["generate", "verify"]
TRIES = 2
"""Starts of a sample that hangs, in all."""
LOOKS = 4
"""Checks for a stall within the time that counts as one."""
CANCEL_S = 10.0
"""Time for engine or verifier to end a cancelled sample."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A sample that has no result yet: where it is, and for how many seconds in which the engine did not sleep."""

    id: str
    stage: Stage
    age_s: float


@dataclass(slots=True, eq=False)
class _InFlight:
    request: Request
    since_s: float
    decoding_s: float | None = None
    trajectory: Trajectory | None = None
    task: asyncio.Task[None] | None = None
    tries: int = 1

    @property
    def stage(self) -> Stage:
        return "generate" if self.trajectory is None else "verify"


class Flow:
    """Belongs to one event loop, and its tasks to the group ``tasks``: the first failure ends them all."""

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        tasks: asyncio.TaskGroup,
        deliver: Callable[[Scored], None],
        sequences: int,
        clock: PausableClock | None = None,
    ) -> None:
        """``deliver`` gets each result; ``sequences`` are decoded at once, the others wait for room in the engine.
        ``clock`` pauses while the engine sleeps.
        """
        self._generator, self._verifier, self._tasks, self._deliver = generator, verifier, tasks, deliver
        self._now = (clock or PausableClock()).now
        self._ways: set[_InFlight] = set()
        self._moved_s = self._now()
        self._room = sequences
        self._queued: deque[_InFlight] = deque()
        self.decoded_s: dict[str, float] = {}
        """Seconds of generation by sample, from when the engine had room for it; a reader takes it out."""

    @property
    def pending(self) -> list[Pending]:
        """Samples without a result, the one without progress for longest first."""
        at = self._now()
        ways = sorted(self._ways, key=lambda way: way.since_s)
        return [Pending(way.request.id, way.stage, at - way.since_s) for way in ways]

    def depth(self, stage: Stage) -> int:
        """Number of samples in that stage."""
        return sum(way.stage == stage for way in self._ways)

    def send(self, request: Request) -> None:
        """Start a sample."""
        way = _InFlight(request, self._now())
        self._ways.add(way)
        self._queued.append(way)
        self._make_room(0)
        self._begin(way)

    def _make_room(self, ended: int) -> None:
        """Give room in the order of requests, in which the engine decodes: the first sample that waits gets it."""
        self._room += ended
        while self._room and self._queued:
            self._queued.popleft().decoding_s = self._now()
            self._room -= 1

    def _begin(self, way: _InFlight) -> None:
        way.task = self._tasks.create_task(self._go(way), name=way.request.id)

    async def _go(self, way: _InFlight) -> None:
        if way.trajectory is None:
            with naming_stage("generate", way.request.id):
                trajectory = await self._generator.generate(way.request)
            if way.task is not asyncio.current_task():
                return  # it was begun again
            way.trajectory, way.since_s = trajectory, self._now()
            self._generated(way)
        with naming_stage("verify", way.request.id):
            scored = await self._verifier.score(way.trajectory)
        if way.task is asyncio.current_task():
            self._end(way, scored)

    def _generated(self, way: _InFlight) -> None:
        if way.decoding_s is None:  # it had room before samples that asked earlier
            self._queued.remove(way)
            way.decoding_s = way.since_s
            return
        self.decoded_s[way.request.id] = way.since_s - way.decoding_s
        self._make_room(1)

    def _end(self, way: _InFlight, scored: Scored) -> None:
        self._ways.discard(way)
        self._moved_s = self._now()
        self._deliver(scored)

    def touch(self) -> None:
        """Note progress of something that samples may have waited for."""
        self._moved_s = self._now()

    async def watch(self, stall_s: float, tell: Callable[[list[Pending], bool], None]) -> None:
        """Watch for samples without progress, without end. When no sample has ended for ``stall_s`` seconds, the
        samples without progress for that long are begun again, once, and given up the next time: they fail, by name.
        ``tell`` gets them, and whether they are given up.
        """
        while True:
            await asyncio.sleep(stall_s / LOOKS)
            at = self._now()
            if at - self._moved_s < stall_s:
                continue
            stuck = [way for way in self._ways if at - way.since_s >= stall_s]
            hopeless = [way for way in stuck if way.tries >= TRIES]
            for given_up, ways in ((False, [way for way in stuck if way.tries < TRIES]), (True, hopeless)):
                if ways:
                    tell([Pending(w.request.id, w.stage, at - w.since_s) for w in ways], given_up)
                    await self._end_tasks(ways)
                for way in self._ways.intersection(ways):  # the others ended in the meantime
                    self._give_up(way, stall_s) if given_up else self._again(way)
            self.touch()

    def _again(self, way: _InFlight) -> None:
        way.tries, way.since_s = way.tries + 1, self._now()
        self._begin(way)

    def _give_up(self, way: _InFlight, stall_s: float) -> None:
        at, failure = now(), f"no end of {way.stage} within {stall_s:g} s, {way.tries} times"
        began_s = at - (self._now() - way.since_s)
        if way.trajectory is None:
            self._generated(way)
        trajectory = way.trajectory or Trajectory(way.request, (), (), "", "abort", (), began_s, at)
        self._end(way, Scored(trajectory, None, None, failure, at, at, at))

    async def _end_tasks(self, ways: list[_InFlight]) -> None:
        tasks = [way.task for way in ways if way.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_S)
