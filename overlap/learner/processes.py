"""The learner's processes as the driver sees them: start, call, end. They are ``ChildProcesses``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlap.core.errors import LearnerDiedError, OverlapError
from overlap.learner.site import Folders, Here, Site
from overlap.learner.spec import RankSpec
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
    """``spec.world`` rank processes. The first failure ends them all, and is raised by every call, pending or later."""

    def __init__(self, spec: RankSpec, life: ChildProcesses, site: Site | None = None) -> None:
        self._spec, self._life, self._site = spec, life, site or Here(spec.world)
        self._peers: list[Peer] = []
        self._unanswered = 0

    def pids(self) -> tuple[int, ...]:
        """Pids of the ranks, and of what they started, that are alive."""
        return self._life.pids()

    async def start(self, timeout_s: float) -> None:
        """Start all ranks and wait until they have loaded the policy. Raises LearnerError."""
        self._spec = replace(self._spec, placement=await self._site.seated(self._life, self._spec.placement))
        specs = [replace(self._spec, rank=rank) for rank in range(self._spec.world)]
        if self._spec.far:
            await self._start_far(specs)
            port: int = await self.call("meet", timeout_s=timeout_s, each=[(spec,) for spec in specs])
            specs = [replace(spec, port=port) for spec in specs]
        else:
            for spec in specs:
                self._peers.append(
                    await self._start_one(spec, rank_environment(spec.rank, spec.world, spec.placement.kind))
                )
        await self.call("start", timeout_s=timeout_s, each=[(spec,) for spec in specs])

    async def _start_one(self, spec: RankSpec, environment: Mapping[str, str]) -> Peer:
        return await self._site.start(self._life, f"learner rank {spec.rank}", MODULE, environment, spec.seat)

    async def _start_far(self, specs: Sequence[RankSpec]) -> None:
        """All at a time: a node takes seconds."""
        made: dict[int, Peer] = {}

        async def start(spec: RankSpec) -> None:
            made[spec.rank] = await self._start_one(spec, far_environment(spec))

        starts = [asyncio.create_task(start(spec), name=f"start rank {spec.rank}") for spec in specs]
        try:
            await asyncio.gather(*starts)
        finally:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            self._peers = [made[rank] for rank in sorted(made)]  # to be closed, if not all are there

    async def call(self, name: str, *args: Any, timeout_s: float, each: list[tuple[Any, ...]] | None = None) -> Any:
        """Call every rank; returns what rank 0 did. For arguments and errors see ``call_all``."""
        return (await self.call_all(name, *args, timeout_s=timeout_s, each=each))[0]

    async def call_all(
        self, name: str, *args: Any, timeout_s: float, each: list[tuple[Any, ...]] | None = None
    ) -> list[Any]:
        """Call every rank; returns what each did, by rank. ``each`` gives every rank arguments of its own.

        Raises LearnerError when a rank raises, dies, or is not done in time, and the error that a rank refused with.
        """
        self._life.check()
        self._unanswered += 1  # also by a rank whose caller was cancelled: it is not idle
        per_rank = each if each is not None else [args] * self._spec.world
        messages = await asyncio.to_thread(_messages, name, per_rank, each is None)
        answers: list[Any] = []
        try:
            async with asyncio.timeout(timeout_s):
                asked = [peer.ask(each_one) for peer, each_one in zip(self._peers, messages, strict=True)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
        except TimeoutError:
            self._life.fail(f"the learner did not finish {name!r} within {timeout_s:g} s")
        self._life.check()  # before the errors of the calls: one cause for all
        self._unanswered -= 1
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def wait_dead(self) -> None:
        """Wait while all ranks run; raises what ended them, and returns when they are closed."""
        await self._life.wait_dead()

    async def close(self) -> None:
        """End all ranks: idle ones are asked to free what they hold, then all are killed. Safe to call twice."""
        try:
            if not (self._life.over or self._unanswered) and len(self._peers) == self._spec.world:
                with contextlib.suppress(OverlapError):  # they end all the same
                    await self.call("close", timeout_s=CLOSE_S)
        finally:
            await self._life.close()
            await asyncio.gather(*(peer.close() for peer in self._peers))
            await self._site.close()

    def saving(self, folder: Path) -> Folders:
        """See ``Site``. The ranks have a working directory of their own."""
        return self._site.saving(self._life, folder.absolute())

    def loading(self, folder: Path, *, recut: bool) -> Folders:
        """See ``Site``."""
        return self._site.loading(self._life, folder.absolute(), recut=recut)

    async def publish(self, version: int, timeout_s: float) -> tuple[str, Mapping[str, Any]]:
        """Backend and info of a WeightUpdate, as they are true here."""
        backend, info = await self.call("publish", version, timeout_s=timeout_s)
        return backend, await self._site.brought(self._life, info, version)


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


def far_environment(spec: RankSpec) -> dict[str, str]:
    """The same for a rank among some on other machines: what depends on its own is found out there."""
    own = rank_environment(spec.rank, spec.world, spec.placement.kind)
    del own["OMP_NUM_THREADS"], own["GLOO_SOCKET_IFNAME"]
    here = spec.placement.ranks_on(spec.seat.node)
    return own | {"LOCAL_RANK": str(here.index(spec.seat)), "LOCAL_SIZE": str(len(here))}


def _messages(name: str, per_rank: list[tuple[Any, ...]], same: bool) -> list[PackedCall]:
    if same:
        return [pack_call(name, *per_rank[0])] * len(per_rank)
    return [pack_call(name, *args) for args in per_rank]
