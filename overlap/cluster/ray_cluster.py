"""A Ray cluster that this driver has joined: which nodes are there, and actors on them. No Ray in here.

Ray lives in a process of its own (``ray_process``), which is called from here and ends with the driver. Where that
process ends, or the head does not answer, the cluster is lost.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from overlap.cluster.access import AUTH, HEALTH, check_address, token_of
from overlap.cluster.nodes import HeadLost, NodeLost, NodeRefused, NodeSilent, RayNodeInfo, answer_within, code_digest
from overlap.core.aio import threaded
from overlap.core.errors import ConfigError
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses
from overlap.process.scratch import scratch_directory
from overlap.weights.pieces import Brought
from sandbox.errors import SandboxError

JOIN_S, LOOKING_S, LOOK_S, LEAVE_S, KILL_S = 60.0, 60.0, 1.0, 5.0, 2.0
MODULE = "overlap.cluster.ray_process"
_FIELD = "cluster.address"


class RayCluster:
    """The cluster at ``address`` ("host:port"). Each user enters it for itself, also concurrently; the last one that
    leaves ends the connection and every actor. When the cluster is lost, all calls that wait for it raise HeadLost.
    ``log`` takes Ray's output.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.log: Path | None = None
        self._users = 0
        self._joined: asyncio.Future[Peer] | None = None
        self._stays: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RayCluster:
        """Join, unless that is done. Raises ConfigError."""
        self._users += 1
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self)
            if self._joined is None:
                access, self._joined = self._access(), asyncio.get_running_loop().create_future()
                self._stays = asyncio.create_task(self._stay(access, self._joined), name="stay in the cluster")
                self._stays.add_done_callback(partial(_refuse, self._joined))
            await asyncio.shield(self._joined)
            stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._users -= 1
        if not self._users and self._joined is not None and self._stays is not None:
            self._joined = None
            self._stays.cancel()
            await asyncio.wait([self._stays])  # a cancelled caller leaves all the same

    async def _stay(self, access: dict[str, str], joined: asyncio.Future[Peer]) -> None:
        """Join, and watch the head: until that is lost, or this is cancelled."""
        async with AsyncExitStack() as stack:
            life, peer = await self._join(access, stack)
            joined.set_result(peer)
            try:
                while True:
                    await self.look()
                    await asyncio.sleep(LOOK_S)
            except HeadLost as error:
                life.fail(error)
                await asyncio.Event().wait()

    async def _join(self, access: dict[str, str], stack: AsyncExitStack) -> tuple[ChildProcesses, Peer]:
        """The process that Ray lives in. Raises ConfigError."""
        check_address(_FIELD, self.address)
        scratch, _ = await stack.enter_async_context(threaded(scratch_directory()))
        life = ChildProcesses(
            "ray", lambda text: HeadLost(f"Ray on this machine has ended ({text})"), scratch, self.log
        )
        stack.push_async_callback(life.close)
        peer = await Peer.start(life, "Ray's process", MODULE, HEALTH | access)
        stack.push_async_callback(peer.close)
        stack.push_async_callback(_leave, peer)
        try:
            await answer_within(peer.call("join", self.address), JOIN_S)
        except NodeLost as error:
            way_out = f"cannot be joined ({error}): see `overlap cluster status {self.address}`"
            raise ConfigError(_FIELD, self.address, way_out) from None
        return life, peer

    async def look(self) -> list[RayNodeInfo]:
        """Every node that is there or was. Raises HeadLost where the head does not answer, or takes us for dead."""
        places: list[RayNodeInfo] = await self._asked("look")
        if any(place.here and not place.alive for place in places):
            raise HeadLost("Ray on this machine has ended, or was cut off from the head")
        return places

    async def actor(self, place: RayNodeInfo, make: Callable[[], Any], close_s: float, *, cpus: int = 0) -> RayActor:
        """Start an actor on that node with the object that ``make`` makes there, which closes within ``close_s``. It
        takes ``cpus`` of the cores that Ray counts there. Raises HeadLost.
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
        """Return Ray's variables for tokens: those of the environment, or of the node that was started here."""
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

    async def check(self) -> None:
        """Raises NodeRefused where its node cannot be used: it has other code, or lets everybody in."""
        asks, code = await self._ray.call("ask", self._number, "identity")
        if not asks and os.environ.get(AUTH[0]) != "disabled":
            raise NodeRefused("its Ray lets everybody in; join it with RAY_AUTH_MODE=disabled only where that is meant")
        if code != code_digest():
            raise NodeRefused("another version of this package, or of Python, is installed there")

    async def call(self, name: str, *args: Any) -> Any:
        """Return the result of a method of its object. Raises NodeLost, SandboxError; may wait for ever."""
        return await self._ray.call("ask", self._number, "call", name, *args)

    def nudge(self) -> None:
        """Call ``nudge`` of its object; a failure is not reported."""
        self._ray.send("ask", self._number, "call", "nudge")

    async def bring(self, update: int, path: str, version: int, size: int) -> Brought:
        """Put weights into the memory of its node: see ``RayProcess.bring``."""
        brought: Brought = await self._ray.call("bring", self._number, update, path, version, size)
        return brought

    async def end(self) -> bool:
        """Have the actor close its object, then end it. Return whether all that it had has certainly ended, as it has
        where the actor was gone before.
        """
        try:
            await answer_within(self.call("close"), self._close_s)
            return True
        except (NodeLost, SandboxError) as error:
            return not isinstance(error, NodeSilent | SandboxError)
        finally:  # also when we are cancelled
            with suppress(NodeLost):  # where Ray hears nothing either, it has ended
                await answer_within(self._ray.call("kill", self._number), KILL_S)


def _refuse(joined: asyncio.Future[Peer], stays: asyncio.Task[None]) -> None:
    """Raise the error of a cluster that could not be joined in every waiting call."""
    if not (stays.cancelled() or joined.done()):
        joined.set_exception(stays.exception() or HeadLost("the cluster was left"))


async def _leave(peer: Peer) -> None:
    with suppress(NodeLost):
        await answer_within(peer.call("leave"), LEAVE_S)
