"""The pool that belongs to a process: for callers in any thread and any event loop, which open and close nothing.

    any thread ── submit ──▶ an event loop in a thread of its own ──▶ Pool here, or Client where SANDBOX_URL is set

SANDBOX_URL       servers to judge on, separated by commas        SANDBOX_WORKERS    of the pool; default: one per core
SANDBOX_TOKEN     what they were started with                     SANDBOX_PACKAGES   that its programs may import: numpy
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, thread  # noqa: F401 - the executors' own end is registered before ours
from contextlib import suppress
from typing import Final, TypeVar

from sandbox import environment
from sandbox.client.client import Client
from sandbox.pool.pool import Pool

T = TypeVar("T")
_CLOSE_S: Final = 15.0


class ProcessPool:
    """A pool or a client, and the loop that runs it. Constructing it starts a thread and no process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._pool = pool_from_environment()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox pool", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Pool | Client], Awaitable[T]]) -> Future[T]:
        """Start ``work`` with the pool, in its loop. Cancelling the future cancels it."""

        async def done() -> T:
            return await work(self._pool)

        return asyncio.run_coroutine_threadsafe(done(), self._loop)

    def pids(self) -> tuple[int, ...]:
        """Processes of the pool."""
        return self._pool.pids()

    def close(self) -> None:
        """End the pool with its processes, and the thread."""
        if self.pid != os.getpid() or self._loop.is_closed():  # a fork's copy has no thread, and owns nothing
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


def pool_from_environment() -> Pool | Client:
    """A client of the servers that SANDBOX_URL names, or else a pool here. Raises ValueError."""
    environ = environment.current()
    if urls := [url.strip() for url in environ.get("SANDBOX_URL", "").split(",") if url.strip()]:
        try:
            return Client(urls, token=environ.get("SANDBOX_TOKEN", ""))
        except ValueError as error:
            raise ValueError(f"SANDBOX_URL: {error}") from error
    workers = environ.get("SANDBOX_WORKERS", "")
    if workers and not (workers.isdecimal() and int(workers)):
        raise ValueError(f"SANDBOX_WORKERS={workers!r}: use a whole number from 1 up")
    packages = tuple(name.strip() for name in environ.get("SANDBOX_PACKAGES", "").split(",") if name.strip())
    return Pool(int(workers) if workers else None, packages=packages)


_LOCK = threading.Lock()
_OWN: list[ProcessPool] = []


def process_pool() -> ProcessPool:
    """The pool of this process: made by the first call, and again in a process that was forked since."""
    with _LOCK:
        if not _OWN or _OWN[0].pid != os.getpid():
            _OWN[:] = [ProcessPool()]
        return _OWN[0]


def close_process_pool() -> None:
    """Close this process's pool, if it has one; the next call opens another."""
    with _LOCK:
        if _OWN:
            _OWN.pop().close()


def _forget() -> None:
    """Forget the pool in a forked process: it is the parent's, of which another thread may have held the lock."""
    global _LOCK
    _OWN.clear()
    _LOCK = threading.Lock()


# Before the interpreter's executors end, which the loop needs to close: an `atexit` function comes too late.
threading._register_atexit(close_process_pool)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_forget)
