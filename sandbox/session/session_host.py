"""State that the sessions of one owner share: limits, slots, threads, and a directory of compiled programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sandbox.core.nouns import Isolation, Limits
from sandbox.kernel import inherited
from sandbox.kernel.orphan_cleanup import remove_run_directory, reserve_directory
from sandbox.pool.slots import Slots

_T = TypeVar("_T")


class SessionHost:
    """Slots and threads for `count` sessions, of which `at_once` are called at a time. Call `release` at the end."""

    def __init__(self, count: int, at_once: int, isolation: Isolation, limits: Limits, shown_bytes: int) -> None:
        for name, number in (("count", count), ("at_once", at_once)):
            if number < 1:
                raise ValueError(f"{name}={number}: must be at least 1")
        self.isolation, self.limits, self.shown_bytes = isolation, limits, shown_bytes
        self.places, self.turns = Slots(count), Slots(at_once)
        self.workspaces = Slots(count)  # apart from the states', or two who have one of each would wait for the other
        self._threads = ThreadPoolExecutor(count, "sandbox session")
        self._directory = ""

    def build_directory(self) -> str:
        """The directory of compiled programs: created on first use, removed on close."""
        if not self._directory:
            self._directory = reserve_directory()
            # As root, a program that reads files there is another user's.
            inherited.make_directory(self._directory, 0o711)
        return os.path.join(self._directory, "build")

    def start(self, work: Callable[..., _T], *given: object) -> asyncio.Future[_T]:
        """Run in a thread that lives as long as this object: a jail ends with the thread that started it."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    async def do(self, work: Callable[..., _T], *given: object, cancel: Callable[[], None] | None = None) -> _T:
        """Run as `start` does, and wait as `settled` does."""
        return await settled(self.start(work, *given), cancel)

    def release(self) -> None:
        """End the threads, which have no work any more, and remove the directory."""
        self._threads.shutdown()
        if self._directory:
            remove_run_directory(self._directory)


def call_seconds(limits: Limits, timeout_s: float | None) -> float:
    """Wall seconds of a call. Raises ValueError."""
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s}: must be a positive number of seconds")
    return min(timeout_s or limits.wall_limit_s, limits.wall_limit_s)


async def settled(work: asyncio.Future[_T], cancel: Callable[[], None] | None = None) -> _T:
    """Wait for its end, which `cancel` brings where the caller is cancelled; the cancellation is raised afterwards."""
    cancelled = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            if cancel is not None and cancelled is None:
                cancel()
            cancelled = error
    if cancelled is not None:
        if not work.cancelled():
            work.exception()
        raise cancelled
    return work.result()
