"""What may be asked of a running loop, and what it says of itself. For the loop's own thread."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlap.pipeline.books import Books
    from overlap.pipeline.flow import Flow

PAUSED, DRAINING = "paused", "draining"


@dataclass(frozen=True, slots=True)
class LoopState:
    """How full the loop is. Seconds are since its beginning."""

    generating: int
    """Samples in the engine, or waiting for it."""
    verifying: int
    """Samples with a verifier, or waiting for one."""
    steps_waiting: int
    """Complete steps that the learner has not begun."""
    leases_out: int
    """Groups between admission and the arrival of their weights."""
    leases_allowed: int
    """How many there may be."""
    step_waited_s: float
    """A complete step waited for the learner."""
    learner_waited_s: float
    """The learner waited for a complete step."""
    admission_waited_s: float
    """No group could be admitted."""

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class Control:
    """Handed to ``overlapped``, which obeys it. ``pause`` and ``drain`` let what is underway be finished.

    ``pause``: no group is admitted and no further step is learned until ``resume``. ``drain``: no group is admitted any
    more; the loop ends when all complete steps are learned.
    """

    draining: bool = False
    _paused: bool = False
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _books: Books | None = None
    _flow: Flow | None = None

    def __post_init__(self) -> None:
        self._go.set()

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        self._paused = True
        self._go.clear()
        self._apply()

    def resume(self) -> None:
        self._paused = False
        self._go.set()
        self._apply()

    def drain(self) -> None:
        """Also ends a pause."""
        self.draining = True
        self.resume()

    async def turn(self) -> None:
        """Waits while paused."""
        await self._go.wait()

    def attach(self, books: Books, flow: Flow) -> None:
        """By the loop, when it begins."""
        self._books, self._flow = books, flow
        self._apply()

    def state(self) -> LoopState | None:
        """None until the loop runs."""
        if self._books is None or self._flow is None:
            return None
        window, steps = self._books.window, self._books.steps.stats
        return LoopState(
            generating=self._flow.depth("generate"),
            verifying=self._flow.depth("verify"),
            steps_waiting=steps.waiting,
            leases_out=len(window.out),
            leases_allowed=window.allowed,
            step_waited_s=steps.full_s,
            learner_waited_s=steps.empty_s,
            admission_waited_s=window.waited_s,
        )

    def status(self) -> dict[str, Any]:
        """For a person: where the loop stands, and what has stood there for longest."""
        state = self.state()
        pending = self._flow.pending if self._flow else []
        oldest = [asdict(p) for p in pending[:5]]
        books = self._books.assembler if self._books else None
        counts = {"submitted": books.submitted, "scored": books.scored, "failed": books.failed} if books else {}
        return {
            "paused": self._paused,
            "draining": self.draining,
            **(state.to_dict() if state else {}),
            **counts,
            "pending": dict(Counter(p.stage for p in pending)),
            "oldest": oldest,
        }

    def _apply(self) -> None:
        if self._books is not None:
            self._books.window.hold(PAUSED, self._paused)
            if self.draining:
                self._books.drain()
