"""``place(cfg, devices)``: a seat for every engine and every learner rank, or a refusal with the way out.

    shared   rank r is on GPU r, engine e on GPUs e*TP .. (e+1)*TP - 1; they take turns
    split    the engines come first, the ranks behind them
    CPU      no device; several engines are bound to cores of their own, one that takes turns with the learner on few
             cores to all of them, any other is left to vLLM, which leaves a core free

Ports are no part of it: the kernel chooses them, and the ranks meet at a file; over nodes, where rank 0 is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from overlap.config.fields import Config
from overlap.config.rollout import check_sharing
from overlap.core.errors import ConfigError
from overlap.placement.devices import SHM, VISIBLE, Devices, devices_here

Backend = Literal["shm", "ipc", "nccl"]
_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_FEW_CORES = 4
"""Up to this many cores, the one that vLLM leaves free would be a large part of the engine's, while no learner needs
it."""
_NO_GPU = Devices()
_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_UNSHARED = {"expandable_segments:true": "expandable_segments", "backend:cudamallocasync": "backend:cudaMallocAsync"}
"""Options of these whose memory another process cannot map, in small letters and as people write them."""
SHM_BYTES = 1 << 30
"""Bytes of shared memory for NCCL and vLLM's queues, among some GPUs; a container has 64 MB of it by default."""


@dataclass(frozen=True, slots=True)
class EngineSeat:
    """Seat of engine ``index``. ``devices`` are places among the GPUs, ``visible`` is what it sees of them.

    ``cores`` [TP][...] are the CPUs that each of its workers is bound to; empty: vLLM chooses. ``first_rank`` is the
    rank of its first worker in the group that nccl sends weights by, whose rank 0 is the learner. ``node`` is the name
    of the cluster's node whose devices these are; "": they are of the driver's machine.
    """

    index: int
    seed: int
    devices: tuple[int, ...] = ()
    visible: str = ""
    cores: tuple[tuple[int, ...], ...] = ()
    first_rank: int = 1
    node: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables in the environment of its processes; nothing where they may see all that there is."""
        bound = {_BIND: "|".join(",".join(map(str, worker)) for worker in self.cores)} if self.cores else {}
        return bound | ({VISIBLE: self.visible} if self.devices else {})


@dataclass(frozen=True, slots=True)
class RankSeat:
    """Seat of learner rank ``rank``: on one GPU, the only one that it sees, or on the CPU. All have one seed. ``node``
    is as for engines; ``address`` is where ranks on other nodes reach it, "" where there are none.
    """

    rank: int
    seed: int
    devices: tuple[int, ...] = ()
    visible: str = ""
    node: str = ""
    address: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its device; ``LOCAL_RANK`` is the rank among the devices that it sees."""
        return {VISIBLE: self.visible, "LOCAL_RANK": "0"} if self.devices else {}


@dataclass(frozen=True, slots=True)
class Placement:
    """Seats for every engine and every rank of a run. ``backend`` carries the weights; nccl's group meets at the
    learner's ``address``. ``sequences`` are decoded at once by each engine where the configuration leaves that to its
    GPUs, 0 while these are not known.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    backend: Backend = "shm"
    engines: tuple[EngineSeat, ...] = ()
    ranks: tuple[RankSeat, ...] = ()
    address: str = "127.0.0.1"
    sequences: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes other than the driver's machine with engines."""
        return tuple(dict.fromkeys(seat.node for seat in self.engines if seat.node))

    @property
    def rank_nodes(self) -> tuple[str, ...]:
        """Nodes other than the driver's machine with learner ranks; where there are none, all meet there."""
        return tuple(dict.fromkeys(seat.node for seat in self.ranks if seat.node))

    def ranks_on(self, node: str) -> tuple[RankSeat, ...]:
        """Seats of the ranks on a node; "": on the driver's machine."""
        return tuple(seat for seat in self.ranks if seat.node == node)

    def on(self, node: str) -> tuple[EngineSeat, ...]:
        """Seats of the engines on a node; "": on the driver's machine."""
        return tuple(seat for seat in self.engines if seat.node == node)

    @property
    def sleeps(self) -> bool:
        """Engines and learner take turns on their GPUs."""
        return self.backend == "ipc"

    def feeds(self, rank: RankSeat) -> bool:
        """True when an engine is on the GPU of the ``rank``."""
        return any(seat.node == rank.node and set(seat.devices) & set(rank.devices) for seat in self.engines)

    def counted(self, cfg: Config) -> Config:
        """``cfg`` with as many replicas as there are engines, and sequences as these decode at once, where it leaves
        that to the devices.
        """
        r = cfg.rollout
        replicas, sequences = r.replicas or len(self.engines), r.max_sequences or self.sequences
        return replace(cfg, rollout=replace(r, replicas=replicas, max_sequences=sequences))

    @property
    def engine_devices(self) -> int:
        """GPUs of all engines: where nccl sends weights to."""
        return sum(len(seat.devices) for seat in self.engines)


