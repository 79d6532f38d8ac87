"""The sites of engines and learner ranks that are on nodes. This module imports no Ray.

brought  ──▶ changes of the weights: for an engine by the object store into the node's memory, of rank 0 to here
saving   ──▶ a path that node and driver share, or a folder there ──▶ files in pieces ──▶ here
loading  ──▶ the same the other way
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from overlap.cluster.files import copy_file, files_in
from overlap.cluster.fleet import REST_S, FarProcess, RayFleet, ending
from overlap.cluster.ray_cluster import LOOK_S
from overlap.core.aio import shielded_thread
from overlap.core.clock import now
from overlap.core.errors import LearnerError
from overlap.generate.service import EngineSite
from overlap.placement.node_seats import reseated
from overlap.placement.seats import EngineSeat, Placement, RankSeat
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses
from overlap.weights.copies import WeightCopy, in_pieces

_OF_A_RANK = re.compile(r"zero_pp_rank_(\d+)_")
"""Files of a saved state that one rank writes, and reads again."""
OTHER = "with what had changed they were other than here"


class FarSite(EngineSite):
    """The site on a node of one engine after the other of one seat."""

    def __init__(self, fleet: RayFleet, *policies: Path) -> None:
        self._fleet, self._policies = fleet, policies
        self._process: FarProcess | None = None
        self._updates = 0

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        async with self._fleet.cluster:
            with ending(life, f"{title} cannot be started"):
                seat = await self._fleet.take(seat)
            self._process = FarProcess(self._fleet, seat.node, life, self._policies)
            return await self._process.start(title, module, {**environment, **seat.environment})

    @asynccontextmanager
    async def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Copy weights from this machine's memory into the node's; yield the info of other transfers unchanged."""
        if "path" not in info or (process := self._process) is None:
            yield info
            return
        self._updates += 1
        with process.lost():
            came = await process.actor.bring(self._updates, str(info["path"]), version, int(info["size"]))
        if came.wrong:
            self._fleet.tell(f"{came.wrong} piece(s) of version {version} went whole to node {process.node}: {OTHER}")
        yield {**info, "path": came.path}


class RankSite:
    """A ``Site`` (see ``overlap.learner``) over nodes, for one learner after the other of a run."""

    def __init__(self, fleet: RayFleet, *policies: Path) -> None:
        self._fleet, self._policies = fleet, policies
        self._processes: dict[int, FarProcess] = {}
        self._seats: Sequence[RankSeat] = ()
        self._weights: WeightCopy | None = None

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        self._processes.clear()
        until = now() + REST_S
        with ending(life, "the learner cannot be placed"):
            async with self._fleet.cluster:
                while (placed := await self._placed(placement)) is None:
                    if now() > until:
                        gone = ", ".join(sorted(set(placement.rank_nodes) - set(await self._fleet.living())))
                        told = f"node {gone} of learner ranks is gone, and no other has a GPU free for each"
                        way_out = "--resume places the run anew on the nodes that are there, with learn.ranks"
                        raise LearnerError(f"{told}: {way_out}")
                    await asyncio.sleep(LOOK_S)
        self._seats = placed.ranks
        self._fleet.ranks = frozenset(placed.rank_nodes)
        for before, after in zip(placement.ranks, placed.ranks, strict=True):
            if before.node != after.node:
                to = f"to node {after.node}" if after.node else "to this machine"
                self._fleet.tell(f"learner rank {before.rank} moves from node {before.node} {to}")
        return placed

    async def _placed(self, placement: Placement) -> Placement | None:
        names = await self._fleet.living()
        if set(placement.rank_nodes) <= set(names):
            return placement
        living = [node for name in names if (node := await self._fleet.about(name))]
        return reseated(placement, living, self._fleet.moved.values() if placement.kind == "cuda" else ())

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        environment = {**environment, **seat.environment}
        if not seat.node:
            return await Peer.start(life, title, module, environment)
        self._processes[seat.rank] = process = FarProcess(self._fleet, seat.node, life, self._policies)
        return await process.start(title, module, environment)

    @asynccontextmanager
    async def saving(self, life: ChildProcesses, folder: Path) -> AsyncIterator[Sequence[Path]]:
        async with self._apart(life, folder) as (apart, folders):
            yield folders
            for process in apart.values():
                for name, size in await process.run(files_in, process.folder):
                    await copy_file(process.folder / name, size, folder / name, read=process.run)

    @asynccontextmanager
    async def loading(self, life: ChildProcesses, folder: Path, *, recut: bool) -> AsyncIterator[Sequence[Path]]:
        async with self._apart(life, folder) as (apart, folders):
            for node, process in apart.items():
                ranks = {seat.rank for seat in self._seats if seat.node == node}
                for name, size in await asyncio.to_thread(files_in, folder):
                    of = _OF_A_RANK.search(name)
                    there = process.folder / name
                    if recut or of is None or int(of[1]) in ranks:
                        await copy_file(folder / name, size, there, write=process.run, where=f" on node {node}")
            yield folders

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        if "path" not in info or (process := self._processes.get(0)) is None:
            return info
        size = int(info["size"])
        copy = self._weights = self._weights or WeightCopy(size)

        async def bring(at: int, length: int) -> None:
            for _ in range(2):  # what has changed, and all of it where the result is not right
                with process.lost():
                    sent = await process.ask("changed", info["path"], at, length, copy.digests.get(at))
                if sent is None or await shielded_thread(copy.fill, at, length, sent[0], sent[1], whole=sent[2]):
                    return
                if not sent[2]:
                    self._fleet.tell(f"a piece of version {version} comes whole from node {process.node}: {OTHER}")
            life.fail(f"weights come from node {process.node} other than they are there")
            life.check()

        await in_pieces(size, bring)
        return {**info, "path": copy.path}

    async def close(self) -> None:
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    @asynccontextmanager
    async def _apart(
        self, life: ChildProcesses, folder: Path
    ) -> AsyncIterator[tuple[dict[str, FarProcess], list[Path]]]:
        """A process on each node that does not see the folder here, or cannot write there, and the folder of each rank,
        of which those over there are removed.
        """
        apart = {process.node: process for _, process in sorted(self._processes.items(), reverse=True)}
        above = next(path for path in folder.parents if path.is_dir())
        with suppress(OSError), tempfile.NamedTemporaryFile(prefix=".seen-", dir=above) as token:
            for node, process in list(apart.items()):
                if await process.run(os.access, token.name, os.W_OK):
                    del apart[node]
        try:
            yield apart, [apart[seat.node].folder if seat.node in apart else folder for seat in self._seats]
        finally:
            for process in apart.values() if not life.over else ():
                await process.run(shutil.rmtree, process.folder, True)
