"""An agent program in a jail of the sandbox: a working directory, the gateway's endpoint, and nothing else.

    the task's files ──▶ jail ── the program ⇄ its loopback ── the jail's listening socket ⇄ gateway
                           │ ends, with all of its processes
                           ▼
                  what it left, in a directory of the run

The socket was made inside the jail's network namespace, and the gateway accepts from outside: nothing forwards, and
nothing else is there to be reached. The jail ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from overlap.config.fields import Config
from overlap.core import described_error
from overlap.core.aio import race, shielded
from overlap.core.errors import ConfigError, RolloutError
from overlap.process.run_environment import child_environment
from overlap.server.agent_reach import check_open_to_others, readable_paths
from overlap.server.chat import Chat
from overlap.server.episodes import HarnessCrashed
from overlap.server.gateway import Gateway
from overlap.server.harness_process import StderrTail
from sandbox.core.nouns import MIB, Isolation, Limits
from sandbox.errors import Cancelled, SandboxError
from sandbox.session.commands import CommandJail

P = ParamSpec("P")
T = TypeVar("T")
BACK_BYTES = 64 * MIB
"""Bytes of the files left by a program that are brought back, at most."""
_KILLED = 137
_WALL_S = 1_000_000.0
"""The owner ends the program; its clock is paused while the engine sleeps."""
_DEFAULTS = {"memory_bytes": 2048 * MIB, "processes": 256, "open_files": 1024, "work_bytes": 256 * MIB}


@dataclass(frozen=True, slots=True)
class AgentSpace:
    """Settings of all programs of a run: tier, limits, bytes of the working directory, and paths that they may read."""

    tier: Isolation
    limits: Limits
    work_bytes: int
    readable: tuple[str, ...]

    def open(self) -> CommandJail:
        """A jail. Raises SandboxError where the machine cannot isolate so."""
        return CommandJail(self.tier, self.limits, work_bytes=self.work_bytes, readable=self.readable, network=True)


def agent_space(cfg: Config) -> AgentSpace | None:
    """The space that the configuration asks for; None where agents are not isolated. Raises ConfigError."""
    episode = cfg.episode
    if episode.jail is None:
        return None
    given: dict[str, Any] = {"cpu_s": episode.timeout_s, **_DEFAULTS}
    named = episode.jail.get("readable", [])
    if not isinstance(named, list | tuple) or not all(isinstance(path, str) for path in named):
        raise ConfigError("episode.jail.readable", named, "write a list of whole paths, [/my/data]")
    for name, value in episode.jail.items():
        whole = isinstance(value, int | float) if name == "cpu_s" else isinstance(value, int)
        if name != "readable" and (name not in given or not whole or isinstance(value, bool) or value <= 0):
            way_out = f"use readable, and positive numbers of {', '.join(given)}; all but cpu_s are whole"
            raise ConfigError(f"episode.jail.{name}", value, way_out)
    given |= {name: value for name, value in episode.jail.items() if name != "readable"}
    work_bytes = given.pop("work_bytes")
    try:
        output = min(work_bytes, Limits().output_bytes)
        limits = Limits(wall_s=_WALL_S, file_bytes=work_bytes, output_bytes=output, **given)
    except SandboxError as error:
        raise ConfigError("episode.jail", episode.jail, described_error(error)) from error
    readable = readable_paths(episode.command, named)
    check_open_to_others(readable)
    return AgentSpace("A", limits, work_bytes, readable)


def check_space(cfg: Config) -> None:
    """Raise ConfigError where agents cannot be isolated as ``cfg`` asks. Starts a jail where it asks for one."""
    space = agent_space(cfg)
    if space is None:
        return
    try:
        space.open().close()
    except SandboxError as error:
        raise ConfigError("episode.jail", cfg.episode.jail, str(error)) from error


class JailedHarness:
    """One program's jail, as an async context; its steps are done in a thread of its own."""

    def __init__(self, space: AgentSpace) -> None:
        self._space, self._threads = space, ThreadPoolExecutor(1, "agent")
        self._jail: CommandJail | None = None

    async def __aenter__(self) -> JailedHarness:
        try:
            await self._do(self._start)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._jail is not None:
                await self._do(self._jail.close)
        finally:
            self._threads.shutdown(wait=False)

    def _start(self) -> None:
        self._jail = self._space.open()

    @property
    def jail(self) -> CommandJail:
        assert self._jail is not None, "it is open inside its context"
        return self._jail

    async def lay_out(self, files: Mapping[str, str]) -> None:
        """Raises RolloutError where they do not fit, SandboxError."""
        try:
            await self._do(self.jail.lay_out, {name: text.encode() for name, text in files.items()})
        except OSError as error:
            way_out = f"the task's files cannot be laid out ({error.strerror}): raise episode.jail.work_bytes"
            raise RolloutError(way_out) from error

    async def run(self, command: str, gateway: Gateway, chat: Chat, grace_s: float) -> tuple[int, str]:
        """Run the program to its end; it is killed ``grace_s`` after the chat's. Returns the exit status and the end of
        stderr. Raises HarnessCrashed where a limit ended it, SandboxError.
        """
        assert self.jail.listener is not None
        async with gateway.serve(self.jail.listener) as url:
            with gateway.session(chat) as key:
                known = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key}
                known |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
                known |= {"PATH": child_environment()["PATH"], "TYPER_STANDARD_TRACEBACK": "1"}
                return await self._run(command, known, chat, grace_s)

    async def _run(self, command: str, known: Mapping[str, str], chat: Chat, grace_s: float) -> tuple[int, str]:
        stderr, null = StderrTail(), os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            pipes = (null, null, stderr.target)
            running = self._begin(lambda: self.jail.run(command, environment=known, pipes=pipes))
            try:
                await race(running, chat.ended.wait())
                await race(running, asyncio.sleep(grace_s))
            finally:
                if not running.done():
                    self.jail.cancel()
                with suppress(Cancelled):
                    await shielded(running)
                self.jail.resume()
            stderr.listen()
            if isinstance(running.exception(), Cancelled):
                return _KILLED, stderr.text
            done = running.result()
        finally:
            stderr.close_target()
            stderr.close()
            os.close(null)
        if done.cause is not None:
            raise HarnessCrashed(f"episode.command was ended, by its limit or rule: {done.cause} (episode.jail)")
        return done.exit_code if done.exit_code is not None else 128 + (done.signal or 0), stderr.text

    async def take_back(self, folder: Path) -> None:
        """Copy the files that the program left into an empty directory. Raises SandboxError, OSError."""
        await self._do(self.jail.take_back, str(folder), bytes_max=BACK_BYTES)

    async def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await shielded(self._begin(lambda: work(*args, **kwargs)))

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)
