"""Several engines behind one door.

    request ──▶ its group's engine, or its episode's, or that with the fewest requests ──▶ its trajectory
                    └── its engine dies: to another one that has the version ──▶┘
    update  ──▶ all engines at once ──▶ the gate opens for those that have it

Waits for the gate: an engine gets requests once it has the version that was loaded last, and none gets any before all
that live have it. Woken by a load, the end of a response, the death of an engine; each comes up again by itself
(``steady``) and asks for weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from overlap.core import Generator, Part, Request, Spoken, Trajectory, WeightUpdate
from overlap.errors import EngineError, EngineLost, first_error
from overlap.generate.chunk_broadcast import lockstep
from overlap.generate.steady import PATIENCE

Result = TypeVar("Result")
SKEW, SLACK = 1.2, 2.0
"""An episode stays on an engine that has up to ``SKEW`` times the requests of the idlest, and ``SLACK`` more: what it
would have to compute anew elsewhere is worth a short wait, and not a queue."""
REMEMBERED = 10_000
"""Episodes whose engine is known; nobody tells of their ends."""


class Replicas:
    """A :class:`~overlap.core.Generator` of ``engines``, each of them one: steady ones that are not ``alone``.

    ``serving``: they have weights from the start (no trainer), also one that comes up again. ``sleeps``: they take
    turns with the learner on their devices. A request may be in ``sends`` engines that die with it. ``resent`` counts
    requests that went to another engine, ``moved`` episodes that left one that had their past for one with less to do.
    Every method but the constructor belongs to one event loop; they raise what an
    engine raises, and the first end of one for good is the end of all.
    """

    def __init__(
        self,
        engines: Sequence[Generator],
        *,
        serving: bool = False,
        sleeps: bool = False,
        sends: int = PATIENCE.sends,
    ) -> None:
        self._engines, self._sleeps, self._sends = tuple(engines), sleeps, sends
        self._version: int | None = 0 if serving else None
        self._has: list[int | None] = [self._version] * len(self._engines)
        self._lost: set[int] = set()
        self._requests = Counter[int]()
        self._members = Counter[int]()
        self._homes: dict[int, int] = {}
        self._episodes: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._loading = asyncio.Lock()
        self._open, self._ended = asyncio.Event(), asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._serves = serving
        self._coming: dict[int, asyncio.Task[None]] = {}
        self._cause: BaseException | None = None
        self.resent = self.moved = 0

    async def start(self) -> None:
        """Bring all engines up."""
        self._watch()
        await self._each(range(len(self._engines)), lambda engine: engine.start())

    async def generate(self, request: Request) -> Trajectory:
        """Sample one response, where the other samples of its group are; elsewhere when that engine dies."""
        self._watch()
        cause: EngineLost | None = None
        for sent in range(self._sends):
            index = await self._seat(request)
            self.resent += sent > 0
            try:
                return await self._at(index, request)
            except EngineLost as error:
                self._lose(index)
                if self._serves and index not in self._coming:
                    self._coming[index] = asyncio.create_task(self._come(index), name=f"wait for engine {index}")
                cause = error
        raise EngineError(
            f"request {request.id}: {self._sends} engines died with it, the last one so: {cause}"
        ) from cause

    async def _come(self, index: int) -> None:
        """Have it serve again when it is up, with the weights that it has."""
        try:
            with contextlib.suppress(EngineError):  # for good: whoever waits hears it
                await self._engines[index].start()
                self._lost.discard(index)
                self._has[index] = self._version
                self._open.set()
        finally:
            del self._coming[index]

    async def _seat(self, request: Request) -> int:
        """The engine for a request, once there is one."""
        while not (ready := self._ready):
            await self._until_end(self._open.wait())
        idlest = min(ready, key=lambda index: (self._requests[index], index))
        if not request.turn:
            if (home := self._homes.get(request.group)) not in ready:
                home = self._homes[request.group] = idlest
            return home
        return self._episodes_seat(request, ready, idlest)

    def _episodes_seat(self, request: Request, ready: Sequence[int], idlest: int) -> int:
        """Where the episode's past is cached, or its group's prompt, unless that engine has much more to do."""
        known = self._episodes.pop(request.place, None)
        home = self._homes.get(request.group, idlest) if known is None else known
        if home not in ready or self._requests[home] > SKEW * self._requests[idlest] + SLACK:
            self.moved += known is not None
            home = idlest
        self._homes.setdefault(request.group, home)
        self._episodes[request.place] = home
        if len(self._episodes) > REMEMBERED:
            self._episodes.popitem(last=False)
        return home

    async def _at(self, index: int, request: Request) -> Trajectory:
        self._requests[index] += 1
        self._members[request.group] += 1
        try:
            return await self._engines[index].generate(request)
        finally:
            self._requests[index] -= 1
            self._members[request.group] -= 1
            if not self._members[request.group]:
                del self._members[request.group]
                self._homes.pop(request.group, None)

    async def load(self, update: WeightUpdate) -> None:
        """Have every engine load the update that lacks its version; requests wait until all have it.

        An engine that dies over it gets the version when it is up again (``wants_weights``); where none is left this
        waits for the first that is. After a failure none gets a request until a load has succeeded.
        """
        self._watch()
        async with self._loading:
            if update.version != self._version:
                self._shut()
                self._version = update.version
            while True:
                lacking = [index for index, version in enumerate(self._has) if version != update.version]
                await self._until_end(self._load(lacking, update))
                if self._ready:
                    return self._open.set()
                await self._until_end(self._any_wants())

    async def _load(self, lacking: Sequence[int], update: WeightUpdate) -> None:
        async with lockstep(update, len(lacking)) as shares:
            mine = {self._engines[index]: share for index, share in zip(lacking, shares, strict=True)}

            async def load(engine: Generator) -> None:
                with mine[engine] as own:
                    await engine.load(own)

            loaded = await self._each(lacking, load)
        for index in loaded:
            self._lost.discard(index)
            self._has[index] = update.version

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """As an engine's: any that is up."""
        self._watch()
        for _ in range(self._sends):
            while not (ready := self._ready):
                await self._until_end(self._open.wait())
            try:
                return await self._engines[min(ready, key=self._requests.__getitem__)].parse(text, token_ids, tools)
            except EngineLost:
                continue
        raise EngineError("parse: the engines died over it")

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [R x (T-1)] by each of the R engines that have the version, one after the other.

        EngineLost when there is none left.
        """
        self._watch()
        while not (ready := self._ready):
            if self._lost:
                raise EngineLost("probe: no engine is left that has the weights")
            await self._until_end(self._open.wait())
        answers = await self._each(ready, lambda engine: engine.logprobs(token_ids))
        if not answers:
            raise EngineLost("probe: no engine is left that has the weights")
        return [value for values in answers.values() for value in values]

    async def sleep(self) -> None:
        """All engines sleep, where they take turns with the learner: none has weights then."""
        if self._sleeps:
            self._shut()
            await self._each(range(len(self._engines)), lambda engine: engine.sleep())

    async def wake(self, part: Part) -> None:
        """All engines that sleep take their memory back."""
        if self._sleeps:
            await self._each(range(len(self._engines)), lambda engine: engine.wake(part))

    async def wants_weights(self) -> None:
        """Return when an engine is up again that nobody is loading; see ``SteadyGenerator.wants_weights``."""
        self._watch()
        await self._until_end(self._any_wants())

    async def _any_wants(self) -> None:
        waits = [asyncio.create_task(engine.wants_weights()) for engine in self._engines]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for index, wait in enumerate(waits):
                if wait.done():
                    await wait
                    self._lose(index)
        finally:
            await _cancelled(waits)

    async def wait_dead(self) -> None:
        """Raise with the cause when an engine has died for good; return when they are closed."""
        self._watch()
        await self._ended.wait()
        self._check()

    def pids(self) -> tuple[int, ...]:
        """Processes of all engines that are alive, also during their start."""
        return tuple(pid for engine in self._engines for pid in engine.pids())

    async def close(self) -> None:
        """End every process of every engine; safe to call twice or before ``start``."""
        closed = await asyncio.gather(*(engine.close() for engine in self._engines), return_exceptions=True)
        self._ended.set()
        await _cancelled([*self._coming.values(), *([self._watching] if self._watching is not None else [])])
        for error in closed:
            if error is not None:
                raise error

    @property
    def _ready(self) -> list[int]:
        """Engines that have the version; none while others are still loading it."""
        return [i for i, version in enumerate(self._has) if version is not None and version == self._version]

    def _shut(self) -> None:
        self._open.clear()
        self._episodes.clear()  # new weights leave no cache of their past
        self._has = [None] * len(self._engines)

    def _lose(self, index: int) -> None:
        """Engine ``index`` has died, or lost its weights with an earlier one."""
        self._lost.add(index)
        self._has[index] = None
        if not self._ready:
            self._open.clear()

    def _watch(self) -> None:
        """Notice the end of an engine from now on; raises what ended one."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._notice_end(), name="watch the engines")
        self._check()

    async def _notice_end(self) -> None:
        waits = [asyncio.create_task(engine.wait_dead()) for engine in self._engines]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._cause = next((error for wait in waits if wait.done() and (error := wait.exception())), None)
            self._ended.set()
        finally:
            await _cancelled(waits)

    async def _until_end(self, work: Awaitable[Result]) -> Result:
        """What ``work`` comes to; the end of an engine ends it."""
        task, end = asyncio.ensure_future(work), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([task, end], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._check()
                raise EngineError("the engines were closed")
            return await task
        finally:
            await _cancelled([task, end])

    def _check(self) -> None:
        if self._cause is not None:
            raise copy.copy(self._cause) from self._cause.__cause__

    async def _each(self, which: Sequence[int], call: Callable[[Generator], Awaitable[Result]]) -> dict[int, Result]:
        """Call these engines at once: what each says, without those that were lost over it. The first error takes the
        other calls back.
        """
        said: dict[int, Result] = {}

        async def one(index: int) -> None:
            try:
                said[index] = await call(self._engines[index])
            except EngineLost:
                self._lose(index)

        try:
            async with asyncio.TaskGroup() as tasks:
                for index in which:
                    tasks.create_task(one(index))
        except BaseExceptionGroup as errors:
            raise (error := first_error(errors)) from error.__cause__
        return {index: said[index] for index in which if index in said}


async def _cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
