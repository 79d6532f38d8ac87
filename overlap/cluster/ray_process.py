"""The process that a driver's Ray lives in: ``python -m overlap.cluster.ray_process FD`` serves ``RayCluster``'s calls.

Ray may wait for ever for a head that is gone, and ends the process that it lives in when its raylet does. Here it can
be killed, and its end is an event like any other. Actors belong to this process: they end with it, however it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray
from ray import exceptions
from ray._private import state  # no public name says what is free on a node
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from overlap.cluster.access import AUTH, NO_HEAD, admitted
from overlap.cluster.agent import NodeActor
from overlap.cluster.nodes import HeadLost, NodeLost, NodeSilent, RayNodeInfo, answer_within
from overlap.core.errors import ConfigError, OverlapError, one_line
from overlap.process import process_tree
from overlap.process.calls import CallServer, serve_until_hung_up
from overlap.process.run_environment import PARENT
from overlap.weights.pieces import Brought, Pieces
from sandbox.errors import SandboxError

T = TypeVar("T")
CALLS = 64
"""Calls that an actor serves at a time: one that waits, and a few that do not."""
PUT_S, FILL_S = 60.0, 300.0
"""Seconds at most to put a piece of the weights into the object store, and to send it to a node."""
UNIMPLEMENTED = 12
"""Status code of a gRPC server for a call that it does not know."""


class RayProcess(CallServer):
    """Serves the calls of ``RayCluster``. Actors have numbers."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer, (OverlapError, SandboxError, OSError))
        self._actors: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._pieces = Pieces(put)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(256))  # Ray's calls may block for ever

    async def join(self, address: str) -> None:
        """Raises ConfigError where no head is there, or none that lets us in."""
        await asyncio.to_thread(_join, address)

    async def leave(self) -> None:
        """End the connection, and every actor with it."""
        await asyncio.to_thread(ray.shutdown)

    async def look(self) -> list[RayNodeInfo]:
        """Every node that is there or was. Raises HeadLost."""
        here = ray.get_runtime_context().get_node_id()
        nodes, rest = await _asked(lambda: (ray.nodes(), state.available_resources_per_node()))
        return [_place(node, rest, here) for node in nodes]

    async def make(self, key: str, made: bytes, close_s: float, cpus: int) -> int:
        """An actor on that node, which takes ``cpus`` of what Ray counts there. Raises HeadLost."""
        there = NodeAffinitySchedulingStrategy(key, soft=False)
        options = {"num_cpus": cpus, "max_restarts": 0, "max_concurrency": CALLS, "scheduling_strategy": there}
        actor = await _asked(lambda: ray.remote(NodeActor).options(**options).remote(made, close_s))
        number = next(self._numbers)
        self._actors[number] = actor
        return number

    async def ask(self, number: int, method: str, *args: Any) -> Any:
        """Return the result of an actor's method. Raises SandboxError where the method did, NodeLost for an actor that
        is gone or failed, and NodeSilent for one that cannot be reached now.
        """
        if (actor := self._actors.get(number)) is None:
            raise NodeLost("it was ended")
        try:
            return await getattr(actor, method).remote(*args)
        except (OSError, exceptions.RayError) as error:
            raise _fault_of(error) from None

    async def kill(self, number: int) -> None:
        """End an actor at once. Raises HeadLost."""
        if (actor := self._actors.pop(number, None)) is not None:
            await _asked(lambda: ray.kill(actor))

    async def bring(self, number: int, update: int, path: str, version: int, size: int) -> Brought:
        """Copy weights from ``path`` in this machine's memory into that of an actor's node. Raises OSError too."""

        async def ask(name: str, *args: Any) -> Any:
            return await answer_within(self.ask(number, "call", name, *args), FILL_S)

        return await self._pieces.bring(ask, update, path, version, size)


async def put(data: bytes | bytearray) -> Any:
    """A reference to these bytes in the object store, as an array that is read there without a copy."""
    import numpy

    array, what = numpy.frombuffer(data, numpy.uint8), "weights cannot be put into Ray's object store on this machine"
    return await answer_within(_asked(lambda: ray.put(array), NodeLost, what), PUT_S)


def _join(address: str) -> None:
    wanted = os.environ[AUTH[0]]
    try:
        mode, _ = admitted(address)
        if mode == wanted:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            return
        why = "asks for another token than the driver's: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to that"
        if mode:
            why = "lets everybody in, without a token: set RAY_AUTH_MODE=disabled where that is meant"
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        text = one_line(error, 300)  # of versions that differ all lines, for they say which
        text = text if text.startswith("Version mismatch") else _last_line(error)
        no_head = isinstance(error, exceptions.RpcError) and error.rpc_code == UNIMPLEMENTED
        why = NO_HEAD if no_head else f"cannot be joined ({text}): see `overlap cluster status {address}`"
    raise ConfigError("cluster.address", address, why)


async def _asked(ask: Callable[[], T], lost: type[NodeLost] = HeadLost, what: str = "its head does not answer") -> T:
    """Return Ray's answer. Raises ``lost``; waits for as long as its driver does."""
    try:
        return await asyncio.to_thread(ask)
    except (OSError, RuntimeError, exceptions.RayError) as error:
        raise lost(f"{what} ({_last_line(error)})") from None


def _fault_of(error: OSError | exceptions.RayError) -> Exception:
    """Return the error that a call's failure means for its actor."""
    if not isinstance(error, exceptions.RayTaskError):
        silent = isinstance(error, exceptions.ActorUnavailableError)
        return (NodeSilent if silent else NodeLost)(_last_line(error))
    cause = error.cause
    if isinstance(cause, SandboxError):
        return cause
    return NodeLost(f"its agent raised {type(cause).__name__}: {cause}")


def _last_line(error: BaseException) -> str:
    """The line that matters: the last one where an actor could not be made, for a traceback is before it."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if "creation task" in lines[0] else 0].strip()[:200]


def _place(node: dict[str, Any], rest: dict[str, dict[str, float]], here: str) -> RayNodeInfo:
    key, counted = node["NodeID"], node.get("Resources", {})
    return RayNodeInfo(
        key,
        node["NodeManagerAddress"],
        bool(node["Alive"]),
        gpus=int(counted.get("GPU", 0)),
        cpus=int(counted.get("CPU", 0)),
        free=int(rest.get(key, {}).get("CPU", 0)),  # Ray does not name what is used up
        here=key == here,
    )


if __name__ == "__main__":
    process_tree.bind_to_parent(int(os.environ[PARENT]))
    serve_until_hung_up(RayProcess)
