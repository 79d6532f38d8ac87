"""Base classes for parts of a run without a process of their own: the methods of the protocols on start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from overlap.core.chat_turns import Spoken


class Processless:
    """A part without a process, to derive from. It belongs to the event loop that awaits it."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Nothing has to be started."""

    async def wait_dead(self) -> None:
        """Wait until ``close``: there is no process that could die."""
        await self._closed.wait()

    def pids(self) -> tuple[int, ...]:
        """None."""
        return ()

    async def close(self) -> None:
        """Safe to call twice."""
        self._closed.set()


class ProcesslessEngine(Processless):
    """A generator without an engine: it holds no device memory and loses no weights."""

    moved = 0

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Return the text as it is: there are no parsers."""
        return Spoken(text)

    async def sleep(self) -> None:
        """Do nothing: there is no device memory to give."""

    async def wake(self, part: str) -> None:
        """Do nothing: there is no device memory to take back."""

    async def wants_weights(self) -> None:
        """Never: waits until it is cancelled."""
        await asyncio.Event().wait()


class ProcesslessVerifier(Processless):
    """A verifier without a sandbox, which judges ``concurrency`` samples in parallel."""

    concurrency = 1

    def take_nodes(self) -> None:
        """Do nothing: there is no cluster."""
