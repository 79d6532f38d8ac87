"""The nodes of a cluster for a run with processes on them, called like local processes. This module imports no Ray.

    Peer ──bytes of calls──▶ FarProcess ──exchange──▶ the node: Hosted ──▶ the process
    Peer ◀─bytes of replies─ reader ◀────────────────┘

A node that answers nothing for ``GONE_S``, or a cluster that is lost, ends the life, as the death of the process does:
the node gets no more calls, and the process there ends with its agent, which ends when it is not called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from overlap.cluster.agent import CALL_BYTES, Hosted, same_policy
from overlap.cluster.nodes import BEAT_S, GRACE_S, ORPHAN_S, HeadLost, NodeLost, NodeRefused, RayNodeInfo, answer_within
from overlap.cluster.ray_cluster import LOOK_S, RayActor, RayCluster
from overlap.config.fields import Config
from overlap.core.aio import together
from overlap.core.clock import now
from overlap.core.errors import ClusterLost, ConfigError
from overlap.placement.devices import NodeDevices, devices_here, free_memory
from overlap.placement.node_seats import moved_seat
from overlap.placement.seats import EngineSeat
from overlap.policy.check import policy_digest
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses, log_hint

ASK_S = 90.0
"""Seconds for a call that an agent serves once: begin, start the process, take a piece of a file."""
GONE_S = 10.0
"""Seconds without an answer after which a node is lost."""
PACE_S = 0.05
"""Between two calls: one costs the driver half a millisecond, and what comes meanwhile goes together."""
CLOSE_S = 12.0
"""A killed process of many GiB ends within 10 s."""
NODE_S = 1800.0
"""Seconds that an engine waits for a node."""
KNOWN_S = 20.0
"""Seconds for which a node's answer about its devices, or why it cannot be used, is kept."""
REST_S = ORPHAN_S + GRACE_S + 45.0
"""A node that was silent when its engine was to end has it for no longer than this; Ray needs 65 s, as it comes, to see
that a node is gone."""


class RayFleet:
    """``engines`` begin on the nodes of their seats, and move to others where these are gone; ``fits`` says whether one
    has enough memory where it would move to.
    """

    def __init__(
        self,
        cfg: Config,
        cluster: RayCluster,
        engines: Sequence[EngineSeat],
        tell: Callable[[str], None],
        fits: Callable[[EngineSeat, NodeDevices], bool] = lambda seat, node: True,
    ) -> None:
        self._cfg, self.cluster, self.tell, self._fits = cfg, cluster, tell, fits
        self._homes = {seat.node for seat in engines}
        self._rests: dict[str, float] = {}
        self._known: dict[str, tuple[NodeDevices | str, float]] = {}
        self.places: dict[str, RayNodeInfo] = {}
        """By their names."""
        self.moved: dict[int, str] = {}
        """Nodes of the engines that have moved, by the engine's index."""
        self.ranks: Collection[str] = ()
        """Nodes of the learner ranks: no engine moves to GPUs there."""

    async def living(self) -> list[str]:
        """Names of the nodes that are alive and not at rest. Raises HeadLost where the cluster is lost."""
        there = {place.name: place for place in await self.cluster.look() if place.alive}
        self.places |= there
        return [name for name in there if self._rests.get(name, 0.0) <= now()]

    def rest(self, name: str) -> None:
        """Leave a node alone for ``REST_S``, because it is unknown whether the processes there have ended."""
        self._rests[name] = now() + REST_S

    async def about(self, name: str) -> NodeDevices | None:
        """Devices and memory of a node for engines and ranks; None where it cannot be used. Raises HeadLost."""
        if (known := self._known.get(name)) is None or known[1] <= now():
            said = await about(self.cluster, self.places[name], self._cfg.run.device)
            known = self._known[name] = said, now() + KNOWN_S
        return known[0] if isinstance(known[0], NodeDevices) else None

    async def take(self, seat: EngineSeat) -> EngineSeat:
        """The seat for an engine that begins: its own or one elsewhere. Raises NodeLost where none is for long."""
        until, told = now() + NODE_S, False
        while (found := await self._found(seat)) is None:
            if now() > until:
                raise NodeLost(f"no node had room for it within {NODE_S:g} s")
            if not told:
                self.tell(f"engine {seat.index} waits for node {seat.node}, or one as large that has no engine")
                told = True
            await asyncio.sleep(LOOK_S)
        if found.node != seat.node:
            self.tell(f"engine {seat.index} moves from node {seat.node} to node {found.node}")
        return found

    async def _found(self, seat: EngineSeat) -> EngineSeat | None:
        names = await self.living()
        if seat.node in names:
            self.moved.pop(seat.index, None)
            return seat
        for name in names:
            node = await self.about(name) if self._is_free(name, seat) else None
            found = None if node is None or node.here else moved_seat(self._cfg, seat, node)
            if node and found and self._fits(found, node) and self._is_free(name, seat):  # still free
                self.moved[seat.index] = name
                return found
        return None

    def _is_free(self, name: str, seat: EngineSeat) -> bool:
        others = {node for index, node in self.moved.items() if index != seat.index}
        return not (name in others or name in self._homes or (seat.devices and name in self.ranks))


