"""A cluster of nodes that come and go, whose agents are in this process."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from overlap.cluster.agent import Hosted
from overlap.cluster.files import write_piece
from overlap.cluster.fleet import RayFleet
from overlap.cluster.nodes import HeadLost, NodeLost, RayNodeInfo, code_digest
from overlap.cluster.ray_cluster import RayActor, RayCluster
from overlap.config.fields import Config
from overlap.config.rollout import RolloutConfig
from overlap.core.aio import race
from overlap.placement.devices import Devices, NodeDevices, devices_here, free_memory
from overlap.placement.node_seats import place_over
from overlap.placement.seats import EngineSeat
from overlap.weights.pieces import Brought, Pieces

CFG = Config(rollout=RolloutConfig(replicas=2))


class Place(RayNodeInfo):
    """A node with a short name."""

    @property
    def name(self) -> str:
        return self.key


class Still(Hosted):
    """Of a process that says nothing, on a machine with a disk of its own. ``damages``: weights on their way."""

    def __init__(self, name: str, node: NodeDevices) -> None:
        super().__init__(name)
        self.node, self.environment, self.shares, self.full = node, dict[str, str](), False, False
        self.ran: list[Any] = []
        self.damages, self.sent, self.slow_s = False, 0, 0.0

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        self.environment = dict(environment)
        return os.path.join(self._stack.enter_context(tempfile.TemporaryDirectory()), "files")

    async def exchange(self, data: bytes, wait_s: float) -> tuple[bytes, bytes, str]:
        await asyncio.sleep(wait_s)
        return b"", b"", ""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        self.ran.append(function)
        if function in (devices_here, free_memory):
            return self.node.devices if function is devices_here else self.node.host
        if function is os.access and not self.shares:
            return False
        return (
            "No space left on device" if function is write_piece and self.full else await super().run(function, *args)
        )

    async def fill(self, update: int, at: int, length: int, data: Any, digest: bytes, whole: bool) -> bool:
        await asyncio.sleep(self.slow_s)
        self.sent += len(data)
        return await super().fill(update, at, length, self._through(data), digest, whole)

    async def changed(self, *asked: Any) -> tuple[bytes | bytearray, bytes, bool] | None:
        if (answer := await super().changed(*asked)) is None:
            return None
        self.sent += len(answer[0])
        return self._through(answer[0]), *answer[1:]

    def _through(self, data: bytes | bytearray) -> bytes | bytearray:
        return bytes([data[0] ^ 1]) + data[1:] if self.damages else data


class Actor(RayActor):
    """An actor on a node, whose cluster's head may be lost; ``lost`` or ``sure`` at its end or not."""

    def __init__(self, node: str, thing: Any, pieces: Pieces, code: str, head_lost: asyncio.Event) -> None:
        self.node, self.thing, self._pieces, self._code, self._head_lost = node, thing, pieces, code, head_lost
        self._ray, self._number = SimpleNamespace(call=self._called), 7
        self.lost, self.sure, self.ends = False, True, 0

    async def _called(self, _: str, number: int, method: str, *args: Any) -> Any:
        if self.lost:
            raise NodeLost("the actor died")
        if method == "identity":
            return True, self._code
        asked, _ = await race(getattr(self.thing, args[0])(*args[1:]), self._head_lost.wait())
        if self._head_lost.is_set():
            raise HeadLost("its head does not answer")
        try:
            return asked.result()
        except Exception as error:
            raise NodeLost(f"its agent raised {type(error).__name__}: {error}") from None

    def nudge(self) -> None:
        self.thing._some.set()

    async def bring(self, update: int, path: str, version: int, size: int) -> Brought:
        return await self._pieces.bring(self.call, update, path, version, size)

    async def end(self) -> bool:
        self.ends += 1
        await self.thing.close()
        return self.sure


class Cluster(RayCluster):
    """Nodes of so many cores, or GPUs on all but the first, which is the driver's. ``real``: their processes are.

    Those that are ``refused`` have other code; of the GPUs of each its owner has ``kept`` some from Ray.
    """

    def __init__(self, *cores: int, gpus: int = 0, real: bool = False) -> None:
        super().__init__("10.0.0.0:6379")
        self.nodes = {f"n{i}": self.node(i, count, gpus if i else 0) for i, count in enumerate(cores)}
        self.actors: list[Actor] = []
        self.surveyed: list[str] = []
        self.refused, self.kept = set[str](), 0
        self._gone: dict[str, NodeDevices] = {}
        self.puts: list[int] = []
        self.pieces = Pieces(self._put)
        self.users, self._real, self.head_lost = 0, real, asyncio.Event()

    @staticmethod
    def node(number: int, cores: int, gpus: int = 0) -> NodeDevices:
        devices = Devices.gpus(gpus) if gpus else Devices(cores=tuple(range(cores)))
        return NodeDevices(f"n{number}", f"10.0.0.{number}", devices, here=number == 0)

    async def _put(self, data: bytes | bytearray) -> bytes | bytearray:
        self.puts.append(len(data))
        return data

    async def __aenter__(self) -> RayCluster:
        self.users += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.users -= 1

    async def look(self) -> list[RayNodeInfo]:
        if self.head_lost.is_set():
            raise HeadLost("its head does not answer")
        self._gone |= self.nodes
        return [
            Place(
                name,
                at.address,
                name in self.nodes,
                max(0, len(at.devices.names) - self.kept),
                here=at.here,
            )
            for name, at in self._gone.items()
        ]

    async def actor(self, place: RayNodeInfo, make: Callable[[], Any], close_s: float, *, cpus: int = 0) -> RayActor:
        thing = make()
        thing = thing if self._real else Still(thing._name, self.nodes[place.name])
        code = "another" if place.name in self.refused else code_digest()
        made = Actor(place.name, thing, self.pieces, code, self.head_lost)
        if thing._name == "survey":
            self.surveyed.append(place.name)
        else:
            self.actors.append(made)
        return made


def seats(cluster: Cluster, cfg: Config = CFG) -> tuple[EngineSeat, ...]:
    return place_over(cfg, list(cluster.nodes.values())).engines


def fleet_of(cluster: Cluster, cfg: Config = CFG, tell: Callable[[str], None] = print, **how: Any) -> RayFleet:
    return RayFleet(cfg, cluster, seats(cluster, cfg), tell, **how)
