"""Data of the calls between the driver and an engine's process, and where that process runs.

The driver's end is ``client``; the other end is ``host``, which serves ``open``, and ``engine``, which serves the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core import Finish, VersionSpan
from overlap.placement.seats import EngineSeat
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses

TRANSFERS = {"shm": "overlap_shm", "ipc": "overlap_ipc", "nccl": "overlap_nccl"}
"""Weight backends by the names under which vLLM knows ours (``receive``)."""
ADAPTER_ID = 1
"""vLLM's id of the one adapter, which all requests name; each sync replaces it in place, like weights."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Arguments that open an engine: the run's configuration, and where and how the engine runs."""

    cfg: Config
    policy: Path
    device: str
    backend: str
    seed: int
    load_weights: bool
    """Load the policy's own weights, as version 0; else a learner sends all of them."""
    sleeps: bool
    """The engine takes turns with the learner on its GPUs."""
    engines: int
    """Number of engines on its machine; on a CPU they share the memory there."""

    @property
    def takes_adapter(self) -> bool:
        """True when the engine keeps the policy's own weights for good, and a learner sends an adapter."""
        return self.cfg.sends_adapter and not self.load_weights


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one response; ``seed=None``: the engine's choice. A lower ``priority`` goes first."""

    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    priority: int
    seed: int | None = None
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The engine's answer to one request; see :class:`~overlap.core.Trajectory` for the fields."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Finish
    spans: tuple[VersionSpan, ...]
    cached_tokens: int = 0


class EngineSite:
    """The machine that the process of one engine runs on: the driver's; a node of a cluster overrides both methods."""

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        """Start ``python -m module FD`` on that seat and connect to it. Raises the cause when the life is over."""
        return await Peer.start(life, title, module, {**environment, **seat.environment})

    def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """The info of an update as it holds on that machine, for as long as the context lasts."""
        return nullcontext(info)