def place_here(cfg: Config, *, engine: bool = True, learner: bool = True) -> Placement:
    """``place`` on this machine. Raises ConfigError also for an environment or shared memory that it cannot bear."""
    devices = devices_here(cfg.run.device)
    placement = place(cfg, devices, engine=engine, learner=learner)
    if len(placement.engines) == 1 and os.environ.get(_BIND, "auto") != "auto":
        placement = replace(placement, engines=(replace(placement.engines[0], cores=()),))  # as the user has bound it
    check_environment(placement, os.environ)
    check_shared_memory(placement, devices)
    return placement


def place(cfg: Config, devices: Devices, *, engine: bool = True, learner: bool = True) -> Placement:
    """Seats for the engines of a run and for its learner, or for one of the two alone. Raises ConfigError."""
    if devices.kind == "cpu":
        return _on_cpu(cfg, devices, engine, learner)
    count, parallel = len(devices.names), cfg.rollout.tensor_parallel
    backend: Backend = "shm"
    if engine and learner:
        # Where engines and ranks share GPUs they take turns: an engine that starts takes all that it finds for its own.
        backend = "ipc" if count < parallel * (cfg.rollout.replicas or 1) + cfg.learn.ranks else "nccl"
        check_sharing(backend, cfg.rollout)
    turns = backend == "ipc"
    replicas = _replicas(cfg, count, turns, learner) if engine else 0
    if turns or not engine:
        _check_ranks(cfg, count, replicas)
    engines = tuple(engine_seat(cfg, devices, index, index) for index in range(replicas))
    ranks = rank_seats(cfg, devices, 0 if turns else replicas * parallel) if learner else ()
    return Placement("cuda", backend, engines, ranks)


