"""A process of ours on this machine for a driver on another one: started here, watched here, called from there. No Ray.

consumes  bytes of calls, as ``Peer`` writes them       produces  bytes of replies, what it prints, how it ended
waits     in ``exchange`` for any of these; woken by it, and by ``nudge``
ends      with ``close``, or with this process: the reaper clears up
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from io import FileIO
from pathlib import Path
from typing import Any

from overlap.aio import threaded
from overlap.errors import ConfigError, OverlapError
from overlap.policy import policy_digest
from overlap.process import ChildProcesses, connect, scratch_directory
from overlap.weights import WeightEndpoint

PIECE = 4 << 20
"""Bytes of a stream in one call, at most."""


class Hosted(WeightEndpoint):
    """One process, started once. ``name`` is what its life is called ("engine-1")."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._stack = name, AsyncExitStack()
        self._replies, self._some = bytearray(), asyncio.Event()
        self._death: tuple[str, int | None] | None = None

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        """Start ``python -m module FD`` in a scratch directory of its own; its path. Raises OverlapError."""
        # Detached: Ray kills all children of a worker that it ends.
        scratch, _ = await self._stack.enter_async_context(threaded(scratch_directory(detached=True)))
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

    async def close(self) -> None:
        """End the process and what it has started, and remove all that is theirs."""
        await self._stack.aclose()
        await super().close()

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
