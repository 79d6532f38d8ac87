"""A user's coroutine under a time limit: it ends in time, or is abandoned.

    coroutine ──▶ its result, or its error
        │ time is up, or the caller is cancelled ──▶ cancelled, CANCELS times ──▶ abandoned

consumes: a coroutine                          produces: its result
waits for: its end, or that of its time        woken by: either; CANCEL_S after each cancellation
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from overlap.core.aio import race
from overlap.core.clock import PausableClock

CANCELS, CANCEL_S = 2, 10.0
"""Times that a coroutine is cancelled, and seconds that it has to clean up after each."""
T = TypeVar("T")


class OutOfTime(Exception):
    """The time was up, and the coroutine has ended."""


class IgnoredCancel(Exception):
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
            raise RuntimeError("it was cancelled, and nobody had asked for that") from asyncio.CancelledError()
        if task.done():
            return task.result()
        on_end()
    finally:
        await _end(task, driven)
    if driven.abandoned:
        raise IgnoredCancel(f"it continued after it was cancelled {CANCELS} times")
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
