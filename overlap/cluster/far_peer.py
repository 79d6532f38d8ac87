"""A process of ours on a node, called as one on this machine: the driver's side. No Ray in here.

    Peer ──bytes of calls──▶ FarProcess ──exchange──▶ the node: Hosted ──▶ the process
    Peer ◀─bytes of replies─ reader ◀────────────────┘

A node that says nothing for ``GONE_S``, or a cluster that is lost, ends the life, as the death of the process does: it
is asked nothing any more, and the process there ends with the agent that nobody calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from overlap.aio import together
from overlap.clock import now
from overlap.cluster.fleet import ASK_S, RayFleet, agent_on
from overlap.cluster.hosted import PIECE, same_policy
from overlap.cluster.nodes import BEAT_S, HeadLost, NodeLost, NodeRefused, answer_within
from overlap.errors import ClusterLost
from overlap.policy import policy_digest
from overlap.process import ChildProcesses, Peer

GONE_S = 10.0
"""A node that has answered nothing for so long is lost."""
PACE_S = 0.05
"""Between two calls: one costs the driver half a millisecond, and what comes meanwhile goes together."""


class FarProcess:
    """What a ``Peer`` reads from and writes to: a process of ``life`` on a node, where each of the ``policies`` must be
    as it is here. ``folder`` there, which is not there yet, is for files of the process.
    """

    def __init__(self, fleet: RayFleet, node: str, life: ChildProcesses, policies: Sequence[Path]) -> None:
        self._fleet, self.node, self._life, self._policies = fleet, node, life, policies
        self.lost = partial(ending, life, f"the {life.name} on node {node} is lost")
        self.folder, self._stack = Path(), AsyncExitStack()
        self._reader, self._out, self._waits = asyncio.StreamReader(), bytearray(), False

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> Peer:
        """As ``Peer.start``. Raises the cause when the life is over."""
        fleet = self._fleet
        try:
            await self._stack.enter_async_context(fleet.joined())
            with ending(self._life, f"{title} cannot be started on node {self.node}"):
                agent = agent_on(fleet.cluster, fleet.places[self.node], self._life.name, fleet.rest)
                self.actor = await self._stack.enter_async_context(agent)
                for path in self._policies:
                    if not await self._ask("run", same_policy, path, await asyncio.to_thread(policy_digest, path)):
                        way_out = "put the same one at the same path of every node, or share the path"
                        raise NodeRefused(f"the policy {path} is not there, or has other files: {way_out}")
                self.folder = Path(await self._ask("start", title, module, dict(environment)), "files")
        except BaseException:
            await self._stack.aclose()
            raise
        self._carrying = asyncio.create_task(self._carry(), name=f"carry to {self.node}")
        return Peer(self._life, title, self._reader, self)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function says there. Raises the cause when the life is over."""
        with self.lost():
            return await self._ask("run", function, *args)

    async def _ask(self, name: str, *args: Any) -> Any:
        return await answer_within(self.actor.call(name, *args), ASK_S)

    def write(self, data: bytes) -> None:
        self._out += data
        if self._waits:
            self._waits = False
            self.actor.nudge()

    async def drain(self) -> None:
        """What was written waits here until it is sent, however much it is."""

    def close(self) -> None:
        """Nothing: the node is let go when the life is over."""

    async def wait_closed(self) -> None:
        """Until the node has been let go."""
        await asyncio.wait([self._carrying])

    async def _carry(self) -> None:
        try:
            with self.lost():
                await together(self._exchange(), self._lose_head())
        except Exception as error:  # why the life is over; else a fault of ours, which ends it
            self._life.fail(error)
        finally:
            await self._stack.aclose()
            self._reader.feed_eof()

    async def _lose_head(self) -> NoReturn:
        """Without its head Ray ends all that is on the nodes after a while: the life ends before."""
        raise await self._fleet.cluster.lost()

    async def _exchange(self) -> NoReturn:
        """One call at a time: an agent that does not answer it is asked nothing any more."""
        while True:
            began, piece = now(), bytes(self._out[:PIECE])
            del self._out[: len(piece)]
            self._waits = not self._out
            asks = self.actor.call("exchange", piece, BEAT_S if self._waits else 0.0)
            replies, printed, death = await answer_within(asks, GONE_S)
            self._waits = False
            self._reader.feed_data(replies)
            if printed and self._life.log is not None:
                with suppress(OSError), self._life.log.open("ab") as log:  # on a full disk it is lost, as here
                    log.write(printed)
            if death is not None:
                who, code = death
                self._life.died(f"{who} on node {self.node}", code)
            await asyncio.sleep(0 if self._out or len(replies) == PIECE else began + PACE_S - now())


@contextmanager
def ending(life: ChildProcesses, what: str) -> Iterator[None]:
    """A node that is lost or refuses inside ends the life, and its cause is raised."""
    try:
        with life.guard():
            yield
    except (NodeLost, NodeRefused) as error:
        lost = f"the cluster is lost: {error}; over another one the run goes on with --resume"
        life.fail(ClusterLost(lost) if isinstance(error, HeadLost) else f"{what}: {error}")
        life.check()
        raise
