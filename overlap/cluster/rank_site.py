"""Where learner ranks live that are on nodes: each on the one that the placement gives it, or on another when that is
gone.

    RankSite.start    ──▶ an agent on the node ──▶ Peer
    RankSite.saving   ──▶ a path that node and driver share, or a folder there ──▶ files in pieces ──▶ here
    RankSite.loading  ──▶ the same the other way
    RankSite.brought  ──▶ what has changed of rank 0's weights ──▶ memory here, from which they go on

No Ray in here; of it the ``Fleet`` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from overlap.aio import shielded_thread
from overlap.atomic import guarded, remove_path
from overlap.clock import now
from overlap.cluster.far_folder import FarFolder, read_piece, write_piece
from overlap.cluster.far_peer import ProcessAgent, start_far
from overlap.cluster.nodes import NodeLost, NodeRefused, answer_within
from overlap.cluster.pieces import PIECE_BYTES
from overlap.cluster.sites import LOOK_S, OTHER, REST_S, Berths, Fleet, ending
from overlap.errors import LearnerError, RunDirError
from overlap.placement import NodeDevices, Placement, RankSeat, reseated
from overlap.process import ChildProcesses, Peer
from overlap.weights import WeightCopy

_OF_A_RANK = re.compile(r"zero_pp_rank_(\d+)_")
"""Files of a saved state that one rank writes, and reads again."""
FILES_S = 60.0
"""A piece of a file is on its way for so long at most."""
AHEAD = 2
"""Pieces on their way at a time: one is written while the next one comes."""


class RankSite:
    """A ``Site`` (see ``overlap.learner``) over the nodes of a cluster, for one learner after the other of a run.

    ``berths`` are those of its engines: who moves takes no GPU of theirs.
    """

    def __init__(self, fleet: Fleet, berths: Berths, tell: Callable[[str], None]) -> None:
        self._fleet, self._berths, self._tell = fleet, berths, tell
        self._hosts: dict[int, ProcessAgent] = {}
        self._seats: Sequence[RankSeat] = ()
        self._weights: WeightCopy | None = None

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        """Raises LearnerError where a rank's node is gone, and there is no room elsewhere."""
        self._hosts.clear()
        with _ending(life, "the learner cannot be placed"):
            async with self._fleet.joined():
                placed = await self._placed(placement)
        self._seats = placed.ranks
        self._berths.ranks = frozenset(placed.rank_nodes)
        for before, after in zip(placement.ranks, placed.ranks, strict=True):
            if before.node != after.node:
                to = f"to node {after.node}" if after.node else "to this machine"
                self._tell(f"learner rank {before.rank} moves from node {before.node} {to}")
        return placed

    async def _placed(self, placement: Placement) -> Placement:
        until = now() + REST_S
        while True:
            names = await self._berths.living()
            if set(placement.rank_nodes) <= set(names):
                return placement
            living = await self._living(names)
            barred = self._berths.strangers if placement.kind == "cuda" else ()
            if (placed := reseated(placement, living, barred)) is not None:
                return placed
            if now() > until:
                gone = {seat.node for seat in placement.ranks} - {"", *(node.name for node in living)}
                told = f"node {', '.join(sorted(gone))} of learner ranks is gone, and no other has a GPU free for each"
                raise LearnerError(
                    f"{told}: --resume places the run anew on the nodes that are there, with learn.ranks"
                )
            await asyncio.sleep(LOOK_S)

    async def _living(self, names: Iterable[str]) -> list[NodeDevices]:
        """What those nodes have that can be asked."""
        found = []
        for name in names:
            with contextlib.suppress(NodeLost, NodeRefused):
                found.append(await self._fleet.about(name))
        return found

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        environment = {**environment, **seat.environment}
        if not seat.node:
            return await Peer.start(life, title, module, environment)
        async with self._fleet.joined():
            node = seat.node
            host = self._fleet.host(node, life.name, lambda sure: None if sure else self._berths.rest(node))
            self._hosts[seat.rank] = host
            return await start_far(host, life, title, module, environment)

    @asynccontextmanager
    async def saving(self, life: ChildProcesses, folder: Path) -> AsyncIterator[Sequence[Path]]:
        apart = await self._apart(life, folder)
        try:
            yield [apart[seat.node][1] if seat.node in apart else folder for seat in self._seats]
            for host, _ in apart.values():
                await self._gather(life, host, folder)
        finally:
            await self._clear(life, apart)

    @asynccontextmanager
    async def loading(self, life: ChildProcesses, folder: Path, *, recut: bool) -> AsyncIterator[Sequence[Path]]:
        apart = await self._apart(life, folder)
        try:
            for node, (host, _) in apart.items():
                ranks = {seat.rank for seat in self._seats if seat.node == node}
                await self._send(life, host, folder, ranks, recut=recut)
            yield [apart[seat.node][1] if seat.node in apart else folder for seat in self._seats]
        finally:
            await self._clear(life, apart)

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        host = self._hosts.get(0)
        if "path" not in info or host is None:
            return info
        size = int(info["size"])
        if self._weights is None:
            self._weights = WeightCopy(size)
        copy = self._weights

        async def bring(at: int) -> None:
            length = min(PIECE_BYTES, size - at)
            for _ in range(2):  # what has changed, and all of it where the result is not right
                sent = await self._asked(life, host, "changed", info["path"], at, length, copy.digests.get(at))
                if sent is None or await shielded_thread(copy.fill, at, length, sent[0], sent[1], whole=sent[2]):
                    return
                if not sent[2]:
                    self._tell(f"a piece of version {version} comes whole from node {host.name}: {OTHER}")
            life.fail(f"weights come from node {host.name} other than they are there")
            life.check()

        await _in_turns(bring, size)
        return {**info, "path": copy.path}

    async def close(self) -> None:
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    async def _apart(self, life: ChildProcesses, folder: Path) -> dict[str, tuple[ProcessAgent, Path]]:
        """By the nodes that do not see the folder here: an agent there, and an empty folder of its own."""
        first = {seat.node: self._hosts[seat.rank] for seat in reversed(self._seats) if seat.node}
        found = {}
        with _token(folder) as (path, words):
            for node, host in first.items():
                if not path or not await self._asked(life, host, "sees", path, words):
                    found[node] = host, Path(await self._asked(life, host, "clear"))
        return found

    async def _gather(self, life: ChildProcesses, host: ProcessAgent, folder: Path) -> None:
        for name, size in await self._asked(life, host, "names"):
            await self._fetch(life, host, name, size, folder / name)

    async def _fetch(self, life: ChildProcesses, host: ProcessAgent, name: str, size: int, to: Path) -> None:
        """A file from there."""

        async def bring(at: int) -> None:
            data = await self._asked(life, host, "read", name, at, min(PIECE_BYTES, size - at))
            with guarded(to):
                await asyncio.to_thread(write_piece, to, at, data)

        await _in_turns(bring, size)

    async def _send(
        self, life: ChildProcesses, host: ProcessAgent, folder: Path, ranks: Collection[int], *, recut: bool
    ) -> None:
        """A saved state, without what only others than these ranks read of it."""
        for name, size in await asyncio.to_thread(FarFolder(folder).names):
            of = _OF_A_RANK.search(name)
            if recut or of is None or int(of[1]) in ranks:
                await self._send_file(life, host, folder / name, name, size)

    async def _send_file(self, life: ChildProcesses, host: ProcessAgent, path: Path, name: str, size: int) -> None:
        async def send(at: int) -> None:
            data = await asyncio.to_thread(read_piece, path, at, min(PIECE_BYTES, size - at))
            if fault := await self._asked(life, host, "write", name, at, data):
                raise RunDirError(f"cannot write {name} on node {host.name}: {fault}; free space there (TMPDIR)")

        await _in_turns(send, size)

    async def _clear(self, life: ChildProcesses, apart: Mapping[str, tuple[ProcessAgent, Path]]) -> None:
        if not life.over:
            for host, _ in apart.values():
                await self._asked(life, host, "clear")

    async def _asked(self, life: ChildProcesses, host: ProcessAgent, do: str, *args: Any) -> Any:
        with _ending(life, f"the learner on node {host.name} is lost"):
            return await answer_within(host.files(do, *args), FILES_S)


async def _in_turns(move: Callable[[int], Awaitable[None]], size: int) -> None:
    """Move every piece, some at a time."""
    at = iter(range(0, max(1, size), PIECE_BYTES))

    async def work() -> None:
        for one in at:
            await move(one)

    tasks = [asyncio.create_task(work(), name="move pieces") for _ in range(AHEAD)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _ending(life: ChildProcesses, what: str) -> AbstractContextManager[None]:
    return ending(life, what, lambda error: LearnerError(f"{what}: {error}"))


@contextlib.contextmanager
def _token(folder: Path) -> Iterator[tuple[str, str]]:
    """A file beside ``folder`` by which others see whether they see the same, and its words; ("", "") where none can be
    written.
    """
    above = next(path for path in folder.parents if path.is_dir())
    path, words = above / f".seen-{secrets.token_hex(8)}", secrets.token_hex(16)
    try:
        try:
            path.write_text(words, encoding="utf-8")
        except OSError:
            yield "", ""
            return
        yield str(path), words
    finally:
        remove_path(path)