def _on_cpu(cfg: Config, devices: Devices, engine: bool, learner: bool) -> Placement:
    replicas, parallel = cfg.rollout.replicas or 1, cfg.rollout.tensor_parallel
    ranks = rank_seats(cfg) if learner else ()
    if not engine:
        return Placement(ranks=ranks)
    held = len(devices.cores)
    turns = replicas == 1 and not cfg.rollout.max_staleness and parallel <= held <= _FEW_CORES
    bound: Sequence[tuple[tuple[int, ...], ...]] = [()]
    if replicas > 1 or turns or (devices.quota and parallel <= held):  # vLLM's own choice knows no quota
        if replicas * parallel > held:
            way_out = f"each engine needs {parallel} core(s) of its own, and here are {held}: use "
            most = max(1, held // parallel)
            raise ConfigError("rollout.replicas", replicas, f"{way_out}{most} or less")
        workers = spread_cores(devices.cores, replicas * parallel, leave=0 if turns else 1)
        bound = [workers[e * parallel : (e + 1) * parallel] for e in range(replicas)]
    return Placement(
        engines=tuple(EngineSeat(e, cfg.run.seed + e, cores=bound[e]) for e in range(replicas)), ranks=ranks
    )


def spread_cores(cores: Sequence[int], workers: int, leave: int = 1) -> tuple[tuple[int, ...], ...]:
    """Cores for each worker, side by side; ``leave`` of them stay free for other processes where there are more than
    workers.
    """
    free = min(len(cores), max(workers, len(cores) - leave))
    edges = [free * worker // workers for worker in range(workers + 1)]
    return tuple(tuple(cores[low:high]) for low, high in pairwise(edges))


def _replicas(cfg: Config, count: int, turns: bool, learner: bool) -> int:
    """Number of engines on ``count`` GPUs."""
    replicas, parallel, room = cfg.rollout.replicas, cfg.rollout.tensor_parallel, count
    if learner and not turns:
        room = count - cfg.learn.ranks
    elif turns and not replicas:
        room = min(count, max(cfg.learn.ranks, parallel))  # GPUs whose ranks have the weights, but for one engine
    if replicas * parallel > room or parallel > room:
        field = "rollout.replicas" if replicas > 1 else "rollout.tensor_parallel"
        way_out = f"{max(1, replicas)} engine(s) of {parallel} GPU(s) need {max(1, replicas) * parallel}, and "
        way_out += f"{room} of {count} can be theirs: use less"
        raise ConfigError(field, replicas if replicas > 1 else parallel, way_out)
    return replicas or room // parallel


def _check_ranks(cfg: Config, count: int, replicas: int) -> None:
    ranks, workers = cfg.learn.ranks, replicas * cfg.rollout.tensor_parallel
    if ranks > count:
        raise ConfigError("learn.ranks", ranks, f"each rank needs a GPU, and here are {count}: use {count} or less")
    if ranks < workers:
        way_out = f"weights are handed over on each GPU (ipc), and engines sit on {workers}: use learn.ranks={workers} "
        way_out += "or more, or fewer engines (rollout.replicas, rollout.tensor_parallel)"
        raise ConfigError("learn.ranks", ranks, way_out)


def engine_seat(cfg: Config, devices: Devices, slot: int, index: int, node: str = "") -> EngineSeat:
    """The seat of engine ``index`` on the ``slot``-th part of these GPUs, or on all of these cores."""
    parallel = cfg.rollout.tensor_parallel
    seat = EngineSeat(index, cfg.run.seed + index, first_rank=1 + index * parallel, node=node)
    if not devices.names:
        return replace(seat, cores=spread_cores(devices.cores, parallel))
    own = tuple(range(slot * parallel, (slot + 1) * parallel))
    return replace(seat, devices=own, visible=",".join(devices.names[i] for i in own))


def rank_seats(cfg: Config, devices: Devices = _NO_GPU, first: int = 0) -> tuple[RankSeat, ...]:
    """A seat for every rank, on GPUs from the ``first`` on."""
    if not devices.names:
        return tuple(RankSeat(rank, cfg.run.seed) for rank in range(cfg.learn.ranks))
    return tuple(
        RankSeat(rank, cfg.run.seed, (first + rank,), devices.names[first + rank]) for rank in range(cfg.learn.ranks)
    )


def check_environment(placement: Placement, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a variable that the processes of ``placement`` would inherit and could not bear."""
    for name in _ALLOCATORS if placement.sleeps else ():
        value = environ.get(name, "")
        for option in (told for text, told in _UNSHARED.items() if text in value.replace(" ", "").lower()):
            way_out = f"engine and learner share GPUs (ipc), where memory of {option} cannot be handed over: "
            way_out += "leave it out, or give each GPUs of its own (rollout.replicas, learn.ranks)"
            raise ConfigError(name, value, way_out)
    if len(placement.engines) > 1 and placement.kind == "cpu" and environ.get(_BIND, "auto") != "auto":
        way_out = "several engines are bound to cores of their own: unset it, and bound the whole run with taskset"
        raise ConfigError(_BIND, environ[_BIND], way_out)


def check_shared_memory(placement: Placement, devices: Devices, node: str = "") -> None:
    """Raise ConfigError where a machine has too little shared memory for the processes there: several GPUs that
    communicate use it, too.
    """
    engines, ranks = placement.on(node), placement.ranks_on(node)
    talks = any(len(seat.devices) > 1 for seat in engines) or len(ranks) > 1
    talks = talks or (placement.backend == "nccl" and bool(engines or ranks))
    if placement.kind == "cuda" and talks and 0 < devices.shared < SHM_BYTES:
        way_out = f"{f'node {node}: ' if node else ''}processes on several GPUs need {SHM_BYTES >> 20} MiB of shared "
        way_out += "memory or more: start the container with --ipc=host or --shm-size=8g (Kubernetes: an emptyDir of "
        way_out += "medium Memory at /dev/shm)"
        raise ConfigError(str(SHM), f"{devices.shared >> 20} MiB", f"{way_out}, or use one GPU")
