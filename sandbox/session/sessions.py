"""A limited number of program states for asynchronous callers: each has a slot from its first call until it idles.

    Sessions.open() ──▶ ProgramSession ── execute ──▶ a slot, a thread ──▶ LiveState.call

waits for a slot, then for the call; woken by its Output. A call that is cancelled ends its state first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar

from sandbox.build.builder import Builder
from sandbox.core.nouns import SOURCE_BYTES_MAX, Case, Isolation, Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import PoolClosed, SandboxError
from sandbox.jail.jail import Jail, find_packages
from sandbox.judging.single_run import run_program
from sandbox.languages.table import find_language
from sandbox.session.live_program import LiveState
from sandbox.session.output import SHOWN_BYTES, Finished, Output, shorten
from sandbox.session.session_host import SessionHost, call_seconds, settled
from sandbox.session.workspace import Workspace

IDLE_S: Final = 120.0
_T = TypeVar("_T")


class Sessions(SessionHost):
    """All sessions of an owner. Use as a context manager, or call `close`. Belongs to one event loop."""

    def __init__(
        self,
        count: int,
        *,
        at_once: int | None = None,
        isolation: Isolation = "auto",
        limits: Limits | None = None,
        packages: tuple[str, ...] = (),
        idle_s: float = IDLE_S,
        shown_bytes: int = SHOWN_BYTES,
    ) -> None:
        """At most `count` states, and `at_once` concurrent calls; others wait.

        `limits` hold for each call; those of processes, files and memory, for a state. A state without a call for
        `idle_s` seconds is ended. Of each stream of a call in a state or of a command `shown_bytes` are kept, its
        beginning and its end. Raises ToolchainMissing for a package that is not installed. Nothing is started.
        """
        super().__init__(count, count if at_once is None else at_once, isolation, limits or Limits(), shown_bytes)
        self.idle_s = idle_s
        how = isolation, self.limits, find_packages(packages)
        self.make_run = partial(_FilesRun, *how)
        self.make_state = partial(LiveState, *how, 2 * idle_s, shown_bytes)
        self.opened: set[ProgramSession] = set()
        self._closed = False

    def open(self) -> ProgramSession:
        """A session. Nothing is started before its first call. Raises PoolClosed."""
        if self._closed:
            raise PoolClosed("the sessions are closed")
        self.opened.add(session := ProgramSession(self))
        return session

    async def close(self) -> None:
        """End all of them. Safe to call twice."""
        self._closed = True
        await asyncio.gather(*(session.close() for session in list(self.opened)))
        self.release()

    async def __aenter__(self) -> Sessions:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class ProgramSession:
    """One program's state, from the first call on. Calls are answered one after the other."""

    def __init__(self, owner: Sessions) -> None:
        self._owner = owner
        self._turn = asyncio.Lock()
        self._held = AsyncExitStack()
        self._state: LiveState | None = None
        self._resting: asyncio.Task[None] | None = None
        self._running: dict[_FilesRun, asyncio.Future[Finished]] = {}
        self._workspace: Workspace | None = None
        self._closing = False

    async def execute(self, code: str, *, timeout_s: float | None = None) -> Output:
        """Run Python code in the session's state.

        `timeout_s`: wall seconds, at most those of the limits; waiting for a slot or a core does not count. Raises
        ValueError for invalid arguments, PoolClosed, and SandboxError where the sandbox fails: the state is lost then.
        """
        seconds = call_seconds(self._owner.limits, timeout_s)
        if len(code) > SOURCE_BYTES_MAX:
            raise ValueError(f"code: {len(code)} characters, and at most {SOURCE_BYTES_MAX} can be run")
        async with self._turn:
            self._wake()
            try:
                if self._state is None:
                    await self._held.enter_async_context(self._owner.places.place())
                    self._state = self._owner.make_state()
                if self._closing:
                    raise PoolClosed("the session is closed")
                async with self._owner.turns.place():
                    return await self._owner.do(self._state.call, code, seconds, cancel=self._state.cancel)
            except (SandboxError, asyncio.CancelledError):
                await self._let_go()
                raise
            finally:
                if self._state is not None:
                    self._resting = asyncio.create_task(self._rest())

    async def run_files(
        self,
        files: Mapping[str, str],
        *,
        language: str = "python",
        entry: str = "",
        arguments: Sequence[str] = (),
        stdin: str = "",
    ) -> Finished:
        """Write files into the directory of a fresh jail, compile them where their language requires it, and run them
        once from `entry`. The session's state is not involved. Raises ValueError for files that cannot be in one
        directory and for an unknown language, PoolClosed, and SandboxError where the sandbox fails.
        """
        program = _as_program(files, language, entry)
        async with self._owner.turns.place():
            if self._closing:
                raise PoolClosed("the session is closed")
            run = self._owner.make_run()
            work = self._owner.start(run.call, self._owner.build_directory(), program, tuple(arguments), stdin)
            self._running[run] = work
            try:
                return await settled(work, run.cancel)
            finally:
                del self._running[run]
                run.end()

    def workspace(self, **how: Any) -> Workspace:
        """The session's working directory for the commands of a shell, without a network, as long as the session lasts.
        Nothing of the session's state is there. `how`: `root`, `readable`, `work_bytes`, `links` and `limits`, as
        `Workspace` has them, with the first call only, and with the first after its `close`. Raises ValueError,
        PoolClosed.
        """
        if self._closing:
            raise PoolClosed("the session is closed")
        if self._workspace is None or self._workspace.closed:
            self._workspace = Workspace(self._owner, **how)
        elif how:
            raise ValueError("a session has one workspace: say what it shows with the first call")
        return self._workspace

    async def close(self) -> None:
        """End the state, the workspace and the current calls, which raise. Safe to call twice."""
        self._closing = True
        self._owner.opened.discard(self)
        if self._workspace is not None:
            await self._workspace.close()
        for run in self._running:
            run.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))
        if self._state is not None and self._turn.locked():
            self._state.cancel()
        async with self._turn:
            self._wake()
            await self._let_go()

    async def _let_go(self) -> None:
        """End the state, and release the slot."""
        state, self._state = self._state, None
        try:
            if state is not None:
                await self._owner.do(state.end)
        finally:
            await self._held.aclose()

    def _wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()

    async def _rest(self) -> None:
        """End the state that has no call for too long."""
        await asyncio.sleep(self._owner.idle_s)
        async with self._turn:
            await self._let_go()


