"""The interfaces between the pipeline and its parts: Task, Generator, Verifier, Learner; and base classes for parts
without a process of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from overlap.core.chat_turns import Spoken
from overlap.core.nouns import (
    Batch,
    ClusterFigures,
    LeftOut,
    Part,
    Probe,
    Prompt,
    Request,
    Scored,
    StepReport,
    Trajectory,
    WeightUpdate,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox.core.nouns import Judgement, Program
    from sandbox.core.problem import Problem


import asyncio


@runtime_checkable
class TaskInterface(Protocol):
    """The task that is learned: prompts and a reward. Any object with these members is a task; each member is
    described at :class:`overlap.task.Task`, the base class with defaults.
    """

    packages: tuple[str, ...]

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt | LeftOut]: ...

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None: ...

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None: ...

    def probes(self, prompt: Prompt) -> Iterable[Probe]: ...


class Generator(Protocol):
    """The engine, as the pipeline uses it. Constructing it starts nothing; the first await of ``start`` does."""

    @property
    def moved(self) -> int:
        """Episodes that have left one engine, with their past, for another that had less to do."""

    async def start(self) -> None:
        """Bring the engine up. Its gate stays shut until a version is loaded."""

    async def generate(self, request: Request) -> Trajectory:
        """Sample one response. Waits while the gate is shut; cancelling aborts the request in the engine."""

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Read an answer by ``episode.tool_parser`` and ``episode.reasoning_parser``; ``tools`` are those of its
        request, a JSON list. What was sampled stays what is learned from.
        """

    async def load(self, update: WeightUpdate) -> None:
        """Pause, load a version, resume (and open the gate). After a failure the gate is shut until a load succeeds.
        Where engine and learner share a device, it is ``wake("cache")`` that resumes and opens.
        """

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 given their past, at the sampling temperature (the parity probe).

        Of R engines that share the work [R x (T-1)], one after the other.
        """

    async def sleep(self) -> None:
        """Give device memory to the learner. What is being sampled is kept, and goes on when the cache wakes. No effect
        where engine and learner do not share a device, or asleep.
        """

    async def wake(self, part: Part) -> None:
        """Take device memory back: for the weights, so that they can be loaded, then for the KV cache, and generate."""

    async def wants_weights(self) -> None:
        """Return each time an engine has come up again and needs weights; never where none comes up again."""

    async def wait_dead(self) -> None:
        """Raise with the cause when a process of the engine dies; return when it is closed."""

    def pids(self) -> tuple[int, ...]:
        """Processes of the engine that are alive, also during its start."""

    async def close(self) -> None:
        """End every process of the engine; safe to call twice or before ``start``."""


class Verifier(Protocol):
    """The judge of answers, as the pipeline uses it."""

    @property
    def concurrency(self) -> int:
        """Number of samples judged in parallel now."""

    async def start(self) -> None: ...

    async def score(self, trajectory: Trajectory) -> Scored:
        """Judge one trajectory. Our own failures come back as ``reward=None``; raises VerifierError if too many."""

    def take_nodes(self) -> ClusterFigures | None:
        """Figures of the cluster's nodes since the last call; None without a cluster."""

    def pids(self) -> tuple[int, ...]:
        """Processes of the verifier that are alive. One that dies is replaced: there is no death to wait for."""

    async def close(self) -> None: ...


class Learner(Protocol):
    """The learner, as the pipeline uses it. Its methods run elsewhere: awaiting them never blocks the caller's loop."""

    shares: bool
    """Learner and engine share devices, so that one sleeps while the other works; known when it has started."""

    async def start(self) -> None: ...

    async def step(self, batch: Batch) -> StepReport:
        """One learner step (one or more optimizer steps). Raises StaleBatchError, LearnerError."""

    async def sleep(self) -> None:
        """Give device memory to an engine on the same device, as ``learn.offload`` says, until a call needs it."""

    async def free(self, moment: str) -> float | None:
        """Free GiB of the first rank's device, logged as of ``moment``; None where the rank has no device."""

    async def publish(self, version: int) -> WeightUpdate:
        """Gather the shards and make version ``version`` ready for the engine."""

    async def transmit(self, update: WeightUpdate) -> None:
        """Send while the engine receives (collective backends); returns at once for memory-based ones."""

    async def retire(self, update: WeightUpdate, *, loaded: bool = True) -> None:
        """Free what ``publish`` made; where it was not ``loaded``, all of it that the next update must not find."""

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [T-1] of the learner's policy at the sampling temperature (the parity probe)."""

    async def save(self, path: Path, *, kind: Literal["policy", "state"]) -> int:
        """Write a Hugging Face checkpoint ("policy") or everything that a resume needs ("state"), atomically. Returns
        the version that was written; after RunDirError the learner goes on.
        """

    async def restore(self, path: Path) -> None:
        """Load what ``save(kind="state")`` wrote."""

    async def wait_dead(self) -> None:
        """Raise with the cause when a process of the learner dies; return when it is closed."""

    def pids(self) -> tuple[int, ...]:
        """Processes of the learner that are alive, also during its start."""

    async def close(self) -> None: ...


class Processless:
    """A part without a process, to derive from. It belongs to the event loop that awaits it."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Nothing has to be started."""

    async def wait_dead(self) -> None:
        """Wait until ``close``: there is no process that could die."""
        await self._closed.wait()

    def pids(self) -> tuple[int, ...]:
        """None."""
        return ()

    async def close(self) -> None:
        """Safe to call twice."""
        self._closed.set()


class ProcesslessEngine(Processless):
    """A generator without an engine: it holds no device memory and loses no weights."""

    moved = 0

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Return the text as it is: there are no parsers."""
        return Spoken(text)

    async def sleep(self) -> None:
        """Do nothing: there is no device memory to give."""

    async def wake(self, part: str) -> None:
        """Do nothing: there is no device memory to take back."""

    async def wants_weights(self) -> None:
        """Never: waits until it is cancelled."""
        await asyncio.Event().wait()


class ProcesslessVerifier(Processless):
    """A verifier without a sandbox, which judges ``concurrency`` samples in parallel."""

    concurrency = 1

    def take_nodes(self) -> None:
        """Do nothing: there is no cluster."""
