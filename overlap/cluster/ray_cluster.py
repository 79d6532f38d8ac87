"""A Ray cluster that this driver has joined: who is there, and actors on its nodes. No Ray in here.

Ray lives in a process of its own (``ray_process``), which is called from here and ends with the driver. Where that
process ends, or the head does not answer, the cluster is lost.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from overlap.cluster.addresses import check_address
from overlap.cluster.by_hand import AUTH, token_of
from overlap.cluster.nodes import HeadLost, NodeLost, NodeSilent, RayNodeInfo, answer_within
from overlap.cluster.pieces import Brought
from overlap.errors import ConfigError
from overlap.process import ChildProcesses, Peer, scratch_directory
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
        self._ray: _Ray | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def enter(self) -> None:
        """Join, unless that is done. Raises ConfigError; also then ``leave`` is due."""
        self._users += 1
        if self._ray is None:
            access, self._ray = self._access(), _Ray(self.log)
            self._tasks = {"join": asyncio.create_task(self._ray.join(self.address, access), name="join the cluster")}
        await asyncio.shield(self._tasks["join"])

    async def leave(self) -> None:
        """For each that has entered, or tried to; with the last one the connection ends, and every actor with it."""
        self._users -= 1
        if not self._users and self._ray is not None:
            left, self._ray = self._ray, None
            leaves = asyncio.create_task(left.close(*self._tasks.values()), name="leave the cluster")
            self._tasks = {"leave": leaves}
            await asyncio.shield(leaves)  # who is cancelled over it leaves all the same

    async def lost(self) -> HeadLost:
        """Wait until the head is lost, and say how. For whoever has entered; cancelled when the last one leaves."""
        if "watch" not in self._tasks:
            self._tasks["watch"] = asyncio.create_task(self._watch(), name="watch the head")
        error: HeadLost = await asyncio.shield(self._tasks["watch"])
        return error

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

    async def actor(self, place: RayNodeInfo, make: Callable[[], Any], close_s: float, *, cpus: int = 0) -> RayActor:
        """An actor on that node with what ``make`` makes there, which closes within ``close_s``. Of what Ray counts
        there it takes ``cpus``. Raises HeadLost.
        """
        number: int = await self._asked("make", place.key, pickle.dumps(make), close_s, cpus)
        return RayActor(self._joined, number, close_s)

    async def _asked(self, name: str, *args: Any) -> Any:
        try:
            return await answer_within(self._joined.call(name, *args), LOOKING_S)
        except NodeSilent as error:
            raise HeadLost(f"its head at {self.address} does not answer ({error})") from None

    @property
    def _joined(self) -> _Ray:
        if self._ray is None:
            raise HeadLost("the cluster was left")
        return self._ray

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

    def __init__(self, ray: _Ray, number: int, close_s: float) -> None:
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


class _Ray:
    """The process that Ray lives in. Its end is the loss of the cluster for whoever waits."""

    def __init__(self, log: Path | None) -> None:
        self._log, self._stack = log, ExitStack()
        self._life: ChildProcesses | None = None
        self._peer: Peer | None = None

    async def join(self, address: str, access: dict[str, str]) -> None:
        """Raises ConfigError."""
        check_address(_FIELD, address)
        scratch, _ = self._stack.enter_context(scratch_directory())
        self._life = ChildProcesses("ray", _ended, scratch, self._log)
        self._peer = await Peer.start(self._life, "Ray's process", MODULE, _PATIENCE | access)
        try:
            await answer_within(self._peer.call("join", address), JOIN_S)
        except NodeLost as error:
            way_out = f"cannot be joined ({error}): see `overlap cluster status {address}`"
            raise ConfigError(_FIELD, address, way_out) from None

    async def call(self, name: str, *args: Any) -> Any:
        """Raises what the call raises, and HeadLost when the process ends."""
        if self._peer is None:
            raise HeadLost("the cluster was not joined")
        return await self._peer.call(name, *args)

    async def close(self, *tasks: asyncio.Task[Any]) -> None:
        """End it, behind what works with it."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._life is not None:
            with suppress(NodeLost):
                await answer_within(self.call("leave"), LEAVE_S)
            await self._life.close()
        if self._peer is not None:
            await self._peer.close()
        await asyncio.to_thread(self._stack.close)


def _ended(text: str) -> Exception:
    return HeadLost(f"Ray on this machine has ended ({text})")
