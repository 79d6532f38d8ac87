"""The server: a pool, the application on a socket, and its end.

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
from contextlib import aclosing, suppress

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from sandbox.errors import SandboxError
from sandbox.judging import control
from sandbox.languages.table import find_language
from sandbox.pool.pool import QUEUE_LIMIT, Pool
from sandbox.serve import own
from sandbox.serve.answers import answer_error
from sandbox.serve.bounds import HELD_BYTES, Bounds
from sandbox.serve.guard import Guard
from sandbox.serve.listening import Server
from sandbox.serve.sandbox_fusion import routes
from sandbox.serve.service import Service
from sandbox.terminal import ONE_WISH_S, SIGNALS


def make_app(service: Service) -> FastAPI:
    """The application of a service: our own routes and SandboxFusion's, behind one Guard."""
    app = FastAPI(
        title="sandbox serve",
        version=own.own_version(),
        license_info={"name": "Apache-2.0"},
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    token = [Depends(HTTPBearer(auto_error=False))]  # for the document: the guard asks for it
    app.include_router(own.router, dependencies=token)
    app.include_router(routes.router, dependencies=token)
    app.add_exception_handler(RequestValidationError, answer_error)
    app.add_exception_handler(HTTPException, answer_error)
    app.add_middleware(Guard, service=service, full=dict.fromkeys(routes.ASKED_AGAIN, 504))
    return app


class Serving:
    """See the module."""

    def __init__(self, listener: socket.socket, options: argparse.Namespace) -> None:
        self._listener, self._drain_s = listener, options.drain_s
        packages = tuple(options.packages)
        held_bytes = max(HELD_BYTES, options.body_bytes)
        bounds = Bounds(queue=options.queue, body_bytes=options.body_bytes, held_bytes=held_bytes)
        queue_limit = max(QUEUE_LIMIT, options.queue)
        pool = Pool(options.workers, isolation=options.isolation, packages=packages, queue_limit=queue_limit)
        self._service = Service(pool, bounds, options.token, packages)
        self._up = False
        self._asked, self._since = 0, 0.0
        """The first signal, and when it came."""
        self._cut = 0
        """The signal that cut what ran."""
        self._draining = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal ends it. Returns the exit code: 0 where that was SIGTERM and nothing was cut by another.

        Raises SandboxError where nothing can be judged here.
        """
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` started it
                loop.add_signal_handler(number, self._receive, number, task)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, signal.SIGCHLD))  # a parent may block them
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            async with aclosing(self._service):
                await self._serve()
        except asyncio.CancelledError:
            if not self._asked:
                raise
        return 0 if self._asked == signal.SIGTERM and not self._cut else 128 + (self._cut or self._asked)

    async def _serve(self) -> None:
        tier = (await self._service.pool.judge(*control.sample(find_language("python")))).tier
        async with Server(make_app(self._service)).listening(self._listener) as serving:
            gc.collect()
            gc.freeze()  # what is imported is no garbage, and is not searched for any
            self._up = True
            self._say_ready(tier)
            asked = asyncio.create_task(self._draining.wait())
            await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if not self._draining.is_set():
                serving.result()
                raise SandboxError("the server has ended by itself")
            if not await self._service.drained(self._drain_s):
                left = self._service.in_hand
                print(f"sandbox: {left} requests were cut after {self._drain_s:g} s (--drain-s)", file=sys.stderr)

    def _receive(self, number: int, task: asyncio.Task[int]) -> None:
        """The first signal drains, a later one cuts. One that is sent twice is one."""
        now = time.monotonic()
        first = not self._asked
        if first:
            self._asked, self._since = number, now
            self._draining.set()
            self._say_ending(number)
        if self._cut:
            return  # once more would cut the end of the pool short
        if number == signal.SIGHUP or (not first and now - self._since > ONE_WISH_S):
            self._cut = number
            task.cancel()
        elif first and not self._up:
            task.cancel()

    def _say_ready(self, tier: str) -> None:
        """Print where the server listens; a port of 0 has become one."""
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(
            f"sandbox: serving on http://{shown}:{port} ({self._service.pool.workers} workers, tier {tier})", flush=True
        )

    def _say_ending(self, number: int) -> None:
        """Say what the server waits for after a signal; nothing where the terminal was closed."""
        if number == signal.SIGHUP:
            return
        asked, again = ("interrupted", "a second Ctrl-C") if number == signal.SIGINT else ("terminated", "Ctrl-C")
        waits, count = "no request is in hand", self._service.in_hand
        if count:
            waits = f"waits for {count} request{'s' * (count > 1)}, at most {self._drain_s:g} s; {again} ends at once"
        with suppress(OSError):
            print(f"sandbox: {asked}: {waits}", file=sys.stderr, flush=True)
