"""The learner's processes as the driver sees them: where they are, how they start, are called, and end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from overlap.config.fields import Config
from overlap.core.aio import together
from overlap.core.errors import LearnerDiedError, OverlapError
from overlap.placement.seats import Placement, RankSeat
from overlap.process.calls import PackedCall, Peer, pack_call
from overlap.process.child_processes import ChildProcesses
from sandbox.pool.quotas import cores

MODULE = "overlap.learner.rank"
"""Module that a rank runs."""
CLOSE_S = 5.0
"""Seconds for an idle rank to free what it holds; then it is killed."""
_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""Tensors are made and freed again and again: without this, a fifth of a step on a CPU goes into fresh pages. A rank on
a GPU makes them there, and gives back what loading took.

The price is a heap with holes: 8 GB after three half steps of the default recipe, for 4 GB in use at most and 2.1 GB
after a step. Blocks over 32 MiB in pages of their own hold it at 6.7 GB, for 9 % more CPU time; huge pages and giving
memory back after each step cost more.
"""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Data that the driver sends to a rank at its start.

    ``rendezvous`` is a file that does not exist yet; all paths are absolute. ``critic`` is the checkpoint of the
    critic, if there is one, ``reference`` that of the reference policy (None: the policy's). On several machines the
    ranks connect to the ``port`` of rank 0 instead. ``imports`` are folders in which a rank also looks for modules of
    the user's.
    """

    rank: int
    rendezvous: Path
    policy: Path
    critic: Path
    cfg: Config
    total_updates: int
    placement: Placement
    port: int = 0
    imports: tuple[str, ...] = ()
    reference: Path | None = None

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.placement.ranks)

    @property
    def seat(self) -> RankSeat:
        """The device of this rank."""
        return self.placement.ranks[self.rank]

    @property
    def beside(self) -> int:
        """Number of ranks on this rank's machine."""
        return len(self.placement.ranks_on(self.seat.node))

    @property
    def far(self) -> bool:
        """True when the ranks and the driver are on more than one machine."""
        return bool(self.placement.rank_nodes)


Folders = AbstractAsyncContextManager[Sequence[Path]]


class Site(Protocol):
    """Place of the ranks of one learner: the driver's machine, or others that can do the same (see ``cluster``). What
    fails there ends their ``life``, whose cause is raised.
    """

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        """The placement as it can be now: with other seats for ranks whose machine is gone. Raises LearnerError where
        there is no room for them.
        """
        return placement

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        """Start ``python -m module FD`` on that seat and connect to it."""
        return await Peer.start(life, title, module, {**environment, **seat.environment})

    def saving(self, life: ChildProcesses, folder: Path) -> Folders:
        """Folder that each rank writes into; in the end all that they wrote is in ``folder``, here. Raises RunDirError
        where it has no room.
        """

    def loading(self, life: ChildProcesses, folder: Path, *, recut: bool) -> Folders:
        """Folder for each rank that has what ``folder``, a saved state, has here; what is of other ranks alone may be
        missing, unless the state is ``recut`` for these. Raises RunDirError where a machine has no room for it.
        """

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Return what rank 0 says of the weights that it published, as it is true here until the next ones come."""
        return info

    async def close(self) -> None:
        """Free what is held here."""
        return


class Here(Site):
    """The driver's machine, with ``ranks`` ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def saving(self, life: ChildProcesses, folder: Path) -> Folders:
        return nullcontext([folder] * self._ranks)

    def loading(self, life: ChildProcesses, folder: Path, *, recut: bool) -> Folders:
        return nullcontext([folder] * self._ranks)


class RankLife(ChildProcesses):
    """The life of the ranks: the death of one says what to do about it."""

    def __init__(self, scratch: Path, log: Path | None) -> None:
        super().__init__("learner", LearnerDiedError, scratch, log)

    def obituary(self, who: str, code: int | None) -> str:
        """Describe how a rank ended, what to do where memory was short, and where its output is."""
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (by the kernel where memory is short: see dmesg, and lower learn.micro_batch_tokens)"
        return f"{who} {how}" + (f"; its output is in {self.log}" if self.log is not None else "")


class RankProcesses:
    """The ranks of ``spec``. The first failure ends them all, and is raised by every call, pending or later."""

    def __init__(self, spec: RankSpec, life: ChildProcesses, site: Site | None = None) -> None:
        self.life, self.site = life, site or Here(spec.world)
        self._spec = spec
        self._peers: list[Peer] = []
        self._unanswered = 0

    async def start(self, timeout_s: float) -> None:
        """Start all ranks and wait until they have loaded the policy. Raises LearnerError."""
        self._spec = replace(self._spec, placement=await self.site.seated(self.life, self._spec.placement))
        specs = [replace(self._spec, rank=rank) for rank in range(self._spec.world)]
        made: dict[int, Peer] = {}

        async def start(spec: RankSpec) -> None:
            title = f"learner rank {spec.rank}"
            made[spec.rank] = await self.site.start(self.life, title, MODULE, environment_of(spec), spec.seat)

        try:
            await together(*map(start, specs))  # a node takes seconds
        finally:
            self._peers = [made[rank] for rank in sorted(made)]  # to be closed, if not all are there
        if self._spec.far:
            port: int = await self.call("meet", timeout_s=timeout_s, each=[(spec,) for spec in specs])
            specs = [replace(spec, port=port) for spec in specs]
        await self.call("start", timeout_s=timeout_s, each=[(spec,) for spec in specs])

    async def call(self, name: str, *args: Any, timeout_s: float, each: list[tuple[Any, ...]] | None = None) -> Any:
        """Call every rank; returns what rank 0 did. For arguments and errors see ``call_all``."""
        return (await self.call_all(name, *args, timeout_s=timeout_s, each=each))[0]

    async def call_all(
        self, name: str, *args: Any, timeout_s: float, each: list[tuple[Any, ...]] | None = None
    ) -> list[Any]:
        """Call every rank; returns what each did, by rank. ``each`` gives every rank arguments of its own.

        Raises LearnerError when a rank raises, dies, or is not done in time, and the error that a rank refused with.
        """
        self.life.check()
        self._unanswered += 1  # also by a rank whose caller was cancelled: it is not idle
        per_rank = each if each is not None else [args] * self._spec.world
        messages = await asyncio.to_thread(_messages, name, per_rank, each is None)
        answers: list[Any] = []
        try:
            async with asyncio.timeout(timeout_s):
                asked = [peer.ask(each_one) for peer, each_one in zip(self._peers, messages, strict=True)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
        except TimeoutError:
            self.life.fail(f"the learner did not finish {name!r} within {timeout_s:g} s")
        self.life.check()  # before the errors of the calls: one cause for all
        self._unanswered -= 1
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def close(self) -> None:
        """End all ranks: idle ones are asked to free what they hold, then all are killed. Safe to call twice."""
        try:
            if not (self.life.over or self._unanswered) and len(self._peers) == self._spec.world:
                with contextlib.suppress(OverlapError):  # they end all the same
                    await self.call("close", timeout_s=CLOSE_S)
        finally:
            await self.life.close()
            await asyncio.gather(*(peer.close() for peer in self._peers))
            await self.site.close()

    def saving(self, folder: Path) -> Folders:
        """See ``Site``. The ranks have a working directory of their own."""
        return self.site.saving(self.life, folder.absolute())

    def loading(self, folder: Path, *, recut: bool) -> Folders:
        """See ``Site``."""
        return self.site.loading(self.life, folder.absolute(), recut=recut)


def rank_environment(rank: int, world: int, device: str = "cpu") -> dict[str, str]:
    """Environment variables of a rank alone, besides the driver's environment.

    LOCAL_SIZE: without it DeepSpeed on CPUs runs `numactl` at each reduction of gradients.

    Passive waiting: threads that spin at a barrier for one that another process keeps from its core make a step
    several times as long, and save nothing where the cores are free.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_SIZE": str(world),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": str(max(1, cores() // world)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else a pool of processes in each rank, for a dozen kernels
        **(_MALLOC if device == "cpu" else {}),
    }


def environment_of(spec: RankSpec) -> dict[str, str]:
    """The same of a rank, also among some on other machines: what depends on its own is found out there."""
    own = rank_environment(spec.rank, spec.world, spec.placement.kind)
    if not spec.far:
        return own
    del own["OMP_NUM_THREADS"], own["GLOO_SOCKET_IFNAME"]
    here = spec.placement.ranks_on(spec.seat.node)
    return own | {"LOCAL_RANK": str(here.index(spec.seat)), "LOCAL_SIZE": str(len(here))}


def _messages(name: str, per_rank: list[tuple[Any, ...]], same: bool) -> list[PackedCall]:
    if same:
        return [pack_call(name, *per_rank[0])] * len(per_rank)
    return [pack_call(name, *args) for args in per_rank]
