"""A double of the process that Ray lives in: ``python -m ray_stub FD``. Its address says how it behaves."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from overlap.cluster.nodes import NodeLost, RayNodeInfo
from overlap.core.errors import ConfigError, OverlapError
from overlap.process.calls import CallServer, serve_until_hung_up
from overlap.process.process_tree import bind_to_parent
from overlap.process.run_environment import PARENT


class RayStub(CallServer):
    """What is done with it goes to ``ray.log`` beside its scratch directory: see ``done``."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer, (OverlapError,))
        self._how = ""

    async def join(self, address: str) -> None:
        self._how = address.partition(":")[0]
        self._note("join")
        if self._how == "refuses":
            raise ConfigError("cluster.address", address, "asks for another token")
        if self._how == "hangs":
            time.sleep(1000)  # noqa: ASYNC251 - as a process that hangs

    async def leave(self) -> None:
        self._note("leave")

    async def look(self) -> list[RayNodeInfo]:
        if self._how == "silent":
            time.sleep(1000)  # noqa: ASYNC251 - as a process that hangs
        if self._how == "dies":
            os._exit(1)
        return [RayNodeInfo("me", "10.0.0.1", self._how != "cut", 0, here=True), RayNodeInfo("b", "10.0.0.2", True, 0)]

    async def make(self, key: str, made: bytes, close_s: float, cpus: int) -> int:
        return 7

    async def ask(self, number: int, method: str, *args: Any) -> Any:
        if args == ("nudge",):
            self._note("nudge")
        if args == ("close",):
            if self._how == "lost":
                raise NodeLost("the actor died")
            await asyncio.sleep(1000.0 if self._how == "slow" else 0)
        return number, method, args

    async def wait(self) -> None:
        await asyncio.sleep(1000.0)

    async def kill(self, number: int) -> None:
        self._note(f"kill {number}")

    def _note(self, what: str) -> None:
        with open(os.environ["RAY_STUB_DONE"], "a") as file:
            file.write(f"{what}\n")


def done(file: Path) -> list[str]:
    """What was done with it, in order."""
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    bind_to_parent(int(os.environ[PARENT]))
    serve_until_hung_up(RayStub)