def _as_program(files: Mapping[str, str], language: str, entry: str) -> Program:
    """Return the program. Raises ValueError where the files cannot be in one directory, or for an unknown language."""
    if not files:
        raise ValueError("files: there are none, so nothing can be run")
    try:
        find_language(language)
        return Program(files=tuple(files.items()), language=language, entry=entry)
    except SandboxError as error:  # the caller's mistake, not a failure of the sandbox
        raise ValueError(str(error)) from error


class _FilesRun:
    """One run in a fresh jail, for one thread: compiled where the language is. `cancel` may come from any."""

    def __init__(self, isolation: Isolation, limits: Limits, packages: Any) -> None:
        self._isolation, self._limits, self._packages = isolation, limits, packages
        self._cancel = os.eventfd(0, os.EFD_CLOEXEC)

    def call(self, directory: str, program: Program, arguments: Sequence[str], stdin: str) -> Finished:
        """`directory`: where compiled programs are kept. Raises SandboxError: Cancelled after `cancel`."""
        case = Case(stdin, "-", arguments=tuple(arguments))
        problem, builder = Problem("files", "stdio", (case,), limits=self._limits), Builder(directory)
        with Jail(self._isolation, packages=self._packages, shared=builder.shared) as jail:
            _, done = run_program(jail, builder, problem, program, cancel_fd=self._cancel)
        if done.compiled is False:
            log = shorten(done.compile_log.encode(), SHOWN_BYTES)
            return Finished("", log, None, None, done.message, done.run_s)
        return Finished.of(done, SHOWN_BYTES)

    def cancel(self) -> None:
        """The run raises Cancelled."""
        os.eventfd_write(self._cancel, 1)

    def end(self) -> None:
        os.close(self._cancel)
