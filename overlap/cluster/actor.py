"""What Ray runs for us on a node: an actor that has one thing of ours, and hands calls on to it. No Ray in here.

An actor that its driver does not call has no driver any more, whatever Ray believes, and ends: of coroutines it looks
itself, and before its first call, when none runs, a thread does.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from contextlib import suppress
from typing import Any

from overlap.clock import now
from overlap.cluster.nodes import GRACE_S, HELLO_S, ORPHAN_S, code_digest
from overlap.process import read_proc

_RAYS_OWN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Ray sets these for its workers: an actor that asks for nothing sees no GPU, and has one thread."""


class NodeActor:
    """``made`` is the pickle of what makes its thing, called where it shall live; that closes within ``close_s``."""

    def __init__(self, made: bytes, close_s: float) -> None:
        self._close_s, self._authenticated = close_s, forget_ray()
        self._alone = threading.Timer(ORPHAN_S, os._exit, [1])
        self._alone.daemon = True
        self._alone.start()
        self._watching: asyncio.Task[None] | None = None
        self._busy, self._called_s = 0, 0.0
        as_before_ray()
        self._thing = pickle.loads(made)()

    async def identity(self) -> tuple[bool, str]:
        """Whether its Ray asks for a token, and the digest of its code. Called first."""
        self._alone.cancel()
        self._called_s = now()
        self._watching = self._watching or asyncio.create_task(self._watch(), name="watch the driver")
        return self._authenticated, code_digest()

    async def call(self, name: str, *args: Any) -> Any:
        """What that method of its thing says."""
        self._called_s = now()
        self._busy += 1
        try:
            return await getattr(self._thing, name)(*args)
        finally:
            self._busy -= 1
            self._called_s = now()

    async def close(self) -> None:
        """End all that its thing has started."""
        await self._thing.close()

    async def _watch(self) -> None:
        """While a call goes on its driver makes no other, perhaps: that may be long."""
        while (left := self._called_s + (HELLO_S if self._busy else ORPHAN_S) - now()) > 0:
            await asyncio.sleep(min(left, ORPHAN_S))
            await asyncio.sleep(GRACE_S)  # a machine that stood still reads first what came meanwhile
        with suppress(TimeoutError):
            async with asyncio.timeout(self._close_s):
                await self.close()
        os._exit(1)  # what is left is ended by the sandbox's own processes, and by the reaper


def forget_ray() -> bool:
    """Take all that this process was told of the cluster out of its environment: nothing that it starts shall know how
    to get in. Whether there was a token.
    """
    authenticated = os.environ.get("RAY_AUTH_MODE") == "token"
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    return authenticated


def as_before_ray() -> None:
    """Set what Ray has changed for this process to what it was when the node was started."""
    raylet = dict(entry.partition(b"=")[::2] for entry in read_proc(os.getppid(), "environ").split(b"\0"))
    for name in _RAYS_OWN:
        os.environ.pop(name, None)
        if (value := raylet.get(name.encode())) is not None:
            os.environ[name] = value.decode()
