"""Foreign coroutines under a bound: they end in time, or are left where they stand.

    coroutine ──▶ its result, or what it raises
        │ time is up, or whoever waits is cancelled ──▶ cancelled, CANCELS times ──▶ left

consumes: a coroutine                          produces: its result
waits for: its end, that of its time           woken by: either; PATIENCE_S after each cancellation
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

CANCELS, PATIENCE_S = 2, 10.0
"""One that is cancelled has so long, s, to tidy up, so many times."""
T = TypeVar("T")


class OutOfTime(Exception):
    """Its time is up, and it has ended."""


class GoesOn(Exception):
    """It went on where it was cancelled, and was left."""


async def within(seconds: float, work: Awaitable[T], on_end: Callable[[], None]) -> T:
    """The result of ``work``. Where ``seconds`` have passed, ``on_end`` is called, and then it is cancelled: raises
    OutOfTime, also where it gives a result by then, and GoesOn. What it raises by itself is passed on; a cancellation
    that nobody asked for, and the wish to end this process, as a RuntimeError.
    """
    driven = _Driven(_awaited(work))
    task = asyncio.create_task(_run(driven), name="a rollout")
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return _result(task)
        on_end()
    finally:
        await _end(task, driven)
    if driven.left:
        raise GoesOn(f"it went on after it was cancelled, {CANCELS} times")
    if not task.cancelled():
        task.result()
    raise OutOfTime


def _result(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise RuntimeError("it was cancelled, and nobody had asked for that") from asyncio.CancelledError()
    return task.result()


async def _end(task: asyncio.Task[Any], driven: _Driven[Any]) -> None:
    """Have it end; where that is not waited for, as soon as the loop turns."""
    try:
        for _ in range(CANCELS):
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=PATIENCE_S)
        if not task.done():
            driven.left = True
            task.cancel()
            await asyncio.wait([task])
    finally:
        if not task.done():
            driven.left = True
            task.cancel()
        elif not task.cancelled():
            task.exception()  # seen, also where nobody asks any more


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _run(driven: _Driven[T]) -> T:
    try:
        return await driven
    except SystemExit as error:  # a task would end the loop by it
        raise RuntimeError(f"it asked for the end of the process (SystemExit: {error.code})") from error


class _Driven(Generic[T]):
    """Awaits a coroutine, step by step, until it is to be left: then no cancellation reaches it any more."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work, self.left = work, False

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = self._goes_on
        try:
            while True:
                waits = step()
                try:
                    yield waits
                    step = self._goes_on
                except BaseException as error:
                    if self.left:
                        raise
                    step = self._gets(error)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            with contextlib.suppress(RuntimeError):  # it ignores that, too
                self._work.close()

    def _goes_on(self) -> Any:
        return self._work.send(None)

    def _gets(self, error: BaseException) -> Callable[[], Any]:
        return lambda: self._work.throw(error)
