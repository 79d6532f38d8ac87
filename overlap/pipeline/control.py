"""Pause, drain and save for a running loop, and its status. For the loop's own thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from overlap.core import Group, Scored
from overlap.core.aio import race

if TYPE_CHECKING:
    from overlap.pipeline.flow import Flow
    from overlap.pipeline.tracker import GroupTracker

SHOWN = 5
"""Samples that a status names."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """Occupancy of the loop. Seconds are since its beginning."""

    generating: int
    """Samples in the engine, or waiting for it."""
    verifying: int
    """Samples with a verifier, or waiting for one."""
    steps_waiting: int
    """Complete steps that the learner has not begun."""
    leases_out: int
    """Groups between admission and the arrival of their weights."""
    leases_allowed: int
    """Largest ``leases_out``."""
    step_waited_s: float
    """A complete step waited for the learner."""
    learner_waited_s: float
    """The learner waited for a complete step."""
    admission_waited_s: float
    """No group could be admitted."""


class EndedEarly(Exception):
    """Leaves the loop after ``Control.end``, and gives up what is in flight."""


OnSave = Callable[[tuple[Scored, ...]], Awaitable[None]]
"""Saves the position of the run between two steps; gets the results that no step has taken (``StepResult.carried``)."""


class Control:
    """Handed to ``overlapped``, which obeys it between two steps. What is underway is finished in any case.

    ``pause``: no group is admitted and no further step is learned until ``resume``. ``drain``: no group is admitted any
    more; the loop ends when all complete steps are learned. ``end``: no further step is learned, and samples in flight
    are given up. ``save``: call ``on_save``, also while paused, and before an end.
    """

    def __init__(self) -> None:
        self.on_save: OnSave | None = None
        self.paused = self.draining = False
        self.saves = False
        """A save was asked for, and is not made."""
        self.ended_by = ""
        """Name of who asked for the end, and the reason."""
        self._over = self._stands = False
        self._changed = asyncio.Event()
        self._loop: tuple[GroupTracker, Flow] | None = None

    def pause(self) -> None:
        self.paused = True
        self._apply()

    def resume(self) -> None:
        self.paused = False
        self._apply()

    def drain(self) -> None:
        """Also ends a pause."""
        self.paused, self.draining = False, True
        self._apply()

    def end(self, by: str) -> None:
        """Also ends a pause. The first one who asks is named in ``ended_by``."""
        self.paused, self.ended_by = False, self.ended_by or by
        self._apply()

    def save(self) -> None:
        self.saves = True
        self._apply()

    def begin(self) -> None:
        """By the loop, before anything else."""
        self._over = False

    def attach(self, tracker: GroupTracker, flow: Flow) -> None:
        """By the loop, when it may admit."""
        self._loop = tracker, flow
        self._apply()

    def detach(self) -> None:
        """By the loop, however it ended."""
        self._loop = None

    @property
    def doing(self) -> str:
        """State of a run that has this loop: "paused" where nothing moves, "finishing" behind the last step."""
        if self._over:
            return "finishing"
        if self.paused:
            moves = self._loop is not None and self._loop[1].pending
            return "paused" if self._stands and not moves else "pausing"
        return "draining" if self.draining else "running"

    async def next_step(self) -> tuple[Group, ...] | None:
        """The loop's: the groups of the next step when it may be learned, None after the last. Saves when asked to.
        Raises EndedEarly.
        """
        assert self._loop is not None
        tracker, steps = self._loop[0], self._loop[0].steps
        while True:
            self._changed.clear()
            if self.saves:
                if self.on_save is not None:
                    await self.on_save(tracker.finished)
                self.saves = False  # one that was asked for meanwhile is the same
            elif self.ended_by:
                self._over = True
                raise EndedEarly
            elif self.paused:
                await self._stand()
            elif steps.waiting or steps.ended:
                self._over = steps.ended
                return steps.take()
            else:
                await race(steps.ready(), self._changed.wait())

    async def _stand(self) -> None:
        self._stands = True
        try:
            await self._changed.wait()
        finally:
            self._stands = False

    def state(self) -> LoopState | None:
        """None until the loop runs."""
        if self._loop is None:
            return None
        tracker, flow = self._loop
        window, steps = tracker.window, tracker.steps
        return LoopState(
            generating=flow.depth("generate"),
            verifying=flow.depth("verify"),
            steps_waiting=len(steps.waiting),
            leases_out=len(window.out),
            leases_allowed=window.allowed,
            step_waited_s=steps.full_s,
            learner_waited_s=steps.empty_s,
            admission_waited_s=window.waited_s,
        )

    def status(self) -> dict[str, Any]:
        """Report for a person how full the loop is, and the samples that have been in it for longest."""
        state, asked = self.state(), {"paused": self.paused, "draining": self.draining, "saving": self.saves}
        if state is None or self._loop is None:
            return asked
        tracker, flow = self._loop
        counts = tracker.assembler
        return {
            **asked,
            **{name: round(value, 3) for name, value in asdict(state).items()},
            "submitted": counts.submitted,
            "scored": counts.scored,
            "failed": counts.failed,
            "oldest": [asdict(pending) for pending in flow.pending[:SHOWN]],
        }

    def _apply(self) -> None:
        self._changed.set()
        if self._loop is not None:
            self._loop[0].window.hold("paused", self.paused)
            if self.draining:
                self._loop[0].drain()
