"""A fleet of nodes that come and go, and agents on them that keep the weights that they are given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from overlap.cluster.far_peer import ProcessAgent
from overlap.cluster.hosted import Delivery
from overlap.cluster.nodes import HeadLost, NodeLost, NodeRefused
from overlap.cluster.pieces import Brought, Pieces
from overlap.config import Config, RolloutConfig
from overlap.placement import Devices, EngineSeat, NodeDevices, place_over
from overlap.weights.copies import WeightCopy

CFG = Config(rollout=RolloutConfig(replicas=2))


async def _never(data: bytes) -> bytes:
    raise AssertionError("no weights are asked for")


class Agent:
    """A host of a process that says nothing; keeps the weights that it is given."""

    def __init__(self, name: str, closed: Callable[[bool], None] = lambda sure: None) -> None:
        self.name, self._closed = name, closed
        self.environment: Mapping[str, str] = {}
        self.sure, self.lost, self.slow = True, False, 0.001
        self.copy: WeightCopy | None = None
        self.damages = False
        self.fills, self.pieces = list[int](), Pieces(_never)

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        self.environment = environment
        return ""

    async def exchange(self, data: bytes, log: int, wait_s: float) -> Delivery:
        await asyncio.sleep(wait_s)
        return Delivery()

    def nudge(self) -> None:
        return None

    async def bring(self, update: int, path: str, version: int, size: int) -> Brought:
        return await self.pieces.bring(self._ask, update, path, version, size)

    async def _ask(self, name: str, *args: Any) -> Any:
        return await getattr(self, name)(*args)

    async def room(self, update: int, size: int) -> tuple[str, dict[int, bytes]]:
        if self.copy is None or self.copy.size != size:
            self.copy = WeightCopy(size)
        return self.copy.path, self.copy.digests.copy()

    async def fill(self, update: int, at: int, length: int, data: bytes, digest: bytes, whole: bool) -> bool:
        if self.lost:
            raise NodeLost("the actor died")
        await asyncio.sleep(self.slow)
        self.fills.append(len(data))
        assert self.copy is not None
        data = b"?" + bytes(data)[1:] if self.damages else data
        return self.copy.fill(at, length, data, digest, whole=whole)

    @property
    def memory(self) -> bytes:
        return Path(self.copy.path).read_bytes() if self.copy is not None else b""

    async def close(self) -> bool:
        self._closed(self.sure)
        return self.sure


class Fleet:
    """Nodes that come and go."""

    def __init__(self, *cores: int) -> None:
        self.nodes = {f"n{i}": self.node(i, count) for i, count in enumerate(cores)}
        self.hosts: list[Agent] = []
        self.puts: list[int] = []
        self.pieces = Pieces(self._put)
        self.users = 0
        self.head_lost = asyncio.Event()
        self.refused: set[str] = set()

    @staticmethod
    def node(number: int, cores: int, gpus: int = 0) -> NodeDevices:
        devices = Devices.gpus(gpus) if gpus else Devices(cores=tuple(range(cores)))
        return NodeDevices(f"n{number}", f"10.0.0.{number}", devices, here=number == 0)

    async def _put(self, data: bytes) -> bytes:
        self.puts.append(len(data))
        return data

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    async def lost(self) -> HeadLost:
        await self.head_lost.wait()
        return HeadLost("its head does not answer")

    async def alive(self) -> Sequence[str]:
        return list(self.nodes)

    async def about(self, name: str) -> NodeDevices:
        if name in self.refused:
            raise NodeRefused("another version")
        return self.nodes[name]

    def host(self, name: str, owner: str, closed: Callable[[bool], None]) -> ProcessAgent:
        self.hosts.append(Agent(name, closed))
        self.hosts[-1].pieces = self.pieces
        return self.hosts[-1]


def seats(fleet: Fleet, cfg: Config = CFG) -> tuple[EngineSeat, ...]:
    return place_over(cfg, list(fleet.nodes.values())).engines
