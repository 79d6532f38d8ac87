"""The places of engines: one engine after the other in each, within limits, and which of them a request goes to.

    serving ──death──▶ close it, back off ──▶ start the next ──▶ weights are wanted ──load──▶ serving

Engines have deaths (killed, out of memory, an engine that says so) and faults (a request that they refuse, a load that
fails). Only a death is answered by another engine. A first start that fails is final.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from overlap.core import Generator, Request
from overlap.core.errors import ClusterLost, EngineError, OverlapError

Found = TypeVar("Found")

SKEW, SLACK = 1.2, 2.0
"""An episode stays on an engine that has up to ``SKEW`` times the requests of the idlest, and ``SLACK`` more: computing
its past anew elsewhere costs more than a short wait, and less than a queue."""
REMEMBERED = 10_000
"""Largest number of episodes whose engine is known: no call reports the end of an episode."""
_LONGEST_S = 60.0  # back-off
_NOTICE_S = 2.0  # the calls of an engine may fail a moment before its death is known


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Limits on engine restarts within a time window: ``restarts`` in any ``window_s`` seconds.

    A request is sent to ``sends`` engines at most, the first included. Before the n-th restart of a window
    ``back_off_s`` passes, doubled n - 1 times, but never more than a minute.
    """

    restarts: int = 3
    window_s: float = 3600.0
    sends: int = 3
    back_off_s: float = 1.0


RESTARTS = RestartPolicy()


