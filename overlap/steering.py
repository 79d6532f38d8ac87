"""A hand on a run that goes on: pause, resume, drain, save, status, stop.

    overlap ctl RUN pause  ──▶ RUN/ctl, a socket of the owner's ──▶ Steering ──▶ Control (the loop's)
    run = overlap.start(cfg); run.pause()  ────────────────────────────┘

A request and its answer are a line of JSON each. All methods of ``Steering`` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from overlap.errors import ConfigError, OverlapError
from overlap.pipeline import Control

Command = Literal["pause", "resume", "drain", "save", "status", "stop"]
COMMANDS: tuple[Command, ...] = get_args(Command)
SOCKET = "ctl"
_LINE_MAX = 1 << 16
_ANSWER_S = 10.0
_DONE = {
    "pause": "pausing: what is underway is finished, no further step is learned",
    "resume": "going on",
    "drain": "draining: complete steps are learned, then the run ends",
    "save": "saving between two steps",
    "stop": "stopping: the policy is kept",
}


class Steering:
    """Wishes before the run has begun are kept until it has."""

    def __init__(self) -> None:
        self.control = Control()
        self.stopped = False
        self._about: Callable[[], dict[str, Any]] = dict
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.Lock()

    def pause(self) -> None:
        """Finish what is underway, and begin nothing, until ``resume``."""
        self._do(self.control.pause)

    def resume(self) -> None:
        """Go on after a pause."""
        self._do(self.control.resume)

    def drain(self) -> None:
        """Admit nothing more; the run ends when all complete steps are learned."""
        self._do(self.control.drain)

    def save(self) -> None:
        """Write a checkpoint between two steps, at once where the run is paused."""
        self._do(self.control.save)

    def stop(self) -> None:
        """End the run as Ctrl-C does: the policy is kept."""
        self._do(self._end)

    def status(self) -> dict[str, Any]:
        """Where the run stands, and how full it is. Raises OverlapError when it does not answer in time."""
        loop = self._loop
        if loop is None or not loop.is_running():
            return {"state": "starting or ended"}
        answer = asyncio.run_coroutine_threadsafe(self._status(), loop)
        try:
            return answer.result(_ANSWER_S)
        except TimeoutError as error:
            answer.cancel()
            raise OverlapError(f"the run did not answer within {_ANSWER_S:g} s") from error

    async def wanted_end(self) -> None:
        """The session's: until ``stop``."""
        assert self._stop is not None
        await self._stop.wait()

    @asynccontextmanager
    async def attached(self, about: Callable[[], dict[str, Any]]) -> AsyncIterator[None]:
        """The session's: inside, its loop obeys. ``about`` is what it adds to a status."""
        with self._lock:
            self._about, self._loop, self._stop = about, asyncio.get_running_loop(), asyncio.Event()
            if self.stopped:
                self._stop.set()
        try:
            yield
        finally:
            with self._lock:
                self._loop = None

    def _do(self, wish: Callable[[], None]) -> None:
        with self._lock:
            if self._loop is None:
                wish()
            else:
                self._loop.call_soon_threadsafe(wish)

    def _end(self) -> None:
        self.stopped = True
        if self._stop is not None:
            self._stop.set()

    async def _status(self) -> dict[str, Any]:
        return self._about() | self.control.status()

    async def answer(self, command: object) -> dict[str, Any]:
        """What a line from the socket asks, done."""
        if command not in COMMANDS:
            return {"error": f"{command!r} is no command: use {', '.join(COMMANDS)}"}
        if command == "status":
            return await self._status()
        self._end() if command == "stop" else getattr(self.control, str(command))()
        return {"done": _DONE[str(command)]}


@asynccontextmanager
async def listening(steering: Steering, folder: Path) -> AsyncIterator[None]:
    """Inside, ``folder/ctl`` takes commands of this user. Raises OSError where no socket can be made there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, TimeoutError):  # the other side's affair
            async with asyncio.timeout(_ANSWER_S):
                asked = json.loads(await reader.readline())
                said = await steering.answer(asked.get("command") if isinstance(asked, dict) else asked)
                writer.write(json.dumps(said).encode() + b"\n")
                await writer.drain()
        writer.close()

    path = folder / SOCKET
    with _directory(folder) as short:
        path.unlink(missing_ok=True)
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.bind(f"{short}/{SOCKET}")
            path.chmod(0o600)
            server = await asyncio.start_unix_server(serve, sock=ours, limit=_LINE_MAX)
        except BaseException:
            ours.close()
            raise
    try:
        yield
    finally:
        server.close()
        with suppress(OSError):
            path.unlink(missing_ok=True)


def ask(run: str, command: Command) -> dict[str, Any]:
    """Have the run in directory ``run`` do something; returns its answer. Raises ConfigError where none goes on."""
    try:
        with _directory(Path(run)) as short, socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_ANSWER_S)
            link.connect(f"{short}/{SOCKET}")
            link.sendall(json.dumps({"command": command}).encode() + b"\n")
            with link.makefile("rb") as answers:
                line = answers.readline(1 << 20)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise ConfigError("RUN", run, "no run goes on there: name the directory of one (run.dir)") from error
    except PermissionError as error:
        raise ConfigError("RUN", run, "belongs to another user") from error
    except OSError as error:
        raise OverlapError(f"the run in {run} did not answer ({error})") from error
    if not line.endswith(b"\n"):
        raise OverlapError(f"the run in {run} ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise OverlapError(str(answer["error"]))
    return answer


@contextmanager
def _directory(folder: Path) -> Iterator[str]:
    """A name of a directory that is short enough for a socket's address (107 bytes), however deep it lies."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
