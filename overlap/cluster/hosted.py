"""A process of ours on this machine for a driver on another one: started here, watched here, called from there. No Ray.

consumes  bytes of calls, as ``Peer`` writes them       produces  bytes of replies, what it prints, how it ended
waits     in ``exchange`` for any of these; woken by it, and by ``nudge``
ends      with ``close``, or with this process: the reaper clears up
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from io import FileIO
from pathlib import Path
from typing import Any

from overlap.aio import shielded_thread
from overlap.errors import ConfigError, OverlapError
from overlap.policy import policy_digest
from overlap.process import ChildProcesses, connect, scratch_directory
from overlap.weights import Piece, WeightCopy, mapped

PIECE = 4 << 20
"""Bytes of a stream in one call, at most."""


class Hosted:
    """One process, started once. ``name`` is what its life is called ("engine-1")."""

    def __init__(self, name: str) -> None:
        self._name, self._stack = name, AsyncExitStack()
        self._replies, self._some = bytearray(), asyncio.Event()
        self._death: tuple[str, int | None] | None = None
        self._weights: WeightCopy | None = None
        self._update, self._filling = 0, asyncio.Lock()
        self._pieces = dict[int, Piece]()

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        """Start ``python -m module FD`` in a scratch directory of its own; its path. Raises OverlapError."""
        # Detached: Ray kills all children of a worker that it ends.
        scratch, _ = self._stack.enter_context(scratch_directory(detached=True))
        life = _Watched(self._name, OverlapError, scratch, scratch / "log")
        life.tell = self._died
        self._stack.push_async_callback(life.close)
        reader, self._writer = await connect(life, title, module, environment)
        self._stack.callback(self._writer.close)
        self._reading = asyncio.create_task(self._read(reader), name=f"listen to {title}")
        self._log = self._stack.enter_context(FileIO(scratch / "log"))
        return str(scratch)

    async def exchange(self, data: bytes, wait_s: float) -> tuple[bytes, bytes, tuple[str, int | None] | None]:
        """Hand on bytes of calls; what has come since the last one, as soon as there is any, or after ``wait_s``: bytes
        of replies and of the log, and who died with which exit code (negative: by that signal). One call at a time.
        """
        self._writer.write(data)
        if not (self._replies or self._death):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._some.wait()
        self._some.clear()
        replies, death, self._death = bytes(self._replies[:PIECE]), self._death, None
        del self._replies[:PIECE]
        return replies, self._log.read(PIECE), death

    async def nudge(self) -> None:
        """Have ``exchange`` wait no longer, or the next one not at all."""
        self._some.set()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function says that is called in a thread here."""
        return await asyncio.to_thread(function, *args)

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

    async def changed(
        self, path: str, at: int, length: int, has: bytes | None
    ) -> tuple[bytes | bytearray, bytes, bool] | None:
        """A piece of weights that lie here, for somebody who has one of that digest: what has changed in it since the
        last call, or all of it; its digest, and whether it is all of it. None for who has it. Keeps what it read.
        """
        read = self._pieces
        piece = read[at] = await asyncio.to_thread(lambda: Piece.after(read.get(at), mapped(path, at, length)))
        return next(((data, piece.digest, whole) for data, whole in piece.ways(has)), None)

    def _drop(self) -> None:
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    async def close(self) -> None:
        """End the process and what it has started, and remove all that is theirs."""
        await self._stack.aclose()
        async with self._filling:
            self._drop()

    def _died(self, who: str, code: int | None) -> None:
        self._death = who, code
        self._some.set()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):  # its end is seen by its life
            while data := await reader.read(PIECE):
                self._replies += data
                self._some.set()


class _Watched(ChildProcesses):
    """A life that tells of a death."""

    tell: Callable[[str, int | None], None]

    def died(self, who: str, code: int | None) -> None:
        self.tell(who, code)
        super().died(who, code)


def same_policy(policy: Path, digest: str) -> bool:
    """Whether the checkpoint is here, and is the one of that digest."""
    with contextlib.suppress(ConfigError):
        return policy_digest(policy) == digest
    return False


def files_in(folder: Path) -> list[tuple[str, int]]:
    """Paths of the files in a folder, relative to it, and their sizes, bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]


def read_piece(path: str | Path, at: int, length: int) -> bytes:
    """Bytes of a file. Raises OSError, also where it ends before."""
    with open(path, "rb", buffering=0) as file:
        data = os.pread(file.fileno(), length, at)
    if len(data) < length:
        raise OSError(f"{path} ends at byte {at + len(data)}, not behind {at + length}")
    return data


def write_piece(path: Path, at: int, data: bytes) -> str:
    """Make the file, with the folders above it, unless it is there, and write that into it; why it cannot be, or ""."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_and_close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), at, data)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def write_and_close(fd: int, at: int, data: bytes | memoryview) -> None:
    """Write all of ``data`` at that byte of a file, and close it. Raises OSError."""
    view = memoryview(data)
    with open(fd, "wb", buffering=0):
        while len(view):
            done = os.pwrite(fd, view, at)
            view, at = view[done:], at + done
