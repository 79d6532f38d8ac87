"""Additions to asyncio: the first of several awaitables, one error in place of a group, threads that are never
abandoned, deadlines that do not pass while this process is suspended.

task, _ = await race(work(), stop.wait())    # the loser is cancelled, and has ended, when this returns
with unwrapped(): async with TaskGroup() ...  # raises the error that brought the group down
await shielded_thread(os.replace, new, path)  # a cancellation waits for the thread
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_PARTS = 4


async def race(*awaitables: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> tuple[asyncio.Future[Any], ...]:
    """Wait until one of ``awaitables`` is done, and return a future for each of them, in their order.

    Coroutines run as tasks of ``race``: the tasks that lose are cancelled and have ended when it returns or raises.
    Tasks and futures are the caller's, and go on. Errors stay in the futures; only cancellation is raised.
    """
    futures = tuple(asyncio.ensure_future(awaitable) for awaitable in awaitables)
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        own = [future for future, given in zip(futures, awaitables, strict=True) if future is not given]
        for future in own:
            future.cancel()
        await asyncio.gather(*own, return_exceptions=True)
    return futures


async def wait_result(awaitable: Awaitable[T], seconds: float) -> T:
    """Await it. Raises TimeoutError where that takes longer, and cancels it. A process that was suspended meanwhile has
    not waited: the time is counted in parts, of which each ends once.
    """
    running = asyncio.ensure_future(awaitable)
    try:
        for _ in range(_PARTS):
            await asyncio.wait([running], timeout=seconds / _PARTS)
            if running.done():
                return running.result()
    finally:
        running.cancel()
    raise TimeoutError(f"no result within {seconds:g} s")


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise the error that brought a task group down, its first leaf, in place of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """Await coroutines side by side; returns their results. The first error cancels the others, and is raised."""
    with unwrapped():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in running]


async def shielded_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do quick ``work`` in a thread, as ``asyncio.to_thread``; a cancellation is raised once the work has ended, so
    that no caller cleans up, or goes on, beside a thread that still renames.
    """
    return await shielded(asyncio.create_task(asyncio.to_thread(work, *args, **kwargs)))


async def shielded(running: asyncio.Future[T]) -> T:
    """Wait for the end of what runs already, however often the waiting is cancelled; a cancellation is raised then."""
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is None:
        return running.result()
    running.exception()  # mark it as seen; the cancellation is what the caller asked for
    raise cancelled


@asynccontextmanager
async def threaded(context: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave ``context`` in threads, each with ``shielded_thread``."""
    try:
        yield await shielded_thread(context.__enter__)
    except BaseException as error:
        if not await shielded_thread(context.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await shielded_thread(context.__exit__, None, None, None)
