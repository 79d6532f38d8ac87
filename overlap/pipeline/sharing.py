"""Sharing of devices by engine and learner: which frees memory when, so that both never need more than there is.

    engine sleeps ─▶ critic comes, learns, leaves ─▶ policy comes, learns, its states leave ─▶ engine's weights wake
         ▲                                                                                            │
         │                                                                                 weights go over, in chunks
         └─── generates ◀── KV cache wakes, knows nothing ◀── the policy's parameters leave ◀─────────┘

Responses that are not at their end when the engine is put to sleep are kept, and go on when the cache wakes: they are
of later steps (``rollout.max_staleness``). ``clock`` pauses in between, for the code that times them.

What happens inside the learner's step is the learner's (``overlap.learner.offload``). The KV cache, the largest piece,
wakes when nothing of the learner is left beside it. Free memory is reported for every moment, a failure says in which.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from overlap.core import Generator, Learner
from overlap.core.clock import PausableClock
from overlap.core.errors import naming_stage

T = TypeVar("T")
_SLEEP, _LEAVE = "putting the engine to sleep", "the learner's parameters leave"


class Sharing:
    """Handover of one device between ``generator`` and ``learner``. ``free`` is GiB of it by moment, as they were at
    the last time; empty where it is not known. ``clock`` pauses while the engine sleeps.
    """

    def __init__(self, generator: Generator, learner: Learner) -> None:
        self._generator, self._learner = generator, learner
        self.free: dict[str, float] = {}
        self.clock = PausableClock()

    async def to_learner(self, stage: str, sample: str) -> None:
        """The engine sleeps. Raises StageError."""
        await self._phase(stage, sample, _SLEEP, self._sleep(), "engine_asleep")

    async def to_nobody(self, version: int) -> None:
        """Both sleep, also what has only just come up. Raises StageError."""
        await self._phase("load", f"version {version}", _SLEEP, self._sleep())
        await self._phase("load", f"version {version}", _LEAVE, self._learner.sleep())

    async def to_engine(
        self, version: int, send: Callable[[], Awaitable[None]], token_ids: Sequence[int] | None
    ) -> list[float] | None:
        """The engine wakes with what ``send`` brings into it. Returns the learner's log-probs of ``token_ids``, which
        are taken while its parameters are still there. Raises StageError, which names the phase.
        """
        sample, found = f"version {version}", None
        await self._phase("load", sample, _SLEEP, self._sleep())  # one that died may be up again, and awake
        await self._phase(
            "load", sample, "waking the engine's weights", self._generator.wake("weights"), "weights_awake"
        )
        await self._phase("load", sample, "sending the weights", send(), "weights_sent")
        if token_ids is not None:
            work = self._learner.logprobs(token_ids)
            found = await self._phase("load", sample, "computing the learner's log-probs", work)
        await self._phase("load", sample, _LEAVE, self._learner.sleep(), "parameters_left")
        await self._phase("load", sample, "waking the KV cache", self._generator.wake("cache"), "cache_awake")
        self.clock.resume()
        return found

    async def _sleep(self) -> None:
        await self._generator.sleep()
        self.clock.pause()

    async def _phase(self, stage: str, sample: str, what: str, work: Awaitable[T], moment: str = "") -> T:
        """Do ``work``; an error says what was done. Afterwards, free memory is noted as of ``moment``."""
        with naming_stage(stage, f"{sample}, while {what}"):
            result = await work
        if moment and (free := await self._learner.free(moment)) is not None:
            self.free[moment] = free
        return result