class EngineChanges:
    """Wakes the calls that wait for a change of the engines, until an end: a final death, or that they were closed."""

    def __init__(self) -> None:
        self._changed, self._ended = asyncio.Event(), asyncio.Event()
        self._cause: Exception | None = None
        self._died = False

    def notify(self) -> None:
        """Have all waiting calls check their condition again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self, cause: Exception, *, died: bool) -> None:
        """Raise ``cause`` in all waiting calls; the first cause stays."""
        if self._cause is None:
            self._cause, self._died = cause, died
            self._ended.set()
            self.notify()

    def check(self) -> None:
        """Raise the cause of the end, if it has come."""
        if self._cause is not None:
            raise copy.copy(self._cause) from self._cause.__cause__

    async def wait_end(self) -> None:
        """Raise the cause of the end when it is a death; return when the engines are closed."""
        await self._ended.wait()
        if self._died:
            self.check()

    async def until(self, found: Callable[[], Found | None]) -> Found:
        """The first result of ``found`` that is true. Raises the cause of the end."""
        while True:
            self.check()
            if result := found():
                return result
            await self._changed.wait()


class EngineSlot:
    """One place among the ``Engines`` and the engine that it has now, with ``requests`` in it.

    ``version`` is that of the weights that the engine has; None: it has none that requests may see. ``needs_weights``:
    it was started after a death, and not loaded yet. ``died_s`` is the time of the first death that no response
    has followed yet. In a slot that is not ``awake`` an engine that dies leaves its devices to the learner: the next
    one is started when it is to wake.
    """

    def __init__(
        self,
        index: int,
        make: Callable[[], Generator],
        policy: RestartPolicy | None,
        changes: EngineChanges,
        *,
        serving: bool,
        notify: Callable[[str], None],
        watch: Callable[[int], None],
    ) -> None:
        self.index, self._make, self._policy, self._changes = index, make, policy, changes
        self._serving, self._notify, self._watch = serving, notify, watch
        self.engine = make()
        self.up, self.awake, self.needs_weights = False, True, False
        self.version: int | None = 0 if serving else None
        self.backend = ""
        self.requests = self.restarts = 0
        self.died_s: float | None = None
        self._deaths: deque[float] = deque()

    @property
    def lost(self) -> bool:
        """True when its engine has died and the next one is not up."""
        return self.died_s is not None and not self.up

    async def live(self) -> None:
        """Serve until the engine is closed; raises the cause of a death that is final."""
        await self.engine.start()
        while (cause := await self._death()) is not None:
            await self._bury(cause)
            await self._changes.until(lambda: self.awake)
            self.engine = self._make()

    async def is_dead(self, engine: Generator) -> bool:
        """Return whether ``engine``, which has failed, has died; it gets no request then."""
        death = asyncio.ensure_future(engine.wait_dead())
        try:
            await asyncio.wait([death], timeout=_NOTICE_S)
        finally:
            death.cancel()
            await asyncio.gather(death, return_exceptions=True)
        dead = not death.cancelled() and death.exception() is not None
        if dead and self.engine is engine:
            self.version = None
        return dead

    async def _death(self) -> OverlapError | None:
        """Serve, and return what the engine died of; None when it is closed. Any but the first is started before."""
        try:
            if self._deaths:
                await self._start_next()
            self.up, self.version = True, 0 if self._serving else None
            self._changes.notify()
            await self.engine.wait_dead()
        except OverlapError as error:
            return error
        finally:
            self.up, self.version = False, None
        return None

    async def _start_next(self) -> None:
        try:
            await self.engine.start()
        finally:
            for pid in self.engine.pids():
                self._watch(pid)
        self.restarts += 1

    async def _bury(self, cause: OverlapError) -> None:
        """Count a death, make room for the next engine, and back off. Raises the cause of a death that is final."""
        policy, now = self._policy, asyncio.get_running_loop().time()
        self.died_s = now if self.died_s is None else self.died_s
        if policy is None or isinstance(cause, ClusterLost):
            raise cause
        if self.backend == "nccl":
            raise EngineError(f"{cause}; the learner's nccl group ended with it, resume from the last checkpoint")
        self._deaths.append(now)
        while self._deaths[0] <= now - policy.window_s:
            self._deaths.popleft()
        count, window = len(self._deaths), f"within {policy.window_s:g} s"
        if count > policy.restarts:
            raise EngineError(f"{count} deaths of the engine {window}, the last one: {cause}") from cause
        self._notify(f"{cause}; another engine is started, {count} of {policy.restarts} {window}")
        self.needs_weights = not self._serving
        self._changes.notify()
        await self.engine.close()
        await asyncio.sleep(min(policy.back_off_s * 2 ** (count - 1), _LONGEST_S))


def idlest(ready: Sequence[EngineSlot]) -> EngineSlot | None:
    """The engine with the fewest requests, if any is ready."""
    return min(ready, key=lambda slot: (slot.requests, slot.index), default=None)


class EngineRouting:
    """Keeps a group together, and an episode where its past is.

    ``homes`` has the engine of each group of which requests are in an engine, ``members`` the number of these.
    ``moved`` counts episodes that left the engine with their past for one that had less to do.
    """

    def __init__(self) -> None:
        self.members = Counter[int]()
        self.homes: dict[int, EngineSlot] = {}
        self._episodes: OrderedDict[tuple[int, int], EngineSlot] = OrderedDict()
        self.moved = 0

    def choose(self, request: Request, ready: Sequence[EngineSlot]) -> EngineSlot | None:
        """The engine for a request, if any is ready."""
        if (free := idlest(ready)) is None:
            return None
        if request.turn:
            return self._of_episode(request, ready, free)
        if (home := self.homes.get(request.group)) not in ready:
            home = self.homes[request.group] = free
        return home

    @contextmanager
    def counted(self, slot: EngineSlot, request: Request) -> Iterator[None]:
        """Count a request among those of an engine, and of its group, for as long as the context lasts."""
        slot.requests += 1
        self.members[request.group] += 1
        try:
            yield
        finally:
            slot.requests -= 1
            self.members[request.group] -= 1
            if not self.members[request.group]:
                del self.members[request.group]
                self.homes.pop(request.group, None)

    def forget_episodes(self) -> None:
        """New weights leave no cache of any episode's past."""
        self._episodes.clear()

    def _of_episode(self, request: Request, ready: Sequence[EngineSlot], free: EngineSlot) -> EngineSlot:
        """Return the engine that has the episode's past cached, or its group's prompt, unless it is much busier."""
        known = self._episodes.pop(request.place, None)
        home = known or self.homes.get(request.group, free)
        if home not in ready or home.requests > SKEW * free.requests + SLACK:
            self.moved += known is not None
            home = free
        self.homes.setdefault(request.group, home)
        self._episodes[request.place] = home
        if len(self._episodes) > REMEMBERED:
            self._episodes.popitem(last=False)
        return home
