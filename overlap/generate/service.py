"""Interface between the driver and an engine's process: the calls that it serves, their data, and where it runs.

The driver's end is ``client``; the other end is ``host``, which serves ``open``, and ``engine``, which serves the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from overlap.config.fields import Config
from overlap.core import Finish, Part, Spoken, VersionSpan
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


class EngineService(Protocol):
    """The calls that the process of an engine serves; nothing else goes from the driver to it.

    Arguments and results are pickled. A call that fails raises EngineError, ConfigError or RemoteFault in the driver.
    """

    async def open(self, spec: EngineSpec) -> None:
        """Start the engine."""

    async def sample(self, prompt: Sequence[int], id: str, sampling: Sampling) -> EngineSample:
        """Sample one response to a prompt of token ids; cancelling aborts it."""

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Read an answer by the engine's parsers; ``tools`` are those of the request, a JSON list."""

    async def prompt_logprobs(self, token_ids: Sequence[int], id: str) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 at the temperature of the rollouts, never from a cache."""

    async def pause(self) -> None:
        """Freeze requests that are running, with their KV cache; new requests wait."""

    async def resume(self) -> None:
        """Go on after ``pause``."""

    async def connect(self, init_info: Mapping[str, Any]) -> None:
        """Join the weight transfer; with a collective backend this waits for the learner."""

    async def replace_weights(self, update_info: Mapping[str, Any], version: int) -> None:
        """Receive a full set of weights and commit it as ``version``. The engine must be paused.

        Whatever was computed under other weights is computed anew when it is needed; with ``rollout.in_flight=keep``
        this holds only for requests that wait, and requests that run keep their KV cache.
        """

    async def begin_weights(self) -> None:
        """Expect weights, in one part or more."""

    async def receive_weights(self, update_info: Mapping[str, Any]) -> None:
        """Receive a part of the weights, which is copied by the end of the call."""

    async def commit_weights(self, version: int) -> None:
        """Use the received weights as ``version``. An engine that shares GPUs drops its KV cache when it wakes."""

    async def abandon_weights(self) -> None:
        """Drop what was received of a load that failed, so that the next load begins as the first one did."""

    async def sleep(self) -> None:
        """Give up the memory. Running requests go on after ``wake`` with a KV cache that is computed anew."""

    async def wake(self, part: Part) -> None:
        """Take memory for a part. With the last part the engine resumes by itself."""


class EngineSite(Protocol):
    """The machine that the process of one engine runs on: the driver's, or a node of a cluster."""

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        """Start ``python -m module FD`` on that seat and connect to it. Raises the cause when the life is over."""

    def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """The info of an update as it holds on that machine, for as long as the context lasts."""


class LocalSite:
    """The driver's machine."""

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        return await Peer.start(life, title, module, {**environment, **seat.environment})

    def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        return nullcontext(info)
