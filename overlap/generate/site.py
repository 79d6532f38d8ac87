"""The machine that an engine's process is on: the driver's, or another one that can do the same (see ``cluster``)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

from overlap.placement import EngineSeat
from overlap.process import ChildProcesses, Peer


class Site(Protocol):
    """Where one engine lives; another engine has another one."""

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        """Start ``python -m module FD`` on that seat and connect to it. Raises the cause when the life is over."""

    def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """What an update says of its weights, as it is true there for as long as the context lasts."""


class Here:
    """The driver's machine."""

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        return await Peer.start(life, title, module, {**environment, **seat.environment})

    def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        return nullcontext(info)
