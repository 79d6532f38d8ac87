"""Where engine and learner share devices: who frees memory when, so that both never need more than there is.

    engine sleeps ─▶ critic comes, learns, leaves ─▶ policy comes, learns, its states leave ─▶ engine's weights wake
         ▲                                                                                            │
         │                                                                                 weights go over, in chunks
         └─── generates ◀── KV cache wakes, knows nothing ◀── the policy's parameters leave ◀─────────┘

What happens inside the learner's step is the learner's (``overlap.learner.offload``). The KV cache, the largest piece,
wakes when nothing of the learner is left beside it. Free memory is told of every moment, and a failure says in which.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from overlap.core import Generator, Learner
from overlap.errors import naming_stage


class Sharing:
    """The handing over of one device between ``generator`` and ``learner``. ``free`` is GiB of it by moment, as they
    were at the last time; empty where nobody can say.
    """

    def __init__(self, generator: Generator, learner: Learner) -> None:
        self._generator, self._learner = generator, learner
        self.free: dict[str, float] = {}

    async def to_learner(self, stage: str, sample: str) -> None:
        """The engine sleeps. Raises StageError."""
        await self._sleep(stage, sample)
        await self._look("engine_asleep")

    async def _sleep(self, stage: str, sample: str) -> None:
        with _while(stage, sample, "putting the engine to sleep"):
            await self._generator.sleep()

    async def to_nobody(self, version: int) -> None:
        """Both sleep, also what has only just come up. Raises StageError."""
        await self._sleep("load", f"version {version}")
        await self._leave("load", f"version {version}")

    async def to_engine(
        self, version: int, send: Callable[[], Awaitable[None]], token_ids: Sequence[int] | None
    ) -> list[float] | None:
        """The engine wakes with what ``send`` brings into it. Returns the learner's log-probs of ``token_ids``, which
        are taken while its parameters are still there. Raises StageError, which names the phase.
        """
        stage, sample, found = "load", f"version {version}", None
        await self._sleep(stage, sample)  # one that died meanwhile may be up again, and awake
        with _while(stage, sample, "waking the engine's weights"):
            await self._generator.wake("weights")
        await self._look("weights_awake")
        with _while(stage, sample, "sending the weights"):
            await send()
        await self._look("weights_sent")
        if token_ids is not None:
            with _while(stage, sample, "computing the learner's log-probs"):
                found = await self._learner.logprobs(token_ids)
        await self._to_cache(stage, sample)
        return found

    async def _to_cache(self, stage: str, sample: str) -> None:
        await self._leave(stage, sample)
        await self._look("parameters_left")
        with _while(stage, sample, "waking the KV cache"):
            await self._generator.wake("cache")
        await self._look("cache_awake")

    async def _leave(self, stage: str, sample: str) -> None:
        with _while(stage, sample, "the learner's parameters leave"):
            await self._learner.sleep()

    async def _look(self, moment: str) -> None:
        if (found := await self._learner.free(moment)) is not None:
            self.free[moment] = found


def _while(stage: str, sample: str, what: str) -> AbstractContextManager[None]:
    return naming_stage(stage, f"{sample}, while {what}")
