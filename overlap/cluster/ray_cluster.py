"""A Ray cluster that this driver has joined: who is there, and actors on its nodes. No Ray in here.

Ray lives in a process of its own (``ray_process``), which is called from here and ends with the driver. Where that
process ends, or the head does not answer, the cluster is lost.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from overlap.aio import threaded
from overlap.cluster.addresses import check_address
from overlap.cluster.by_hand import AUTH, token_of
from overlap.cluster.nodes import HeadLost, NodeLost, NodeSilent, RayNodeInfo, answer_within
from overlap.errors import ConfigError
from overlap.process import ChildProcesses, Peer, scratch_directory
from overlap.weights import Brought
from sandbox.errors import SandboxError

JOIN_S, LOOKING_S, LOOK_S, LEAVE_S, KILL_S = 60.0, 60.0, 1.0, 5.0, 2.0
_PATIENCE = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
"""Ray ends a process whose head has been silent for so long: after we have told of it."""
MODULE = "overlap.cluster.ray_process"
_FIELD = "cluster.address"


class RayCluster:
    """The cluster at ``address`` ("host:port"). What works over it enters it each for itself, also side by side; the
    last one that leaves ends the connection. ``log`` takes what Ray prints.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.log: Path | None = None
        self.unauthenticated = os.environ.get(AUTH[0]) == "disabled"
        self._users = 0
        self._joined: asyncio.Task[Peer] | None = None
        self._watches: asyncio.Task[HeadLost] | None = None
        self._leaves: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()

    async def enter(self) -> None:
        """Join, unless that is done. Raises ConfigError; also then ``leave`` is due."""
        self._users += 1
        if self._joined is None:
            access, self._stack = self._access(), AsyncExitStack()
            self._joined = asyncio.create_task(self._join(access, self._stack), name="join the cluster")
        await asyncio.shield(self._joined)

    async def _join(self, access: dict[str, str], stack: AsyncExitStack) -> Peer:
        """The process that Ray lives in. Raises ConfigError."""
        check_address(_FIELD, self.address)
        scratch, _ = await stack.enter_async_context(threaded(scratch_directory()))
        life = ChildProcesses(
            "ray", lambda text: HeadLost(f"Ray on this machine has ended ({text})"), scratch, self.log
        )
        stack.push_async_callback(life.close)
        peer = await Peer.start(life, "Ray's process", MODULE, _PATIENCE | access)
        stack.push_async_callback(_end, life, peer)
        try:
            await answer_within(peer.call("join", self.address), JOIN_S)
        except NodeLost as error:
            way_out = f"cannot be joined ({error}): see `overlap cluster status {self.address}`"
            raise ConfigError(_FIELD, self.address, way_out) from None
        return peer

    async def leave(self) -> None:
        """For each that has entered, or tried to; with the last one the connection ends, and every actor with it."""
        self._users -= 1
        if self._users or self._joined is None:
            return
        tasks = [task for task in (self._joined, self._watches) if task is not None]
        self._joined = self._watches = None
        self._leaves = asyncio.create_task(_leave(tasks, self._stack), name="leave the cluster")
        await asyncio.shield(self._leaves)  # who is cancelled over it leaves all the same

    async def lost(self) -> HeadLost:
        """Wait until the head is lost, and say how. For whoever has entered; cancelled when the last one leaves."""
        if self._watches is None:
            self._watches = asyncio.create_task(self._watch(), name="watch the head")
        return await asyncio.shield(self._watches)

    async def _watch(self) -> HeadLost:
        while True:
            try:
                await self.look()
            except HeadLost as error:
                return error
            await asyncio.sleep(LOOK_S)

    async def look(self) -> list[RayNodeInfo]:
        """Every node that is there or was. Raises HeadLost where the head does not answer, or takes us for dead."""
        places: list[RayNodeInfo] = await self._asked("look")
        if any(place.here and not place.alive for place in places):
            raise HeadLost("Ray on this machine has ended, or was cut off from the head")
        return places

    async def free(self) -> dict[str, int]:
        """Whole cores of each node, by its key, that nobody has taken of what Ray counts. Raises HeadLost."""
        rest: dict[str, int] = await self._asked("free")
        return rest

    async def actor(self, place: RayNodeInfo, make: Callable[[], Any], close_s: float, *, cpus: int = 0) -> RayActor:
        """An actor on that node with what ``make`` makes there, which closes within ``close_s``. Of what Ray counts
        there it takes ``cpus``. Raises HeadLost.
        """
        number: int = await self._asked("make", place.key, pickle.dumps(make), close_s, cpus)
        return RayActor(self._ray, number, close_s)

    async def _asked(self, name: str, *args: Any) -> Any:
        try:
            return await answer_within(self._ray.call(name, *args), LOOKING_S)
        except NodeSilent as error:
            raise HeadLost(f"its head at {self.address} does not answer ({error})") from None

    @property
    def _ray(self) -> Peer:
        if self._joined is None or not self._joined.done():
            raise HeadLost("the cluster was left")
        return self._joined.result()

    def _access(self) -> dict[str, str]:
        """What Ray is told of tokens: what the environment says, or that of the node that was started here."""
        given = {name: value for name in AUTH if (value := os.environ.get(name))}
        if not given and (path := token_of(self.address)) is not None:
            return {AUTH[0]: "token", AUTH[2]: str(path)}
        if given.get(AUTH[0]) not in ("token", "disabled"):
            way_out = "the driver has no token for it: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH; or, in a "
            way_out += "network where everybody may run anything, RAY_AUTH_MODE=disabled"
            raise ConfigError(_FIELD, self.address, way_out)
        return given


class RayActor:
    """An actor of ours on a node."""

    def __init__(self, ray: Peer, number: int, close_s: float) -> None:
        self._ray, self._number, self._close_s = ray, number, close_s
        self._nudges: set[asyncio.Task[Any]] = set()

    async def ask(self, method: str, *args: Any) -> Any:
        """What a method of the actor says. Raises NodeLost, SandboxError; may wait for ever."""
        return await self._ray.call("ask", self._number, method, *args)

    async def call(self, name: str, *args: Any) -> Any:
        """What a method of its thing says; raises as ``ask`` does."""
        return await self.ask("call", name, *args)

    def nudge(self) -> None:
        """Call ``nudge`` of its thing, without waiting."""
        task = asyncio.create_task(self._nudge(), name="nudge")
        self._nudges.add(task)
        task.add_done_callback(self._nudges.discard)

    async def _nudge(self) -> None:
        with suppress(NodeLost, SandboxError):
            await self.call("nudge")

    async def bring(self, update: int, path: str, version: int, size: int) -> Brought:
        """Put weights into the memory of its node: see ``RayProcess.bring``."""
        brought: Brought = await self._ray.call("bring", self._number, update, path, version, size)
        return brought

    async def end(self) -> bool:
        """Have it close what it has, then end it. Whether all that it had has ended for sure: so it has where the actor
        was gone before.
        """
        for task in self._nudges:
            task.cancel()
        try:
            await answer_within(self.ask("close"), self._close_s)
        except (NodeSilent, SandboxError):
            return False
        except NodeLost:
            pass
        finally:  # also when we are cancelled
            with suppress(NodeLost):  # where Ray hears nothing either, it has ended
                await answer_within(self._ray.call("kill", self._number), KILL_S)
        return True


async def _leave(tasks: list[asyncio.Task[Any]], stack: AsyncExitStack) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stack.aclose()


async def _end(life: ChildProcesses, peer: Peer) -> None:
    with suppress(NodeLost):
        await answer_within(peer.call("leave"), LEAVE_S)
    await life.close()
    await peer.close()
