"""Bounds of an episode: a limit on the time of its coroutine, which ends in time or is abandoned, and its slot in the
engine, which it keeps between two turns, for a bounded time.

    coroutine ──▶ its result, or its error
        │ time is up, or the caller is cancelled ──▶ cancelled, CANCELS times ──▶ abandoned

    an episode's turns ──▶ slot held ──▶ idle for idle_s ──▶ given up ──▶ the oldest episode that waits
                              ▲ └── next turn ◀── in time          │
                              └── waits again ◀── too late ◀───────┘

consumes: a coroutine                          produces: its result
waits for: its end, or that of its time        woken by: either; CANCEL_S after each cancellation
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from overlap.core.aio import race
from overlap.core.clock import PausableClock
from overlap.core.errors import EpisodeOver, RolloutError
from sandbox.pool.slots import Slots

CANCELS, CANCEL_S = 2, 10.0
"""Times that a coroutine is cancelled, and seconds that it has to clean up after each."""
T = TypeVar("T")


class OutOfTime(EpisodeOver):
    """The time was up, and the coroutine has ended."""


class IgnoredCancel(RolloutError):
    """The coroutine continued after it was cancelled, and was abandoned."""


async def within(
    seconds: float, work: Awaitable[T], on_end: Callable[[], None], clock: PausableClock | None = None
) -> T:
    """Await ``work`` for ``seconds`` of ``clock`` and return its result; after that call ``on_end`` and cancel it.

    Raises OutOfTime when the time was up, even if a result came after that, and IgnoredCancel. Errors of ``work`` are
    passed on; a cancellation that no caller requested, and SystemExit, become a RuntimeError.
    """
    driven = _Driven(_awaited(work))
    task = asyncio.create_task(_run(driven), name="a rollout")
    try:
        await race(task, (clock or PausableClock()).sleep(seconds))
        if task.cancelled():
            raise RuntimeError("it was cancelled without a request") from asyncio.CancelledError()
        if task.done():
            return task.result()
        on_end()
    finally:
        await _end(task, driven)
    if driven.abandoned:
        way_out = "let asyncio.CancelledError pass, which a bare except does not"
        raise IgnoredCancel(f"it continued after it was cancelled {CANCELS} times; {way_out}")
    if not task.cancelled():
        task.result()
    raise OutOfTime


async def _end(task: asyncio.Task[Any], driven: _Driven[Any]) -> None:
    """Cancel the task until it has ended or is abandoned; without waiting where this is itself cancelled."""
    try:
        for _ in range(CANCELS):
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=CANCEL_S)
        if not task.done():
            driven.abandoned = True
            task.cancel()
            await asyncio.wait([task])
    finally:
        if not task.done():
            driven.abandoned = True
            task.cancel()
        elif not task.cancelled():
            task.exception()  # retrieved, also where no caller awaits it


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _run(driven: _Driven[T]) -> T:
    try:
        return await driven
    except SystemExit as error:  # a task would end the loop by it
        raise RuntimeError(f"it tried to end the process (SystemExit: {error.code})") from error


class _Driven(Generic[T]):
    """Awaits a coroutine step by step, until it is abandoned: no cancellation reaches it after that."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work, self.abandoned = work, False

    def __await__(self) -> Generator[Any, Any, T]:
        send = step = partial(self._work.send, None)
        try:
            while True:
                waits = step()
                try:
                    yield waits
                    step = send
                except BaseException as error:
                    if self.abandoned:
                        raise
                    step = partial(self._work.throw, error)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            with contextlib.suppress(RuntimeError):  # it ignores that, too
                self._work.close()


class EpisodeSlot:
    """The slot of one episode. Of the episodes that wait, the lowest ``rank`` is next. Close it when that ends."""

    def __init__(self, places: Slots, rank: tuple[int, ...], idle_s: float) -> None:
        self._places, self._rank, self._idle_s = places, rank, idle_s
        self._held: AsyncExitStack | None = None
        self._taking = asyncio.Lock()
        self._turns = 0
        self._idle: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the slot, after waiting for one if need be. Concurrent turns of one episode share it."""
        self._turns += 1
        self._keep()
        try:
            async with self._taking:
                if self._held is None:
                    held = AsyncExitStack()
                    await held.enter_async_context(self._places.place(*self._rank))
                    self._held = held
            yield
        finally:
            self._turns -= 1
            if not self._turns and self._held is not None:
                self._idle = asyncio.create_task(self._give_up(), name="an episode between two turns")

    async def close(self) -> None:
        """Give the slot back now."""
        self._keep()
        await self._release()

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def _give_up(self) -> None:
        await asyncio.sleep(self._idle_s)
        await self._release()

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()