class FarProcess:
    """A process of ``life`` on a node, which a ``Peer`` reads from and writes to. Each of the ``policies`` must be on
    the node as it is here. ``folder`` is a path on the node, not made yet, for files of the process.
    """

    def __init__(self, fleet: RayFleet, node: str, life: ChildProcesses, policies: Sequence[Path]) -> None:
        self._fleet, self.node, self._life, self._policies = fleet, node, life, policies
        self.lost = partial(ending, life, f"the {life.name} on node {node} is lost")
        self.folder = Path()
        self._reader, self._out, self._waits = asyncio.StreamReader(), bytearray(), False

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> Peer:
        """As ``Peer.start``. Raises the cause when the life is over."""
        cluster, place = self._fleet.cluster, self._fleet.places[self.node]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cluster)
            with ending(self._life, f"{title} cannot be started on node {self.node}"):
                agent = agent_on(cluster, place, self._life.name, self._fleet.rest)
                self.actor = await stack.enter_async_context(agent)
                for path in self._policies:
                    if not await self.ask("run", same_policy, path, await asyncio.to_thread(policy_digest, path)):
                        way_out = "put the same one at the same path of every node, or share the path"
                        raise NodeRefused(f"the policy {path} is not there, or has other files: {way_out}")
                there = f"{title} on node {self.node}"
                self.folder = Path(await self.ask("start", there, module, dict(environment)))
            self._stack = stack.pop_all()
        self._carrying = asyncio.create_task(self._carry(), name=f"carry to {self.node}")
        return Peer(self._life, title, self._reader, self)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on the node and return its result. Raises the cause when the life is over."""
        with self.lost():
            return await self.ask("run", function, *args)

    async def ask(self, name: str, *args: Any) -> Any:
        return await answer_within(self.actor.call(name, *args), ASK_S)

    def write(self, data: bytes) -> None:
        self._out += data
        if self._waits:
            self._waits = False
            self.actor.nudge()

    async def drain(self) -> None:
        """Return at once: what was written is buffered until it is sent, without a bound."""

    def close(self) -> None:
        """Nothing: the node is let go when the life is over."""

    async def wait_closed(self) -> None:
        """Until the node has been let go."""
        await asyncio.wait([self._carrying])

    async def _carry(self) -> None:
        try:
            with self.lost():
                await self._exchange()
        except Exception as error:  # why the life is over; else a fault of ours, which ends it
            self._life.fail(error)
        finally:
            await self._stack.aclose()
            self._reader.feed_eof()

    async def _exchange(self) -> NoReturn:
        """Exchange bytes, one call at a time; an agent that does not answer gets no more calls."""
        while True:
            began, piece = now(), bytes(self._out[:CALL_BYTES])
            del self._out[: len(piece)]
            self._waits = not self._out
            asks = self.actor.call("exchange", piece, BEAT_S if self._waits else 0.0)
            replies, printed, death = await answer_within(asks, GONE_S)
            self._waits = False
            self._reader.feed_data(replies)
            if printed and self._life.log is not None:
                with suppress(OSError), self._life.log.open("ab") as log:  # on a full disk it is lost, as here
                    log.write(printed)
            if death:
                self._life.fail(f"{death}{log_hint(self._life.log)}")
            await asyncio.sleep(0 if self._out or len(replies) == CALL_BYTES else began + PACE_S - now())


@contextmanager
def ending(life: ChildProcesses, what: str) -> Iterator[None]:
    """A node that is lost or refuses inside, or weights that cannot be read, end the life, and its cause is raised."""
    try:
        with life.guard():
            yield
    except (NodeLost, NodeRefused, OSError) as error:
        lost = f"the cluster is lost: {error}; over another one the run goes on with --resume"
        life.fail(ClusterLost(lost) if isinstance(error, HeadLost) else f"{what}: {error}")
        life.check()
        raise


@asynccontextmanager
async def agent_on(
    cluster: RayCluster, place: RayNodeInfo, owner: str, unsure: Callable[[str], None] = lambda name: None
) -> AsyncIterator[RayActor]:
    """Hold a ``Hosted`` on the node; ``unsure`` gets the node's name where the agent may not have ended. Raises
    NodeLost, NodeRefused.
    """
    actor = await cluster.actor(place, partial(Hosted, owner), CLOSE_S)
    try:
        await answer_within(actor.check(), ASK_S)
        yield actor
    finally:
        if not await actor.end():
            unsure(place.name)


async def about(cluster: RayCluster, place: RayNodeInfo, device: str) -> NodeDevices | str:
    """Return what a node has for a run with ``run.device`` = ``device``, or why it cannot be used; the lack of a GPU is
    no reason. Raises HeadLost.
    """
    try:
        async with agent_on(cluster, place, "survey") as actor:
            devices = await answer_within(actor.call("run", devices_here, "cpu" if device == "cpu" else "auto"), ASK_S)
            memory = await answer_within(actor.call("run", free_memory), ASK_S)
    except (NodeLost, NodeRefused) as error:
        if isinstance(error, HeadLost):
            raise
        return str(error)
    if not place.here:  # what its owner keeps from Ray is not ours either
        devices = replace(devices, names=devices.names[: place.gpus])
    return NodeDevices(place.name, place.address, devices, memory, here=place.here)


async def survey(cluster: RayCluster, device: str, tell: Callable[[str], None]) -> list[NodeDevices]:
    """Call ``about`` for all nodes and report each that cannot be used. Raises HeadLost, and ConfigError where this
    machine's node is one of them.
    """
    async with cluster:
        places = [place for place in await cluster.look() if place.alive]
        said = await together(*(about(cluster, place, device) for place in places))
    for place, node in zip(places, said, strict=True):
        if isinstance(node, str):
            tell(f"node {place.name} is not used: {node}")
    found = [node for node in said if isinstance(node, NodeDevices)]
    if not any(node.here for node in found):
        raise ConfigError("cluster.address", cluster.address, "this machine's own node cannot be used: see above")
    return found
