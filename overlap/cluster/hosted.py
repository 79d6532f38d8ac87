"""A process of ours on this machine for a driver on another one: started here, watched here, called from there. No Ray.

consumes  bytes of calls, as ``Peer`` writes them       produces  bytes of replies, what it prints, how it ended
waits     in ``exchange`` for any of these; woken by it, and by ``nudge``
ends      with ``close``, or with this process: the reaper clears up
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from overlap.aio import shielded_thread
from overlap.cluster.far_folder import FarFolder
from overlap.errors import ConfigError, OverlapError
from overlap.placement import Devices, devices_here, free_memory
from overlap.policy import policy_digest
from overlap.process import ChildProcesses, connect, scratch_directory
from overlap.weights import WeightCopy

PIECE = 4 << 20
"""Bytes of a stream in one call, at most."""
LOG_PIECE = 256 << 10
_LAST_WORDS_S = 0.5  # what a process said before its end may come a moment after that


class Delivery(NamedTuple):
    """What has come since: bytes of replies and of the log, and, behind the last of them, who died with which exit code
    (negative: by that signal).
    """

    replies: bytes = b""
    log: bytes = b""
    death: tuple[str, int | None] | None = None


class Hosted:
    """One process, started once. ``name`` is what its life is called ("engine-1")."""

    def __init__(self, name: str) -> None:
        self._name, self._stack = name, ExitStack()
        self._life: _Watched | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._replies, self._some = bytearray(), asyncio.Event()
        self._log: Path | None = None
        self._folder: FarFolder | None = None
        self._death: tuple[str, int | None] | None = None
        self._weights: WeightCopy | None = None
        self._update, self._filling = 0, asyncio.Lock()

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        """Start ``python -m module FD`` in a scratch directory of its own. Why that cannot be, "" where it is done."""
        try:
            scratch, _ = self._stack.enter_context(
                scratch_directory(detached=True)
            )  # Ray kills all children of a worker that it ends
            self._log, self._folder = scratch / "log", FarFolder(scratch / "files")
            self._life = _Watched(self._name, scratch, self._log, self._died)
            reader, self._writer = await connect(self._life, title, module, environment)
        except OverlapError as error:
            return str(error)
        self._reading = asyncio.create_task(self._read(reader), name=f"listen to {title}")
        return ""

    async def exchange(self, data: bytes, log: int, wait_s: float) -> Delivery:
        """Hand on bytes of calls; what has come since the last call, as soon as there is any, and of the log what is
        behind its first ``log`` bytes; nothing after ``wait_s``.
        """
        if self._writer is not None and data:
            self._writer.write(data)
        if not self._replies and self._death is None:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._some.wait()
        replies, printed = bytes(self._replies[:PIECE]), self._printed(log)
        del self._replies[:PIECE]
        whole = not self._replies and len(printed) < LOG_PIECE
        return Delivery(replies, printed, self._death if whole else None)

    async def nudge(self) -> None:
        """Have ``exchange`` wait no longer."""
        self._some.set()

    async def facts(self, device: str) -> tuple[Devices, int]:
        """What this machine has for engines of a run with ``run.device`` = ``device``, and its memory that is free,
        bytes. One without a GPU refuses nothing: it has none.
        """
        return await asyncio.to_thread(lambda: (devices_here("cpu" if device == "cpu" else "auto"), free_memory()))

    async def digest(self, policy: Path) -> str:
        """Of a checkpoint, as ``policy_digest`` makes it; "" where there is none."""
        try:
            return await asyncio.to_thread(policy_digest, policy)
        except ConfigError:
            return ""

    async def room(self, update: int, size: int) -> tuple[str, dict[int, bytes]]:
        """Memory for ``size`` bytes of weights, which stays for the next update; the path by which the process finds
        it, and digests of the pieces that lie there, by where they begin.

        Updates are numbered as they come: calls may overtake each other, and one for an earlier update does nothing.
        """
        async with self._filling:
            if update < self._update:
                return "", {}
            if self._weights is None or self._weights.size != size:
                self._drop()
                self._weights = WeightCopy(size)
            self._update = update
            return self._weights.path, self._weights.digests.copy()

    async def fill(self, update: int, at: int, length: int, data: Any, digest: bytes, whole: bool) -> bool:
        """Write a piece of them there, or what has changed in it; whether it has that digest then."""
        async with self._filling:
            if update != self._update or self._weights is None:
                return False
            return await shielded_thread(self._weights.fill, at, length, data, digest, whole=whole)

    def _drop(self) -> None:
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    async def files(self, do: str, *args: Any) -> Any:
        """What a method of its folder says."""
        return await asyncio.to_thread(getattr(self._folder, do), *args)

    async def close(self) -> None:
        """End the process and what it has started, and remove all that is theirs."""
        if self._life is not None:
            await self._life.close()
        tasks = [task for task in (self._reading, self._noting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        async with self._filling:
            self._drop()
        await asyncio.to_thread(self._stack.close)

    def _died(self, who: str, code: int | None) -> None:
        self._noting = asyncio.create_task(self._note_death(who, code), name="note a death")

    async def _note_death(self, who: str, code: int | None) -> None:
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_LAST_WORDS_S)
        self._death = who, code
        self._some.set()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):  # its end is seen by its life
            while data := await reader.read(PIECE):
                self._replies += data
                self._some.set()

    def _printed(self, log: int) -> bytes:
        if self._log is None:
            return b""
        try:
            with self._log.open("rb") as file:
                file.seek(log)
                return file.read(LOG_PIECE)
        except OSError:
            return b""


class _Watched(ChildProcesses):
    """A life that tells of a death."""

    def __init__(self, name: str, scratch: Path, log: Path, tell: Callable[[str, int | None], None]) -> None:
        super().__init__(name, OverlapError, scratch, log)
        self._tell = tell

    def died(self, who: str, code: int | None) -> None:
        self._tell(who, code)
        super().died(who, code)
