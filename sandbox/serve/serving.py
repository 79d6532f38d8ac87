"""One server process: a pool, the application on a socket, and its end.

    listen ──▶ a control program is judged ──▶ serve ──▶ SIGTERM, SIGINT: refuse new ones, finish what runs ──▶ 0, 130
                                                    └──▶ SIGHUP, a second signal: cut what runs ──▶ 128 + n

waits for: a signal, then the requests in hand, at most `--drain-s`
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from sandbox.errors import SandboxError
from sandbox.judging import control
from sandbox.languages.table import find_language
from sandbox.pool.pool import QUEUE_LIMIT, Pool
from sandbox.serve.app import make_app
from sandbox.serve.bounds import HELD_BYTES, Bounds
from sandbox.serve.listening import Server
from sandbox.serve.service import Service
from sandbox.serve.shared_counts import SharedCounts
from sandbox.terminal import ONE_WISH_S, SIGNALS


def serve_here(listener: socket.socket, options: argparse.Namespace) -> int:
    """Serve until a signal ends it, and return the exit code. Raises SandboxError where nothing can be judged here."""
    return asyncio.run(Serving(listener, options, workers=options.workers).run())


class Serving:
    """See the module. ``ready`` is called with the tier when the server answers; by default the address is printed."""

    def __init__(
        self,
        listener: socket.socket,
        options: argparse.Namespace,
        *,
        workers: int | None,
        shared: SharedCounts | None = None,
        ready: Callable[[str], None] | None = None,
    ) -> None:
        self._listener, self._options = listener, options
        self._ready = ready or self._say_ready
        held_bytes = max(HELD_BYTES, options.body_bytes)
        bounds = Bounds(queue=options.queue, body_bytes=options.body_bytes, held_bytes=held_bytes)
        queue_limit = max(QUEUE_LIMIT, options.queue)
        pool = Pool(workers, isolation=options.isolation, packages=tuple(options.packages), queue_limit=queue_limit)
        self._service = Service(pool, bounds, options.token, tuple(options.packages), shared=shared or SharedCounts())
        self._up = False
        self._asked, self._since = 0, 0.0
        """The first signal, and when it came."""
        self._cut = 0
        """The signal that cut what ran."""
        self._draining = asyncio.Event()

    async def run(self) -> int:
        """Returns the exit code."""
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in heeded_signals() if self._service.shared.rows == 1 else SIGNALS:
            loop.add_signal_handler(number, self._receive, number, task)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, signal.SIGCHLD))  # a parent may block them
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._service.close)
                await self._serve(stack)
        except asyncio.CancelledError:
            if not self._asked:
                raise
        return server_exit_code(self._asked, self._cut)

    async def _serve(self, stack: AsyncExitStack) -> None:
        tier = (await self._service.pool.judge(*control.sample(find_language("python")))).tier
        server = Server(make_app(self._service))
        serving = await stack.enter_async_context(server.listening(self._listener))
        gc.collect()
        gc.freeze()  # what is imported is no garbage, and is not searched for any
        self._up = True
        self._ready(tier)
        if self._service.shared.rows > 1:
            stack.callback(asyncio.create_task(self._share_counts()).cancel)
        asked = asyncio.create_task(self._draining.wait())
        await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not self._draining.is_set():
            serving.result()
            raise SandboxError("the server has ended by itself")
        if not await self._service.drained(self._options.drain_s):
            left = self._service.in_hand
            print(f"sandbox: {left} requests were cut after {self._options.drain_s:g} s (--drain-s)", file=sys.stderr)
        self._service.metrics.share()

    async def _share_counts(self) -> None:
        while True:
            self._service.metrics.share()
            await asyncio.sleep(1)

    def _receive(self, number: int, task: asyncio.Task[int]) -> None:
        """The first signal drains, a later one cuts. One that is sent twice is one."""
        now = time.monotonic()
        first = not self._asked
        if first:
            self._asked, self._since = number, now
            self._draining.set()
            self._service.metrics.share()  # a parent tells them
            if self._service.shared.rows == 1:
                say_ending(number, self._service.in_hand, self._options.drain_s)
        if self._cut:
            return  # once more would cut the end of the pool short
        if number == signal.SIGHUP or (not first and now - self._since > ONE_WISH_S):
            self._cut = number
            task.cancel()
        elif first and not self._up:
            task.cancel()

    def _say_ready(self, tier: str) -> None:
        say_ready(self._listener, self._service.pool.workers, tier)


def say_ready(listener: socket.socket, workers: int, tier: str) -> None:
    """Print where the server listens; a port of 0 has become one."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"sandbox: serving on http://{shown}:{port} ({workers} workers, tier {tier})", flush=True)


def heeded_signals() -> tuple[int, ...]:
    """All that end a server, but for SIGHUP where `nohup` started it."""
    return tuple(n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN)


def say_ending(number: int, in_hand: int, drain_s: float) -> None:
    """Say what the server waits for after a signal; nothing where the terminal was closed."""
    if number == signal.SIGHUP:
        return
    asked, again = ("interrupted", "a second Ctrl-C") if number == signal.SIGINT else ("terminated", "Ctrl-C")
    waits = "no request is in hand"
    if in_hand:
        waits = f"waits for {in_hand} request{'s' * (in_hand > 1)}, at most {drain_s:g} s; {again} ends at once"
    with suppress(OSError):
        print(f"sandbox: {asked}: {waits}", file=sys.stderr, flush=True)


def server_exit_code(asked: int, cut: int) -> int:
    """Return the exit code after a signal: 0 where that was SIGTERM and what ran was finished or ran too long."""
    number = cut or asked
    return 0 if number == signal.SIGTERM and not cut else 128 + number
